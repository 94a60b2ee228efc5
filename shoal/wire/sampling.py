"""Sampling parameters as messages."""

from dataclasses import asdict

from shoal.rollout import SamplingParams
from shoal.v1 import rollout_pb2
from shoal.wire.fields import invalid


def sampling_to_wire(sampling: SamplingParams) -> rollout_pb2.SamplingParams:
    return rollout_pb2.SamplingParams(**asdict(sampling))


def sampling_from_wire(message: rollout_pb2.SamplingParams) -> SamplingParams:
    if message.temperature != 0 and not 0.01 <= message.temperature <= 2:
        # vLLM would replace a lower temperature by 0.01, and the learner would not notice.
        raise invalid("sampling.temperature", f"must be from 0.01 to 2, or 0 for greedy (given: {message.temperature})")
    if not 0 < message.top_p <= 1:
        raise invalid("sampling.top_p", f"must be above 0 and at most 1; 1 keeps all (given: {message.top_p})")
    if message.top_k < 0:
        raise invalid("sampling.top_k", f"must be at least 0; 0 keeps all (given: {message.top_k})")
    if not 0 <= message.min_p <= 1:
        raise invalid("sampling.min_p", f"must be from 0 to 1 (given: {message.min_p})")
    if message.max_completion_tokens < 1:
        raise invalid("sampling.max_completion_tokens", f"must be at least 1 (given: {message.max_completion_tokens})")
    if "" in message.stop_strings:
        raise invalid(
            "sampling.stop_strings",
            "must not be empty: with an empty text every completion would end with its first token",
        )
    if message.return_support and (message.top_k < 1 or message.temperature == 0):
        raise invalid(
            "sampling.return_support",
            f"needs top_k and temperature above 0 (given: {message.top_k} and {message.temperature:g})",
        )
    return SamplingParams(
        temperature=message.temperature,
        top_p=message.top_p,
        top_k=message.top_k,
        min_p=message.min_p,
        max_completion_tokens=message.max_completion_tokens,
        stop_token_ids=tuple(message.stop_token_ids),
        stop_strings=tuple(message.stop_strings),
        return_support=message.return_support,
    )
