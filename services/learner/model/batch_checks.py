"""Checks of a batch against the model and the configuration. An error names the field and the group."""

import math

import numpy as np

from services.learner.model.contexts import has_loss_token
from shoal.arrays import Int32Array
from shoal.config.tables.sampling import SamplingConfig
from shoal.errors import InvalidArgument
from shoal.rollout import Completion, FinishReason, Rollout, TrainBatch, TrainGroup
from shoal.wire import invalid


def check_batch(batch: TrainBatch, *, vocab_size: int, max_positions: int | None) -> None:
    """Raises `InvalidArgument`, which names the group and the fault, if the model cannot train on the batch."""
    if not any(map(has_loss_token, batch.groups)):
        raise invalid("groups", "no completion token counts in the loss, so there is nothing to train on")
    for group in batch.groups:
        if not len(group.prompt_token_ids):
            raise invalid(
                "group.prompt_token_ids",
                f"group {group.group_id} has an empty prompt, so that no token predicts the first token of the "
                "completion",
            )
        for rollout in group.rollouts:
            _check_rollout(rollout, group, vocab_size, max_positions)
        _check_group_tokens(group, vocab_size)


def _check_rollout(rollout: Rollout, group: TrainGroup, vocab_size: int, max_positions: int | None) -> None:
    """Checks all of a rollout except the tokens of the completion."""
    completion = rollout.completion

    def fault(field: str, description: str) -> InvalidArgument:
        return invalid(field, f"{_name(group, completion)} {description}")

    if completion.finish_reason is FinishReason.ABORT:
        raise fault("completion.finish_reason", "was aborted: leave out aborted completions")
    if not math.isfinite(rollout.advantage):
        raise fault("rollout.advantage", f"has advantage {rollout.advantage}, which must be finite")
    if rollout.token_advantages is not None and not np.isfinite(rollout.token_advantages).all():
        raise fault("rollout.token_advantages", "has values that are not finite")
    if not 0 <= rollout.weight < math.inf:
        raise fault("rollout.weight", f"has weight {rollout.weight}; it must be at least 0 and finite")
    if completion.support is not None:
        name = _name(group, completion)
        check_tokens(completion.support.token_ids, vocab_size, "completion.support_token_ids", name)
    length = len(group.prompt_token_ids) + completion.num_tokens
    if completion.episode is not None:
        segments = completion.segments(group.prompt_token_ids)
        for segment in segments:
            if not len(segment.prompt_token_ids):
                raise fault("completion.episode.segments", "has a segment with an empty prompt")
            name = _name(group, completion)
            check_tokens(segment.prompt_token_ids, vocab_size, "completion.episode.segments", name)
        length = max(len(segment.prompt_token_ids) + segment.end - segment.start for segment in segments)
    if max_positions is not None and length > max_positions:
        description = f"has {length} tokens with its prompt, but the model takes at most {max_positions}"
        raise fault("completion.token_ids", description)


def _check_group_tokens(group: TrainGroup, vocab_size: int) -> None:
    """Checks the tokens of a group at once. On a fault, looks for the completion."""
    completions = [rollout.completion for rollout in group.rollouts]
    together = np.concatenate([group.prompt_token_ids, *(completion.token_ids for completion in completions)])
    if _are_known(together, vocab_size):
        return
    check_tokens(group.prompt_token_ids, vocab_size, "group.prompt_token_ids", f"group {group.group_id}")
    for completion in completions:
        check_tokens(completion.token_ids, vocab_size, "completion.token_ids", _name(group, completion))


def check_supports(batch: TrainBatch, sampling: SamplingConfig) -> None:
    """Raises `InvalidArgument` unless every completion has a support if `sampling.top_k` > 0, and none otherwise."""
    is_restricted = sampling.is_restricted
    for group in batch.groups:
        for rollout in group.rollouts:
            if (rollout.completion.support is not None) != is_restricted:
                need = "is needed" if is_restricted else "must be empty"
                raise invalid(
                    "completion.support_token_ids",
                    f"{need} when sampling.top_k is {sampling.top_k} ({_name(group, rollout.completion)})",
                )


def check_rewards(batch: TrainBatch, objective: str) -> None:
    """Raises `InvalidArgument` when a completion has no reward but the objective needs it."""
    if objective != "topr":
        return
    for group in batch.groups:
        for rollout in group.rollouts:
            if rollout.reward is None:
                raise invalid(
                    "rollout.reward",
                    f"{_name(group, rollout.completion)} has no reward, but loss.objective = topr needs a reward for "
                    "each completion",
                )


def check_tokens(token_ids: Int32Array, vocab_size: int, field: str, name: str) -> None:
    """Raises `InvalidArgument` when a token id is outside the model's vocabulary."""
    if not _are_known(token_ids, vocab_size):
        raise invalid(
            field,
            f"{name} has token ids from {token_ids.min()} to {token_ids.max()}; the model's token ids are 0 to "
            f"{vocab_size - 1}",
        )


def _are_known(token_ids: Int32Array, vocab_size: int) -> bool:
    return not len(token_ids) or (int(token_ids.min()) >= 0 and int(token_ids.max()) < vocab_size)


def _name(group: TrainGroup, completion: Completion) -> str:
    return f"group {group.group_id}, sample {completion.sample_index}"
