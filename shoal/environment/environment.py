"""The base class of environments, and the arguments and results of its methods."""

import inspect
import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeAlias

from shoal.chat_templates.thoughts import without_thoughts
from shoal.conversation import ChatMessage, ToolCall, ToolCallStatus, ToolDefinition
from shoal.environment.tools import definition, marked_tools
from shoal.rollout import FinishReason, ToolOutcome


class InvalidTask(Exception):
    """Raised by `reset` if the task is not for this environment. The message states why."""


class Unscorable(Exception):
    """Raised by any method if this task cannot be judged, through no fault of the policy. The message states why."""


class Broken(Exception):
    """Raised by any method or tool if a resource of the environment is broken, through no fault of the policy. The
    episode is FAILED, and the message states why."""


class ToolError(Exception):
    """Raised by a tool if the policy is to get the message as the answer. Any other exception except `Broken` and
    `Unscorable` also becomes an answer, which names the exception's class."""


@dataclass(frozen=True)
class Turn:
    """The content of a turn of the policy."""

    number: int
    """The number of the turn, from 1."""
    text: str
    """The text, without the tool calls."""
    tool_calls: tuple[ToolCall, ...] = ()
    """The tool calls that were found. The `status` of a call states whether the call can be carried out."""
    finish_reason: FinishReason = FinishReason.STOP
    """Why sampling ended; LENGTH if a limit cut the turn off."""
    num_tokens: int = 0
    opened_thought: str = ""
    """The mark of the thought with which the chat template begins the turn, such as "<think>", which `text` does not
    contain; empty if the template begins no thought."""

    @property
    def answer(self) -> str:
        """The policy's words outside of its thoughts. Read a guess or a result from this text."""
        return without_thoughts(self.opened_thought + self.text)


Said: TypeAlias = str | ChatMessage | Mapping[str, Any] | Sequence["str | ChatMessage | Mapping[str, Any]"]
"""A text (said as a user), or a message, or a list of these. A message may be {"role": ..., "content": ...}."""


@dataclass(frozen=True)
class Observation:
    """The answer of the environment."""

    messages: Said = ()
    reward: float | None = None
    """Reward of the turn, if the environment gives one."""
    done: bool = False
    """Whether the episode is over."""
    tool_outcomes: tuple[ToolOutcome, ...] = ()
    """The outcomes of the turn's tool calls, in their order."""


Answer: TypeAlias = Observation | Said | None
"""The value that a method returns. None means no message, and only an `Observation` has a reward."""


class Environment:
    """An environment. Each episode has its own object, made with the settings of the configuration as keyword
    arguments. Episodes may share a process. Every method may be `async`.

    Example:
        class Doubling(Environment):
            \"\"\"Asks for the double of a number.\"\"\"

            is_deterministic = True

            def reset(self, task, seed):
                self.number = random.Random(seed).randint(1, 100)
                return f"What is {self.number} times 2?"

            def step(self, turn):
                right = str(2 * self.number) in turn.answer
                return Observation(reward=float(right), done=True)
    """

    is_deterministic: bool = False
    """Whether the same settings, task, seed and turns always give the same answers, in every process. Then an episode
    whose process dies continues in another process, which repeats its turns."""
    tools: "Sequence[Callable[..., Any] | ToolDefinition] | Callable[[], Any]" = ()
    """The tools, in addition to methods marked with `@tool`: functions, described by their signature and docstring, or
    definitions of tools that `step` carries out itself. The field may also be a method that returns the tools."""

    prompt: tuple[ChatMessage, ...]
    """The conversation that the policy reads before the first turn. Set this field before `reset`."""
    offered_tools: frozenset[str] | None
    """Names of the tools that the policy is offered in this episode; None for all. Set before `reset`. Calls of other
    tools are marked as calls of unknown tools."""
    metrics: dict[str, float]
    """Numbers of the episode for the metrics, by name; read when the episode ends."""
    reward: float | None
    """Reward of the whole episode, in addition to rewards of turns; read when the episode ends."""
    detail: str
    """The episode's outcome, for people; read when the episode ends."""
    _kept_functions: dict[str, Callable[..., Any]] | None
    """The functions of the tools. They stay with the episode, because a method `tools` may ask a server."""

    def __new__(cls, *_: Any, **__: Any) -> Self:
        # Set attributes here, so that a subclass with its own `__init__` need not call `super().__init__`.
        environment = super().__new__(cls)
        environment.prompt, environment.offered_tools, environment._kept_functions = (), None, None
        environment.metrics, environment.reward, environment.detail = {}, None, ""
        return environment

    def reset(self, task: dict[str, Any], seed: int) -> Any:
        """Begins the episode; returns what the policy reads first, if anything (`Answer`). Raises `InvalidTask` for a
        task that is not for this environment."""

    def step(self, turn: Turn) -> "Answer | Awaitable[Answer]":
        """Answers a turn. The default implementation carries out the tool calls."""
        return self.call_tools(turn)

    def close(self) -> Any:
        """Frees the episode's resources. Called once, however the episode ends, unless its process dies."""

    def unavailable(self) -> str:
        """Returns why the environment cannot work on this machine; empty if it can. Called before all episodes."""
        return ""

    async def call_tools(self, turn: Turn) -> Observation:
        """Carries out the tool calls of a turn, one after the other; a message answers each call.

        A call that cannot be carried out, or whose tool raises, is answered with the error. A tool returns a text, a
        value that is written as JSON, or an `Observation`. The rewards of observations add up to the turn's reward, and
        an observation that ends the episode also skips the remaining calls.
        """
        if self._kept_functions is None:
            tools = await self.listed_tools()
            self._kept_functions = {name: function for name, (_, function) in tools.items() if function is not None}
        functions = self._kept_functions
        return await answer_calls(turn, lambda call: _carried_out(call, functions))

    async def listed_tools(self) -> dict[str, tuple[ToolDefinition, Callable[..., Any] | None]]:
        """Returns each tool with its function; None if `step` carries the tool out. Raises `ValueError` for a function
        whose arguments cannot be described, and for two tools with the same name."""
        listed = self.tools
        if callable(listed):
            listed = await awaited(listed())
        tools: dict[str, tuple[ToolDefinition, Callable[..., Any] | None]] = {}
        for item in (*marked_tools(self), *listed):
            described = item if isinstance(item, ToolDefinition) else definition(item)
            if described.name in tools:
                raise ValueError(f"two tools have the name {described.name!r}: rename one of the two tools")
            tools[described.name] = (described, None if isinstance(item, ToolDefinition) else item)
        return tools


async def awaited(value: Any) -> Any:
    """Returns the result of a method that may be `async`."""
    return await value if inspect.isawaitable(value) else value


CarriedOut: TypeAlias = tuple[Observation, bool, bool]
"""The answer to a call, whether the call worked, and whether it took too long."""


async def answer_calls(turn: Turn, carry_out: Callable[[ToolCall], Awaitable[CarriedOut]]) -> Observation:
    """Carries out the tool calls of a turn, one after the other, until an answer ends the episode."""
    messages: list[ChatMessage] = []
    outcomes: list[ToolOutcome] = []
    rewards: list[float] = []
    is_done = False
    for call in turn.tool_calls:
        started = time.perf_counter()
        said, ok, timed_out = await carry_out(call)
        outcomes.append(ToolOutcome(call.name, ok, timed_out, time.perf_counter() - started))
        text = said.messages if isinstance(said.messages, str) else _joined(said.messages)
        messages.append(ChatMessage("tool", text, tool_call_id=call.id, name=call.name))
        rewards += [] if said.reward is None else [said.reward]
        if is_done := bool(said.done):
            break
    return Observation(messages, sum(rewards) if rewards else None, is_done, tuple(outcomes))


async def _carried_out(call: ToolCall, functions: Mapping[str, Callable[..., Any]]) -> CarriedOut:
    if call.status is not ToolCallStatus.OK:
        return Observation(f"error: {call.detail or call.status.value}"), False, False
    if call.name not in functions:
        return Observation(f"error: there is no tool {call.name!r}"), False, False
    try:
        arguments = json.loads(call.arguments_json or "{}")
        inspect.signature(functions[call.name]).bind(**arguments)
    except (TypeError, ValueError) as error:
        return Observation(f"error: {call.name} cannot be called so: {error}"), False, False
    try:
        value = await awaited(functions[call.name](**arguments))
    except (Broken, Unscorable):
        raise
    except ToolError as error:
        return Observation(f"error: {error}"), False, False
    except TimeoutError as error:
        return Observation(f"error: {call.name} took too long{f': {error}' if str(error) else ''}"), False, True
    except Exception as error:
        return Observation(f"error: {type(error).__name__}: {error}"), False, False
    return _observed(value), True, False


def _observed(value: Any) -> Observation:
    if isinstance(value, Observation):
        return value
    if value is None or isinstance(value, str):
        return Observation(value or "")
    return Observation(json.dumps(value, ensure_ascii=False, default=str))


def _joined(said: Any) -> str:
    parts = said if isinstance(said, Sequence) else [said]
    return "\n".join(part if isinstance(part, str) else _content(part) for part in parts)


def _content(message: Any) -> str:
    return message.content if isinstance(message, ChatMessage) else str(message["content"])
