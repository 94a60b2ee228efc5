"""The environment `toolbox`."""

import importlib
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from services.reward.environments.builtin.registry import CLASSES
from shoal.conversation import ChatMessage, ToolCallStatus, ToolDefinition
from shoal.environment import Environment, Observation, Turn
from shoal.rollout import ToolOutcome


class Toolbox(Environment):
    """Several environments with tools as one: `tools` is a list of tables, each with the `source` of one that comes
    with Shoal, and its settings.

    It rewards nothing: verifiers of the data do.
    """

    def __init__(self, tools: Sequence[Mapping[str, Any]]) -> None:
        if not tools:
            raise ValueError("tools must have at least one table, such as { source = 'python' }")
        self._parts = [_part(table) for table in tools]
        self._owners: dict[str, Environment] = {}
        for part in self._parts:
            part.metrics = self.metrics

    def unavailable(self) -> str:
        """Returns why one of them cannot work here."""
        return "; ".join(filter(None, (part.unavailable() for part in self._parts)))

    async def reset(self, task: dict[str, Any], seed: int) -> None:
        """Begins the episode in each."""
        for part in self._parts:
            beginning = part.reset({}, seed)
            if inspect.isawaitable(beginning):
                await beginning
        await self.tools()

    async def tools(self) -> list[ToolDefinition]:
        """Returns the tools of all. Raises `ValueError` for two of one name."""
        definitions = []
        for part in self._parts:
            for name, (described, _) in (await part.offered_tools()).items():
                if self._owners.setdefault(name, part) is not part:
                    raise ValueError(f"two tools have the name {name!r}: give one another name with `tool`")
                definitions.append(described)
        return definitions

    async def step(self, turn: Turn) -> Observation:
        """Lets each tool call of a turn be carried out where its tool is, one after the other."""
        messages: list[ChatMessage] = []
        outcomes: list[ToolOutcome] = []
        for call in turn.tool_calls:
            owner = self._owners.get(call.name) if call.status is ToolCallStatus.OK else None
            one = replace(turn, tool_calls=(call,))
            answer = self.call_tools(one) if owner is None else owner.step(one)
            observation = await answer if inspect.isawaitable(answer) else answer
            assert isinstance(observation, Observation)
            assert isinstance(observation.messages, list)
            messages += observation.messages
            outcomes += observation.tool_outcomes
        return Observation(messages, tool_outcomes=tuple(outcomes))

    async def close(self) -> None:
        """Ends the episode in each."""
        for part in self._parts:
            ending = part.close()
            if inspect.isawaitable(ending):
                await ending


def _part(table: Mapping[str, Any]) -> Environment:
    source = table.get("source")
    if source not in CLASSES or source == "toolbox":
        known = ", ".join(sorted({*CLASSES} - {"toolbox"}))
        raise ValueError(f"source of a table must be one of {known} (given: {source!r})")
    module = importlib.import_module(f"services.reward.environments.builtin.{source}")
    made = getattr(module, CLASSES[source])(**{name: value for name, value in table.items() if name != "source"})
    assert isinstance(made, Environment)
    return made
