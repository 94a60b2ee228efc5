"""Checks of a batch against the model and the configuration. An error names the field and the group."""

import numpy as np
import numpy.typing as npt

from services.learner.model.contexts import has_loss_token
from shoal.config.tables.sampling import SamplingConfig
from shoal.rollout import Completion, FinishReason, TrainBatch, TrainGroup
from shoal.wire import invalid


def check_batch(batch: TrainBatch, *, vocab_size: int, max_positions: int | None) -> None:
    """Raises `InvalidArgument`, which names the group and the fault, if the model cannot train on the batch."""
    if not any(map(has_loss_token, batch.groups)):
        raise invalid("groups", "no completion token counts in the loss, so there is nothing to train on")
    for group in batch.groups:
        name = f"group {group.group_id}"
        if not len(group.prompt_token_ids):
            raise invalid(
                "group.prompt_token_ids",
                f"{name} has an empty prompt, so that no token predicts the first token of the completion",
            )
        check_tokens(group.prompt_token_ids, vocab_size, "group.prompt_token_ids", name)
        for rollout in group.rollouts:
            completion = rollout.completion
            name = f"group {group.group_id}, sample {completion.sample_index}"
            if completion.finish_reason is FinishReason.ABORT:
                raise invalid("completion.finish_reason", f"{name} was aborted: leave out aborted completions")
            if not np.isfinite(rollout.advantage):
                raise invalid("rollout.advantage", f"{name} has advantage {rollout.advantage}, which must be finite")
            if rollout.token_advantages is not None and not np.isfinite(rollout.token_advantages).all():
                raise invalid("rollout.token_advantages", f"{name} has values that are not finite")
            if not (np.isfinite(rollout.weight) and rollout.weight >= 0):
                raise invalid("rollout.weight", f"{name} has weight {rollout.weight}; it must be at least 0 and finite")
            check_tokens(completion.token_ids, vocab_size, "completion.token_ids", name)
            if completion.support is not None:
                check_tokens(completion.support.token_ids, vocab_size, "completion.support_token_ids", name)
            _check_segments(completion, group, name, vocab_size, max_positions)


def _check_segments(
    completion: Completion, group: TrainGroup, name: str, vocab_size: int, max_positions: int | None
) -> None:
    for segment in completion.segments(group.prompt_token_ids):
        if segment.prompt_token_ids is not group.prompt_token_ids:  # The group's own prompt is checked once.
            if not len(segment.prompt_token_ids):
                raise invalid("completion.episode.segments", f"{name} has a segment with an empty prompt")
            check_tokens(segment.prompt_token_ids, vocab_size, "completion.episode.segments", name)
        length = len(segment.prompt_token_ids) + segment.end - segment.start
        if max_positions is not None and length > max_positions:
            raise invalid(
                "completion.token_ids",
                f"{name} has {length} tokens with its prompt, but the model takes at most {max_positions}",
            )


def check_supports(batch: TrainBatch, sampling: SamplingConfig) -> None:
    """Raises `InvalidArgument` unless every completion has a support if `sampling.top_k` > 0, and none otherwise."""
    for group in batch.groups:
        for rollout in group.rollouts:
            completion = rollout.completion
            if (completion.support is not None) != sampling.is_restricted:
                need = "is needed" if sampling.is_restricted else "must be empty"
                raise invalid(
                    "completion.support_token_ids",
                    f"{need} when sampling.top_k is {sampling.top_k} (group {group.group_id}, sample "
                    f"{completion.sample_index})",
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
                    f"group {group.group_id}, sample {rollout.completion.sample_index} has no reward, but "
                    "loss.objective = topr needs a reward for each completion",
                )


def check_tokens(token_ids: npt.NDArray[np.int32], vocab_size: int, field: str, name: str) -> None:
    """Raises `InvalidArgument` when a token id is outside the model's vocabulary."""
    if len(token_ids) and (int(token_ids.min()) < 0 or int(token_ids.max()) >= vocab_size):
        raise invalid(
            field,
            f"{name} has token ids from {token_ids.min()} to {token_ids.max()}; the model's token ids are 0 to "
            f"{vocab_size - 1}",
        )
