"""The environment `toolbox`."""

import importlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from services.reward.environments.builtin.registry import CLASSES
from shoal.conversation import ChatMessage, ToolCallStatus, ToolDefinition
from shoal.environment import Environment, Observation, Turn
from shoal.environment.environment import awaited
from shoal.rollout import ToolOutcome


class Toolbox(Environment):
    """Several environments with tools as one: `tools` is a list of tables, each with the `source` of an environment
    that comes with Shoal, and its settings.

    `environment` is another such table, for an environment that is played beside the tools: this environment gets the
    task, gives the first message, and answers the turns without a call. Rewards of a turn are added; most tools give no
    rewards, and the verifiers of the data give them.
    """

    def __init__(self, tools: Sequence[Mapping[str, Any]] = (), environment: Mapping[str, Any] | None = None) -> None:
        if not tools:
            raise ValueError("give tools, at least one table such as { source = 'python' }")
        self._played = None if environment is None else _part(environment)
        self._num_played = 0
        self._parts = [*(_part(table) for table in tools), *([self._played] if self._played else [])]
        self._owners: dict[str, Environment] = {}
        for part in self._parts:
            part.metrics = self.metrics

    def unavailable(self) -> str:
        """Returns why one of the environments cannot work here."""
        return "; ".join(filter(None, (part.unavailable() for part in self._parts)))

    async def reset(self, task: dict[str, Any], seed: int) -> Any:
        """Begins the episode in each environment. Returns the first words of `environment`."""
        first_words = None
        for part in self._parts:
            part.prompt, part.offered_tools = self.prompt, self.offered_tools
            said = await awaited(part.reset(task if part is self._played else {}, seed))
            if part is self._played:
                first_words = said
        await self.tools()
        return first_words

    async def tools(self) -> list[ToolDefinition]:
        """Returns the tools of all environments. Raises `ValueError` for two tools with the same name."""
        definitions = []
        for part in self._parts:
            for name, (described, _) in (await part.listed_tools()).items():
                if self._owners.setdefault(name, part) is not part:
                    raise ValueError(f"two tools have the name {name!r}: rename one of the two with the setting `tool`")
                definitions.append(described)
        return definitions

    async def step(self, turn: Turn) -> Any:
        """Carries out the tool calls of a turn, one after the other, each in its tool's environment. Carries
        out no call after the end of the episode."""
        if self._played is not None and not turn.tool_calls:
            self._num_played += 1
            return await awaited(self._played.step(replace(turn, number=self._num_played)))
        messages: list[ChatMessage] = []
        outcomes: list[ToolOutcome] = []
        rewards: list[float] = []
        is_over = False
        for call in turn.tool_calls:
            owner = self._owners.get(call.name) if call.status is ToolCallStatus.OK else None
            one = replace(turn, tool_calls=(call,))
            observation = await awaited(self.call_tools(one) if owner is None else owner.step(one))
            messages += observation.messages
            outcomes += observation.tool_outcomes
            rewards += [] if observation.reward is None else [observation.reward]
            if is_over := observation.done:
                break
        return Observation(messages, math.fsum(rewards) if rewards else None, is_over, tuple(outcomes))

    async def close(self) -> None:
        """Ends the episode in each environment."""
        for part in self._parts:
            await awaited(part.close())


def _part(table: Mapping[str, Any]) -> Environment:
    source = table.get("source")
    if source not in CLASSES or source == "toolbox":
        known = ", ".join(sorted({*CLASSES} - {"toolbox"}))
        raise ValueError(f"source of a table must be one of {known} (given: {source!r})")
    module = importlib.import_module(f"services.reward.environments.builtin.{source}")
    made = getattr(module, CLASSES[source])(**{name: value for name, value in table.items() if name != "source"})
    assert isinstance(made, Environment)
    return made
