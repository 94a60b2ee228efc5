"""The parts for playing episodes of one environment: its tools, the renderer, and the parser of tool calls."""

import asyncio
import copy
import json
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

from services.coordinator.rollout.episodes.stream import EnvironmentInfo, EnvironmentPool
from services.coordinator.rollout.pause import Pause
from services.coordinator.store.events import EventLog
from services.coordinator.workers.generator_pool import GeneratorPool
from shoal.config import RunConfig
from shoal.config.live import LiveConfig
from shoal.conversation import ToolDefinition
from shoal.episodes.suffix import TurnRenderer
from shoal.episodes.tool_calls import Parser, check_tools, make_parser, stop_strings
from shoal.errors import InvalidArgument
from shoal.rollout import EnvironmentTask

_KEPT_RENDERERS = 64

ResultT = TypeVar("ResultT")


@dataclass(frozen=True)
class Stage:
    """An environment, ready for the episodes of rows that offer some or all of its tools."""

    renderer: TurnRenderer
    parse: Parser
    tools: tuple[ToolDefinition, ...]
    withheld: tuple[ToolDefinition, ...]
    """Tools of the environment that the rows do not offer; calls of them are refused."""
    stop_strings: tuple[str, ...]
    """Texts that end a turn, in addition to those of the configuration."""
    is_deterministic: bool
    shows_tools: bool
    """Whether the chat template gets the tools."""
    is_agent: bool = False
    """Whether the environment is an agent, which calls the policy itself."""


class Stages:
    """The environments of a run, by name. The table is empty before `open`, and for a run without environments."""

    def __init__(
        self, config: RunConfig, tokenizer: Any, stop_token_ids: Sequence[int] = (), time_s: float | None = None
    ) -> None:
        """The run's `stop_token_ids` also end a turn. `time_s` is the current time for the template."""
        self._config = config
        self._stop_token_ids = stop_token_ids
        self._time_s = time_s
        # Rendering changes a setting of the tokenizer while others use it, so episodes have their own, in one thread.
        self._tokenizer = copy.deepcopy(tokenizer) if config.environments else tokenizer
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="episodes")
        self._stages: Mapping[str, Stage] = {}
        self._with_fewer_tools: dict[tuple[str, tuple[str, ...]], Stage] = {}
        """Stages by environment and names of tools."""
        self._base: TurnRenderer | None = None
        """The renderer without tools. Renderers with tools share its process."""
        self._renderers: OrderedDict[str, TurnRenderer] = OrderedDict()
        """Renderers of the tools that agents offered last, by tools."""

    def __getitem__(self, name: str) -> Stage:
        return self._stages[name]

    async def open(self, infos: Sequence[EnvironmentInfo]) -> None:
        """Prepares environments. Raises `InvalidArgument` for a chat template or tools that cannot be used."""
        self._stages = await self.beside(lambda: {info.name: self._stage(info) for info in infos})

    def of(self, task: EnvironmentTask) -> Stage:
        """Returns the environment with the tools of a row. The first call renders, so make it in `beside`."""
        stage = self._stages[task.environment]
        if task.tools is None:
            return stage
        key = (task.environment, task.tools)
        if key not in self._with_fewer_tools:
            self._with_fewer_tools[key] = self._offering(stage, task.tools)
        return self._with_fewer_tools[key]

    def _offering(self, stage: Stage, names: Collection[str]) -> Stage:
        offered = tuple(tool for tool in stage.tools if tool.name in names)
        shown = offered if stage.shows_tools else ()
        return replace(
            stage,
            renderer=self._with_tools(shown),
            tools=offered,
            withheld=tuple(tool for tool in stage.tools if tool.name not in names),
            shows_tools=bool(shown),
        )

    def _stage(self, info: EnvironmentInfo) -> Stage:
        _check_tools(info)
        settings = self._config.episodes
        shown = info.tools if settings.tools_in_prompt else ()
        return Stage(
            self._with_tools(shown),
            make_parser(settings.tool_parser, settings.tool_pattern),
            info.tools,
            (),
            stop_strings(settings.tool_parser, info.tools),
            info.is_deterministic,
            bool(shown),
            info.is_agent,
        )

    def renderer_for(self, tools: tuple[ToolDefinition, ...]) -> TurnRenderer:
        """Returns a renderer for an agent's tools; run it in `beside`. Raises `InvalidArgument` for unusable tools."""
        key = json.dumps([asdict(tool) for tool in tools], sort_keys=True)
        if key not in self._renderers:
            check_tools(tools)
            shown = tools if self._config.episodes.tools_in_prompt else ()
            self._renderers[key] = self._with_tools(shown)
            if len(self._renderers) > _KEPT_RENDERERS:
                self._renderers.popitem(last=False)
        return self._renderers[key]

    def _with_tools(self, tools: Sequence[ToolDefinition]) -> TurnRenderer:
        if self._base is None:
            self._base = plain_renderer(self._config, self._tokenizer, self._stop_token_ids, self._time_s)
        return self._base.with_tools(tools)

    def decode(self, token_ids: list[int]) -> str:
        """Returns tokens as the text in which an engine looks for stop strings."""
        return str(self._tokenizer.decode(token_ids, skip_special_tokens=False))

    async def beside(self, work: Callable[[], ResultT]) -> ResultT:
        """Runs rendering or parsing outside the event loop, one call at a time."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def close(self) -> None:
        """Ends the thread, and the process of the chat template."""
        self._thread.submit(self._close)  # In the thread, which may be rendering.
        self._thread.shutdown(wait=False)

    def _close(self) -> None:
        if self._base is not None:
            self._base.close()


@dataclass(frozen=True)
class EpisodeParts:
    """The parts that all episodes of a run share."""

    config: LiveConfig
    pause: Pause
    generators: GeneratorPool
    environments: EnvironmentPool
    stages: Stages
    events: EventLog


def plain_renderer(
    config: RunConfig, tokenizer: Any, stop_token_ids: Sequence[int], time_s: float | None
) -> TurnRenderer:
    """Returns the renderer of a run's episodes, without tools. Raises the errors of the renderer."""
    variables, episodes = config.model.chat_template_kwargs, config.episodes
    return TurnRenderer(
        tokenizer, (), variables, stop_token_ids, episodes.inline_results, episodes.user_results, time_s
    )


def _check_tools(info: EnvironmentInfo) -> None:
    try:
        check_tools(info.tools)
    except InvalidArgument as error:
        raise InvalidArgument(f"environments.{info.name} cannot be played: {error.message}") from None
    for tool in info.tools:
        if not tool.parameters:
            raise InvalidArgument(
                f"environments.{info.name} cannot be played: tool {tool.name!r}: the JSON schema of its parameters is "
                'empty; for a tool without parameters, send {"type": "object", "properties": {}}. Some libraries lose '
                "the fields of a google.protobuf.Struct that is given as a plain object"
            )
