"""Values that the methods of an environment return, as JSON: checked and bounded."""

import contextlib
import math
import numbers
import reprlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from shoal.conversation import ChatMessage
from shoal.environment import Agent, Environment, Observation
from shoal.rollout import ToolOutcome
from shoal.scores import MAX_REWARD

MAX_MESSAGES = 256
"""Maximum number of messages in an observation, and of outcomes of tool calls."""
MAX_NAME_CHARS = 100
_MAX_METRICS = 64
_MAX_DETAIL_CHARS = 500


class BadAnswer(Exception):
    """A method returned an invalid value. The message describes the value."""


def observation_of(value: Any, max_chars: int) -> dict[str, Any]:
    """Converts the value of `reset` or `step` to JSON, with at most `max_chars` characters of text, apart from notes on
    cuts. Raises `BadAnswer`."""
    said = value if isinstance(value, Observation) else Observation(() if value is None else value)
    messages = list(islice(_messages(said.messages), MAX_MESSAGES + 1))
    check_number(len(messages))
    contents = cut([message["content"] for message in messages], max_chars)
    return {
        "messages": [message | {"content": content} for message, content in zip(messages, contents, strict=True)],
        "reward": None if said.reward is None else _reward(said.reward, "the reward"),
        "done": _is_done(said.done),
        "tool_outcomes": _outcomes(said.tool_outcomes),
    }


def check_number(num_messages: int) -> None:
    """Raises `BadAnswer` for more messages than an observation may have."""
    if num_messages > MAX_MESSAGES:
        raise BadAnswer(f"an observation has more than {MAX_MESSAGES} messages")


def result_of(environment: Environment) -> dict[str, Any]:
    """Returns an environment's result of its episode as JSON. Raises `BadAnswer`."""
    metrics = _numbers_by_name(environment.metrics, "self.metrics")
    if len(metrics) > _MAX_METRICS:
        raise BadAnswer(f"self.metrics has {len(metrics)} entries; at most {_MAX_METRICS} are allowed")
    reward = environment.reward
    result = {
        "reward": None if reward is None else _reward(reward, "the reward"),
        "metrics": {
            _text(str(name))[:MAX_NAME_CHARS]: _number(value, f"the metric {name!r}") for name, value in metrics.items()
        },
        "detail": _text(str(environment.detail or ""))[:_MAX_DETAIL_CHARS],
    }
    return result | {"turn_rewards": _turn_rewards(environment)} if isinstance(environment, Agent) else result


def _turn_rewards(agent: Agent) -> dict[str, float]:
    """Returns the rewards by the ids of calls, without the word with which ids of chat completions begin."""
    return {
        _text(str(name))[:MAX_NAME_CHARS].removeprefix("chatcmpl-"): _reward(value, f"the reward of turn {name!r}")
        for name, value in _numbers_by_name(agent.turn_rewards, "self.turn_rewards").items()
    }


def _numbers_by_name(values: Any, what: str) -> Mapping[Any, Any]:
    if isinstance(values, Mapping):
        return values
    raise BadAnswer(f"{what} must be a dict of numbers by name (given: {reprlib.repr(values)})")


def _is_done(done: Any) -> bool:
    """Converts a bool, also of numpy or torch. Refuses texts, which would all be true."""
    if isinstance(done, str | bytes | Sequence | Mapping):
        raise BadAnswer(f"done must be True or False (given: {reprlib.repr(done)})")
    return bool(done)


def _outcomes(outcomes: Any) -> list[dict[str, Any]]:
    if not isinstance(outcomes, Sequence) or not all(isinstance(outcome, ToolOutcome) for outcome in outcomes):
        raise BadAnswer(f"tool_outcomes must be a list of shoal.rollout.ToolOutcome (given: {reprlib.repr(outcomes)})")
    return [
        {
            "name": _text(str(outcome.name))[:MAX_NAME_CHARS],
            "ok": bool(outcome.ok),
            "timed_out": bool(outcome.timed_out),
            "duration_s": _number(outcome.duration_s, "duration_s of a tool outcome"),
        }
        for outcome in outcomes[:MAX_MESSAGES]
    ]


def _messages(said: Any) -> Iterator[dict[str, str]]:
    if isinstance(said, str):
        yield _message(ChatMessage("user", said))
    elif isinstance(said, ChatMessage | Mapping):
        yield _message(said)
    elif isinstance(said, Iterable) and not isinstance(said, bytes | bytearray):
        for one in said:
            yield _message(ChatMessage("user", one) if isinstance(one, str) else one)
    else:
        raise BadAnswer(
            f"{reprlib.repr(said)} ({type(said).__name__}) was returned: return a text, a message, a list of messages, "
            "an Observation, or None"
        )


def _message(message: Any) -> dict[str, str]:
    if isinstance(message, ChatMessage):
        message = {
            "role": message.role, "content": message.content, "tool_call_id": message.tool_call_id, "name": message.name
        }  # fmt: skip
    if not isinstance(message, Mapping) or not isinstance(message.get("content"), str) or not message.get("role"):
        raise BadAnswer(
            f"{reprlib.repr(message)} is no message: return texts, or messages with a role and a text as the content. "
            "Rewards and ends go into an Observation"
        )
    fields = {name: message.get(name) or "" for name in ("role", "content", "tool_call_id", "name")}
    return {name: _text(value if name == "content" else str(value)[:MAX_NAME_CHARS]) for name, value in fields.items()}


def cut(texts: Sequence[str], max_chars: int) -> list[str]:
    """Cuts the middle out of long texts, so that each has a fair share of `max_chars`, apart from notes on cuts."""
    lengths = sorted(map(len, texts))
    left, share = max_chars, max_chars
    for number, length in enumerate(lengths):
        share = left // (len(lengths) - number)
        if length > share:
            break
        left -= length
        share = max_chars
    return [_without_middle(text, share) for text in texts]


def _without_middle(text: str, max_chars: int) -> str:
    if len(text) <= max_chars:
        return text
    head, tail = (max_chars + 1) // 2, max_chars // 2
    return f"{text[:head]}\n[{len(text) - max_chars} characters are left out here]\n{text[len(text) - tail :]}"


def _reward(value: Any, what: str) -> float:
    reward = _number(value, what)
    if abs(reward) > MAX_REWARD:
        raise BadAnswer(f"{what} must be from {-MAX_REWARD:g} to {MAX_REWARD:g} (given: {reward:g})")
    return reward


def _number(value: Any, what: str) -> float:
    """Converts a number or bool, also of numpy or torch."""
    # An array may hold several numbers, and a whole number may be too large for a float.
    with contextlib.suppress(AttributeError, TypeError, ValueError, RuntimeError, OverflowError):
        number = value if isinstance(value, numbers.Real) else value.item()
        if math.isfinite(number):
            return float(number)
    raise BadAnswer(f"{what} must be a finite number (given: {reprlib.repr(value)})")


def _text(text: str) -> str:
    """Replaces lone surrogates, which protobuf strings cannot hold."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")
