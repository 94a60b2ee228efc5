"""Between the plain values of `shoal.rollout` and the messages of `shoal.v1`.

Every `*_from_wire` checks what it reads and raises `InvalidArgument` that names the field.
"""

import math
from collections.abc import Iterable, Iterator

import numpy as np
from google.protobuf import json_format
from google.protobuf.struct_pb2 import Value

from shoal.errors import FieldViolation, InvalidArgument
from shoal.rollout import (
    ChatMessage,
    Completion,
    FinishReason,
    Float32Array,
    GroundTruth,
    Int32Array,
    Prompt,
    RewardPart,
    Rollout,
    SamplingParams,
    Score,
    ScoreOutcome,
    StepScore,
    TrainBatch,
    TrainGroup,
    VerifierScore,
    VersionSpan,
    WeightVersion,
)
from shoal.v1 import learner_pb2, rollout_pb2

_FINISH_TO_WIRE = {
    FinishReason.STOP: rollout_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: rollout_pb2.FINISH_REASON_LENGTH,
    FinishReason.ABORT: rollout_pb2.FINISH_REASON_ABORT,
}
_FINISH_FROM_WIRE = {number: reason for reason, number in _FINISH_TO_WIRE.items()}
_OUTCOME_TO_WIRE = {
    ScoreOutcome.SCORED: rollout_pb2.SCORE_OUTCOME_SCORED,
    ScoreOutcome.UNSCORABLE: rollout_pb2.SCORE_OUTCOME_UNSCORABLE,
    ScoreOutcome.FAILED: rollout_pb2.SCORE_OUTCOME_FAILED,
}
_OUTCOME_FROM_WIRE = {number: outcome for outcome, number in _OUTCOME_TO_WIRE.items()}


def invalid(field: str, description: str) -> InvalidArgument:
    """The error for one field of a request."""
    return InvalidArgument(f"{field}: {description}", violations=[FieldViolation(field, description)])


def int32_to_wire(array: Int32Array) -> bytes:
    return np.ascontiguousarray(array, dtype="<i4").tobytes()


def float32_to_wire(array: Float32Array) -> bytes:
    return np.ascontiguousarray(array, dtype="<f4").tobytes()


def int32_from_wire(data: bytes, field: str) -> Int32Array:
    """A read-only [len / 4] view of the bytes."""
    if len(data) % 4:
        raise invalid(field, f"{len(data)} bytes are not a whole number of int32")
    return np.frombuffer(data, dtype="<i4")


def float32_from_wire(data: bytes, field: str) -> Float32Array:
    """A read-only [len / 4] view of the bytes."""
    if len(data) % 4:
        raise invalid(field, f"{len(data)} bytes are not a whole number of float32")
    return np.frombuffer(data, dtype="<f4")


def version_to_wire(version: WeightVersion) -> rollout_pb2.WeightVersion:
    return rollout_pb2.WeightVersion(attempt=version.attempt, policy_version=version.policy_version)


def version_from_wire(message: rollout_pb2.WeightVersion) -> WeightVersion:
    return WeightVersion(message.attempt, message.policy_version)


def prompt_to_wire(prompt: Prompt) -> rollout_pb2.Prompt:
    return rollout_pb2.Prompt(
        prompt_id=prompt.prompt_id,
        token_ids=int32_to_wire(prompt.token_ids),
        text=prompt.text,
        ground_truths=map(ground_truth_to_wire, prompt.ground_truths),
        messages=[rollout_pb2.ChatMessage(role=message.role, content=message.content) for message in prompt.messages],
    )


def prompt_from_wire(message: rollout_pb2.Prompt) -> Prompt:
    return Prompt(
        prompt_id=message.prompt_id,
        token_ids=int32_from_wire(message.token_ids, "prompt.token_ids"),
        text=message.text,
        ground_truths=tuple(map(ground_truth_from_wire, message.ground_truths)),
        messages=tuple(ChatMessage(turn.role, turn.content) for turn in message.messages),
    )


def ground_truth_to_wire(truth: GroundTruth) -> rollout_pb2.GroundTruth:
    return rollout_pb2.GroundTruth(
        verifier=truth.verifier, label=json_format.ParseDict(truth.label, Value()), weight=truth.weight
    )


def ground_truth_from_wire(message: rollout_pb2.GroundTruth) -> GroundTruth:
    return GroundTruth(
        verifier=message.verifier,
        label=json_format.MessageToDict(message.label),
        weight=message.weight if message.HasField("weight") else 1.0,
    )


def sampling_to_wire(sampling: SamplingParams) -> rollout_pb2.SamplingParams:
    return rollout_pb2.SamplingParams(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        max_completion_tokens=sampling.max_completion_tokens,
        stop_token_ids=sampling.stop_token_ids,
        stop_strings=sampling.stop_strings,
    )


def sampling_from_wire(message: rollout_pb2.SamplingParams) -> SamplingParams:
    if message.temperature != 0 and not 0.01 <= message.temperature <= 2:
        # vLLM would sample at 0.01 for a lower one, and the learner not know.
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
        raise invalid("sampling.stop_strings", "must not be empty: every completion would end with its first token")
    return SamplingParams(
        temperature=message.temperature,
        top_p=message.top_p,
        top_k=message.top_k,
        min_p=message.min_p,
        max_completion_tokens=message.max_completion_tokens,
        stop_token_ids=tuple(message.stop_token_ids),
        stop_strings=tuple(message.stop_strings),
    )


def finish_reason_to_wire(reason: FinishReason) -> rollout_pb2.FinishReason.ValueType:
    return _FINISH_TO_WIRE[reason]


def finish_reason_from_wire(number: rollout_pb2.FinishReason.ValueType) -> FinishReason:
    """Raises `InvalidArgument` when it is not set, or unknown."""
    reason = _FINISH_FROM_WIRE.get(number)
    if reason is None:
        raise invalid("completion.finish_reason", f"must be set (given: {number})")
    return reason


def completion_to_wire(completion: Completion, *, with_text: bool = True) -> rollout_pb2.Completion:
    mask = completion.loss_mask
    return rollout_pb2.Completion(
        sample_index=completion.sample_index,
        token_ids=int32_to_wire(completion.token_ids),
        behavior_logprobs=float32_to_wire(completion.behavior_logprobs),
        loss_mask=b"" if mask is None else np.ascontiguousarray(mask, dtype=np.uint8).tobytes(),
        finish_reason=_FINISH_TO_WIRE[completion.finish_reason],
        version_spans=[
            rollout_pb2.VersionSpan(version=version_to_wire(span.version), start=span.start, end=span.end)
            for span in completion.version_spans
        ],
        text=completion.text if with_text else "",
        seed=completion.seed,
    )


def completion_from_wire(message: rollout_pb2.Completion) -> Completion:
    token_ids = int32_from_wire(message.token_ids, "completion.token_ids")
    logprobs = float32_from_wire(message.behavior_logprobs, "completion.behavior_logprobs")
    if len(logprobs) != len(token_ids):
        raise invalid("completion.behavior_logprobs", f"{len(logprobs)} values for {len(token_ids)} tokens")
    if message.loss_mask and len(message.loss_mask) != len(token_ids):
        raise invalid("completion.loss_mask", f"{len(message.loss_mask)} values for {len(token_ids)} tokens")
    end = 0
    for span in message.version_spans:
        if span.start != end or span.end < span.start:
            raise invalid("completion.version_spans", f"leave no gap: {span.start} to {span.end} follows {end}")
        end = span.end
    if end != len(token_ids):
        raise invalid("completion.version_spans", f"cover {end} of {len(token_ids)} tokens")
    return Completion(
        sample_index=message.sample_index,
        token_ids=token_ids,
        behavior_logprobs=logprobs,
        loss_mask=np.frombuffer(message.loss_mask, dtype=np.uint8).astype(bool) if message.loss_mask else None,
        finish_reason=finish_reason_from_wire(message.finish_reason),
        version_spans=tuple(
            VersionSpan(version_from_wire(span.version), span.start, span.end) for span in message.version_spans
        ),
        text=message.text,
        seed=message.seed,
    )


def score_to_wire(score: Score) -> rollout_pb2.Score:
    return rollout_pb2.Score(
        sample_index=score.sample_index,
        outcome=_OUTCOME_TO_WIRE[score.outcome],
        reward=score.reward,
        verifier_scores=[
            rollout_pb2.VerifierScore(
                verifier=part.verifier,
                outcome=_OUTCOME_TO_WIRE[part.outcome],
                value=part.value,
                detail=part.detail,
                duration_s=part.duration_s,
                step_scores=[
                    rollout_pb2.StepScore(end_char=step.end_char, value=step.value) for step in part.step_scores
                ],
                code_digest=part.code_digest,
            )
            for part in score.verifier_scores
        ],
        parts=[rollout_pb2.RewardPart(name=part.name, value=part.value) for part in score.parts],
    )


def score_from_wire(message: rollout_pb2.Score) -> Score:
    return Score(
        sample_index=message.sample_index,
        outcome=_outcome(message.outcome, "score.outcome"),
        reward=message.reward,
        verifier_scores=tuple(
            VerifierScore(
                verifier=part.verifier,
                outcome=_outcome(part.outcome, "score.verifier_scores.outcome"),
                value=part.value,
                detail=part.detail,
                duration_s=part.duration_s,
                step_scores=tuple(StepScore(step.end_char, step.value) for step in part.step_scores),
                code_digest=part.code_digest,
            )
            for part in message.verifier_scores
        ),
        parts=tuple(RewardPart(part.name, part.value) for part in message.parts),
    )


def _outcome(number: rollout_pb2.ScoreOutcome.ValueType, field: str) -> ScoreOutcome:
    outcome = _OUTCOME_FROM_WIRE.get(number)
    if outcome is None:
        raise invalid(field, f"must be set (given: {number})")
    return outcome


def batch_to_wire(batch: TrainBatch) -> Iterator[learner_pb2.TrainStepRequest]:
    """The messages of a `TrainStep` stream: the header, then each group's header and rollouts."""
    yield learner_pb2.TrainStepRequest(
        header=learner_pb2.TrainStepHeader(
            train_step_id=batch.train_step_id,
            expected_version=version_to_wire(batch.expected_version),
            temperature=batch.temperature,
            num_groups=len(batch.groups),
        )
    )
    for group in batch.groups:
        yield learner_pb2.TrainStepRequest(
            group=learner_pb2.GroupHeader(
                group_id=group.group_id,
                prompt_token_ids=int32_to_wire(group.prompt_token_ids),
                num_rollouts=len(group.rollouts),
                traceparent=group.traceparent,
            )
        )
        for rollout in group.rollouts:
            yield learner_pb2.TrainStepRequest(
                rollout=learner_pb2.TrainRollout(
                    completion=completion_to_wire(rollout.completion, with_text=False),
                    advantage=rollout.advantage,
                    weight=rollout.weight,
                    reward=rollout.reward,
                    token_advantages=(
                        b"" if rollout.token_advantages is None else float32_to_wire(rollout.token_advantages)
                    ),
                )
            )


def _rollout_from_wire(message: learner_pb2.TrainRollout) -> Rollout:
    completion = completion_from_wire(message.completion)
    token_advantages = None
    if message.token_advantages:
        token_advantages = float32_from_wire(message.token_advantages, "rollout.token_advantages")
        if len(token_advantages) != completion.num_tokens:
            raise invalid(
                "rollout.token_advantages",
                f"must be one for each of {completion.num_tokens} tokens (given: {len(token_advantages)})",
            )
    return Rollout(
        completion,
        message.advantage,
        weight=message.weight if message.HasField("weight") else 1.0,
        reward=message.reward if message.HasField("reward") else None,
        token_advantages=token_advantages,
    )


def batch_from_wire(messages: Iterable[learner_pb2.TrainStepRequest]) -> TrainBatch:
    """Reads a whole `TrainStep` stream. Raises `InvalidArgument` on messages out of order."""
    header: learner_pb2.TrainStepHeader | None = None
    groups: list[tuple[learner_pb2.GroupHeader, list[Rollout]]] = []
    for message in messages:
        part = message.WhichOneof("part")
        if (header is None) != (part == "header"):
            raise invalid("part", f"the stream begins with one header (found: {part})")
        if part == "header":
            header = message.header
        elif part == "group":
            groups.append((message.group, []))
        elif part == "rollout" and groups:
            groups[-1][1].append(_rollout_from_wire(message.rollout))
        else:
            raise invalid("part", f"a rollout follows its group's header (found: {part})")
    if header is None:
        raise invalid("part", "the stream is empty; it begins with a header")
    if not header.train_step_id:
        raise invalid("header.train_step_id", "is required")
    if not 0 < header.temperature < math.inf:
        raise invalid("header.temperature", f"must be above 0, and finite (given: {header.temperature})")
    if len(groups) != header.num_groups:
        raise invalid("header.num_groups", f"announced {header.num_groups}, sent {len(groups)}")
    for group, rollouts in groups:
        if len(rollouts) != group.num_rollouts:
            raise invalid(
                "group.num_rollouts", f"{group.group_id} announced {group.num_rollouts}, sent {len(rollouts)}"
            )
    return TrainBatch(
        train_step_id=header.train_step_id,
        expected_version=version_from_wire(header.expected_version),
        temperature=header.temperature,
        groups=tuple(
            TrainGroup(
                group_id=group.group_id,
                prompt_token_ids=int32_from_wire(group.prompt_token_ids, "group.prompt_token_ids"),
                rollouts=tuple(rollouts),
                traceparent=group.traceparent,
            )
            for group, rollouts in groups
        ),
    )
