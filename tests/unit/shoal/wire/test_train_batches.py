"""Train batches as the messages of `TrainStep`: what is read is checked, and errors name the field."""

import math
from dataclasses import replace

import numpy as np
import pytest

from shoal.errors import InvalidArgument
from shoal.rollout import Completion, FinishReason, HandedGroup, Rollout, Support, TrainGroup, VersionSpan
from shoal.rpc.options import MAX_MESSAGE_BYTES
from shoal.wire import batch_from_wire, batch_to_wire, handed_group_from_wire, handed_group_to_wire
from tests.support.train_batches import START, make_batch, make_groups


@pytest.mark.parametrize("temperature", [math.nan, math.inf, -1.0])
def test_a_temperature_that_is_no_positive_finite_number_is_refused(temperature: float) -> None:
    header, *rest = batch_to_wire(make_batch())
    header.header.temperature = temperature
    with pytest.raises(InvalidArgument, match=r"header\.temperature"):
        batch_from_wire([header, *rest])


def handed(group: TrainGroup) -> HandedGroup:
    completions = tuple(rollout.completion for rollout in group.rollouts)
    return HandedGroup(0, 3, group.group_id, group.prompt_token_ids, completions, group.traceparent)


def large_group(num_tokens: int, num_rollouts: int, *, support: int) -> TrainGroup:
    """A group whose tokens have advantages of their own, and supports of so many tokens, if any."""
    tokens = np.arange(num_tokens, dtype=np.int32)
    counts = np.full(num_tokens, support, np.int32)
    completion = Completion(
        sample_index=0,
        token_ids=tokens,
        behavior_logprobs=np.zeros(num_tokens, np.float32),
        finish_reason=FinishReason.STOP,
        version_spans=(VersionSpan(START, 0, num_tokens),),
        seed=0,
        support=Support(np.repeat(tokens, support), counts) if support else None,
    )
    advantages = np.linspace(-1, 1, num_tokens, dtype=np.float32)
    rollouts = (
        Rollout(replace(completion, sample_index=index), 0.0, token_advantages=advantages)
        for index in range(num_rollouts)
    )
    return TrainGroup("large", np.zeros(4, np.int32), tuple(rollouts))


@pytest.mark.parametrize("support", [0, 12])
def test_a_large_group_is_handed_over_and_named_in_messages_of_bounded_size(support: int) -> None:
    group = large_group(60_000, 40, support=support)
    named, messages = handed_group_to_wire(handed(group))
    assert max(message.ByteSize() for message in messages) < MAX_MESSAGE_BYTES
    received = handed_group_from_wire(messages)
    batch = make_batch(groups=[group])
    step = list(batch_to_wire(batch, {"large": named.digest}))
    assert max(message.ByteSize() for message in step) < MAX_MESSAGE_BYTES
    again = batch_from_wire(step, {"large": received})
    assert all(a == b for a, b in zip(batch_to_wire(again), batch_to_wire(batch), strict=True))


def test_a_digest_depends_on_every_value_of_a_group() -> None:
    group = handed(make_groups()[0])
    first, *others = group.completions
    changed = [
        replace(group, attempt=1),
        replace(group, order_number=4),
        replace(group, prompt_token_ids=group.prompt_token_ids[::-1]),
        replace(group, completions=tuple(others)),
        replace(group, completions=(replace(first, behavior_logprobs=first.behavior_logprobs * 2), *others)),
        replace(group, completions=(replace(first, loss_mask=np.zeros(first.num_tokens, bool)), *others)),
    ]
    digests = {handed_group_to_wire(each)[0].digest for each in (group, group, *changed)}
    assert len(digests) == 1 + len(changed)


def test_a_rollout_of_a_sample_that_was_not_handed_over_is_refused() -> None:
    batch = make_batch(groups=make_groups(1))
    group = handed(batch.groups[0])
    received = replace(group, completions=group.completions[1:])
    with pytest.raises(InvalidArgument, match=r"^completion\.sample_index: "):
        batch_from_wire(batch_to_wire(batch, {group.group_id: "digest"}), {group.group_id: received})
