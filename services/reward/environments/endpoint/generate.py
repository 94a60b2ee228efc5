"""The dialect `/inference/v1/generate`: tokens in, tokens out."""

import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from services.reward.environments.endpoint.answers import finish_reason, token_ids, token_logprobs, usage
from services.reward.environments.endpoint.chat import AUXILIARY
from services.reward.environments.endpoint.fields import check_fields, overridden, positive, texts
from services.reward.environments.endpoint.fields import token_ids as read_token_ids
from services.reward.environments.endpoint.refusals import invalid
from shoal.v1 import environment_pb2 as pb

_READ = ("model", "token_ids", "sampling_params")
_IGNORED = ("request_id", "cache_salt", "priority", "return_token_ids", "output_mode", "stream_options")
_READ_SAMPLING = ("max_tokens", "stop", "stop_token_ids")
_IGNORED_SAMPLING = (
    "logprobs", "skip_special_tokens", "spaces_between_special_tokens", "include_stop_str_in_output", "detokenize",
    "routed_experts_prompt_start", "output_kind", "truncate_prompt_tokens",
)  # fmt: skip
_WHERE = "sampling_params."


def sampling_of(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the sampling settings of a request. Raises `Refused`."""
    sampling = values.get("sampling_params") or {}
    if not isinstance(sampling, dict):
        raise invalid("sampling_params", "must be an object")
    return sampling


def generate_call(values: Mapping[str, Any]) -> pb.PolicyCall:
    """Makes the call of a request. Raises `Refused`."""
    check_fields(values, _READ, _IGNORED)
    sampling = sampling_of(values)
    check_fields(sampling, _READ_SAMPLING, _IGNORED_SAMPLING, _WHERE)
    tokens = read_token_ids(values, "token_ids")
    if not tokens:
        raise invalid("token_ids", "must be the tokens of the context, at least one")
    return pb.PolicyCall(
        token_ids=np.array(tokens, "<i4").tobytes(),
        max_tokens=positive(sampling, "max_tokens", _WHERE),
        stop_token_ids=read_token_ids(sampling, "stop_token_ids", _WHERE),
        stop_strings=texts(sampling, "stop", _WHERE),
        is_auxiliary=values.get("model") == AUXILIARY,
    )


def generate_overridden(values: Mapping[str, Any]) -> list[str]:
    return [_WHERE + name for name in overridden(sampling_of(values))]


def generate_answer(answer: pb.PolicyAnswer, call_id: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the body of the response."""
    choice = {
        "index": 0,
        "finish_reason": finish_reason(answer),
        "token_ids": token_ids(answer),
        "logprobs": token_logprobs(answer),
    }
    return {
        "id": call_id,
        "request_id": str(values.get("request_id") or call_id),
        "model": str(values.get("model") or "policy"),
        "created": int(time.time()),
        "choices": [choice],
        "usage": usage(answer),
        "policy_version": answer.version.policy_version,
    }
