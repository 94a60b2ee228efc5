"""Checks of the fields of requests."""

from collections.abc import Collection, Mapping
from typing import Any

from services.reward.environments.endpoint.refusals import invalid, unsupported

RUNS = ("temperature", "top_p", "top_k", "min_p", "seed")
"""Fields that the run sets, since all its samples are drawn in one way. In requests they have no effect."""
_NEUTRAL: Mapping[str, Any] = {
    "n": 1, "best_of": 1, "presence_penalty": 0, "frequency_penalty": 0, "repetition_penalty": 1, "logit_bias": {},
    "top_logprobs": 0, "min_tokens": 0, "ignore_eos": False, "stream": False, "echo": False,
    "response_format": {"type": "text"}, "parallel_tool_calls": True, "tool_choice": "auto", "modalities": ["text"],
    "use_beam_search": False, "prompt_logprobs": 0,
}  # fmt: skip
"""Fields that a request may have with a neutral value."""
MAX_TOKENS = 2**31 - 1


def check_fields(values: Mapping[str, Any], read: Collection[str], ignored: Collection[str], where: str = "") -> None:
    """Raises `Refused` for a field that is neither `read` nor `ignored` and asks for an unsupported feature."""
    for name, value in values.items():
        if name in read or name in ignored or name in RUNS or value is None:
            continue
        if name not in _NEUTRAL:
            raise unsupported(where + name, "this endpoint has no such field: leave it out")
        if value != _NEUTRAL[name]:
            raise unsupported(where + name, f"only {_NEUTRAL[name]!r} is possible here (given: {value!r:.60})")


def overridden(values: Mapping[str, Any]) -> list[str]:
    """Returns the fields of a request that the run's values replace."""
    return [name for name in RUNS if values.get(name) is not None]


def positive(values: Mapping[str, Any], name: str, where: str = "") -> int:
    """Returns a number of tokens; 0 if the field is missing. Raises `Refused`."""
    value: Any = values.get(name)
    if value is None:
        return 0
    if type(value) is not int or not 1 <= value <= MAX_TOKENS:
        raise invalid(where + name, "must be a whole number from 1 on")
    return value


def is_on(values: Mapping[str, Any], name: str) -> bool:
    """Returns a boolean; False if the field is missing. Raises `Refused`."""
    value = values.get(name)
    if value is not None and not isinstance(value, bool):
        raise invalid(name, f"must be true or false (given: {value!r:.60})")
    return bool(value)


def listed(values: Mapping[str, Any], name: str, where: str = "") -> list[Any]:
    """Returns a list; empty if the field is missing. Raises `Refused`."""
    value = values.get(name)
    if value is not None and not isinstance(value, list):
        raise invalid(where + name, "must be a list")
    return value or []


def texts(values: Mapping[str, Any], name: str, where: str = "") -> list[str]:
    """Returns a list of texts, or a single text as a list. Raises `Refused`."""
    value = values.get(name)
    listed = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(listed, list) or not all(isinstance(item, str) and item for item in listed):
        raise invalid(where + name, "must be a text or a list of texts")
    return listed


def token_ids(values: Mapping[str, Any], name: str, where: str = "") -> list[int]:
    """Returns a list of tokens. Raises `Refused`."""
    given = values.get(name)
    if given is None:
        return []
    if not isinstance(given, list) or not all(type(item) is int and 0 <= item <= MAX_TOKENS for item in given):
        raise invalid(where + name, "must be a list of token ids")
    return given
