"""Mini-batches, rows, and batches that are refused."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from services.learner.loss.loss_tokens import LossTokens
from services.learner.model.batch_checks import check_batch, check_rewards, check_supports
from services.learner.model.contexts import num_loss_tokens
from services.learner.model.packing import cut_mini_batches, pack_for_rank, sequence_row
from shoal.config.tables.sampling import SamplingConfig
from shoal.errors import InvalidArgument
from shoal.rollout import FinishReason, Rollout, TrainGroup
from tests.support.loss_variants import varied_groups
from tests.support.train_batches import make_batch, make_groups, with_segments, with_supports


def changed(group: TrainGroup, **completion: object) -> TrainGroup:
    """Returns the group with other fields in its first completion."""
    first, *others = group.rollouts
    return replace(group, rollouts=(replace(first, completion=replace(first.completion, **completion)), *others))


def loss_mask(rollout: Rollout) -> np.ndarray:
    mask = rollout.completion.loss_mask
    return np.ones(rollout.completion.num_tokens, dtype=bool) if mask is None else mask


def masked(group: TrainGroup) -> TrainGroup:
    """Returns the group with no token that counts in the loss."""
    rollouts = tuple(
        Rollout(replace(r.completion, loss_mask=np.zeros(r.completion.num_tokens, dtype=bool)), r.advantage)
        for r in group.rollouts
    )
    return replace(group, rollouts=rollouts)


def test_mini_batches_are_whole_groups_in_order() -> None:
    groups = make_groups(num_groups=8)
    parts = [[group.group_id for group in part] for part in cut_mini_batches(groups, 4)]
    assert parts == [["g0", "g1"], ["g2", "g3"], ["g4", "g5"], ["g6", "g7"]]


def test_a_step_of_fewer_groups_has_fewer_mini_batches_and_drops_none() -> None:
    groups = make_groups(num_groups=3)
    parts = cut_mini_batches(groups, 4)
    assert [group.group_id for part in parts for group in part] == ["g0", "g1", "g2"]
    assert all(parts)


def test_a_mini_batch_without_a_token_to_train_on_is_left_out() -> None:
    first, second = make_groups(num_groups=2)
    assert cut_mini_batches([masked(first), second], 2) == [(second,)]


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 7])
def test_all_ranks_together_score_every_token_once(num_ranks: int) -> None:
    groups = make_groups(num_groups=5)
    rows = [pack_for_rank(groups, max_tokens=60, rank=rank, num_ranks=num_ranks)[0] for rank in range(num_ranks)]
    assert len({len(of_rank) for of_rank in rows}) == 1, "ranks have different numbers of forwards"
    scored = sum(int((row.at_C >= 0).sum()) for of_rank in rows for row in of_rank)
    assert scored == sum(num_loss_tokens(rollout) for group in groups for rollout in group.rollouts)
    targets = sorted(token for of_rank in rows for row in of_rank for token in row.targets_C[row.at_C >= 0].tolist())
    assert targets == sorted(
        token for group in groups for r in group.rollouts for token in r.completion.token_ids.tolist()
    )


def test_masked_tokens_are_context_but_are_not_scored() -> None:
    (group,) = make_groups(num_groups=1, group_size=1)
    completion = group.rollouts[0].completion
    mask = np.arange(completion.num_tokens) % 2 == 0
    (row,), _ = pack_for_rank([changed(group, loss_mask=mask)], max_tokens=100, rank=0, num_ranks=1)
    assert row.targets_C.tolist() == completion.token_ids[mask].tolist()
    assert row.num_tokens == len(group.prompt_token_ids) + completion.num_tokens
    assert torch.equal(row.token_ids_R[row.predicting_C + 1], row.targets_C)


def test_a_batch_without_a_token_to_train_on_is_refused() -> None:
    groups = [masked(group) for group in make_groups()]
    with pytest.raises(InvalidArgument, match="no completion token"):
        check_batch(make_batch(groups=groups), vocab_size=260, max_positions=None)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"finish_reason": FinishReason.ABORT}, "group g0, sample 0 was aborted"),
        (
            {"token_ids": np.array([3, 260], dtype=np.int32)},
            "token ids from 3 to 260; the model's token ids are 0 to 259",
        ),
        ({"token_ids": np.zeros(64, dtype=np.int32)}, "the model takes at most 64"),
    ],
)
def test_the_error_names_a_completion_that_cannot_be_trained_on(fields: dict[str, object], message: str) -> None:
    first, *others = make_groups()
    with pytest.raises(InvalidArgument, match=message):
        check_batch(make_batch(groups=[changed(first, **fields), *others]), vocab_size=260, max_positions=64)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"advantage": float("nan")}, r"rollout\.advantage: group g0, sample 0 "),
        ({"advantage": float("inf")}, r"rollout\.advantage: group g0, sample 0 "),
        ({"weight": -1.0}, r"rollout\.weight: group g0, sample 0 has weight -1\.0; it must be at least 0"),
        ({"token_advantages": np.array([np.nan], dtype=np.float32)}, r"rollout\.token_advantages: group g0, sample 0"),
    ],
)
def test_factors_that_are_not_numbers_are_refused(fields: dict[str, object], message: str) -> None:
    first, *others = make_groups()
    rollouts = (replace(first.rollouts[0], **fields), *first.rollouts[1:])
    with pytest.raises(InvalidArgument, match=message):
        check_batch(make_batch(groups=[replace(first, rollouts=rollouts), *others]), vocab_size=260, max_positions=None)
    check_batch(make_batch(groups=others), vocab_size=260, max_positions=None)


def test_only_an_objective_that_uses_rewards_requires_them() -> None:
    check_rewards(make_batch(), "ppo_clip")
    with pytest.raises(InvalidArgument, match=r"rollout\.reward: group g0, sample 0 .*loss\.objective = topr"):
        check_rewards(make_batch(), "topr")


def test_the_loss_tokens_are_those_of_the_rows() -> None:
    groups = varied_groups(num_groups=5)
    tokens = LossTokens.of_groups(groups)
    behavior = [r.completion.behavior_logprobs[loss_mask(r)] for group in groups for r in group.rollouts]
    np.testing.assert_array_equal(tokens.behavior_logprobs_N, np.concatenate(behavior))
    places = []
    for rank in range(3):
        for row in pack_for_rank(groups, max_tokens=60, rank=rank, num_ranks=3)[0]:
            places += row.at_C[row.at_C >= 0].tolist()
    assert sorted(places) == list(range(len(tokens)))
    assert tokens.completions.num == 25
    assert tokens.completions.num_tokens()[4] == 0, "the masked completion is counted and has no tokens"


def test_an_empty_prompt_is_refused() -> None:
    first, *others = make_groups()
    batch = make_batch(groups=[replace(first, prompt_token_ids=np.zeros(0, dtype=np.int32)), *others])
    with pytest.raises(InvalidArgument, match="first token"):
        check_batch(batch, vocab_size=260, max_positions=None)


def support_sets(ids: np.ndarray, counts: np.ndarray) -> list[list[int]]:
    return [part.tolist() for part in np.split(ids, np.cumsum(counts)[:-1])]


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_each_scored_token_keeps_its_support_in_the_rows(num_ranks: int) -> None:
    first, *others = with_supports(make_groups(num_groups=3))
    mask = np.arange(first.rollouts[0].completion.num_tokens) % 2 == 0
    groups = [changed(first, loss_mask=mask), *others]
    wanted = [
        (int(token), ids)
        for group in groups
        for rollout in group.rollouts
        for token, ids, counts in zip(
            rollout.completion.token_ids,
            support_sets(rollout.completion.support.token_ids, rollout.completion.support.counts),
            loss_mask(rollout),
            strict=True,
        )
        if counts
    ]
    found: list[tuple[int, int, list[int]]] = []
    for rank in range(num_ranks):
        for row in pack_for_rank(groups, max_tokens=60, rank=rank, num_ranks=num_ranks)[0]:
            if row.support_CK is None:
                assert not (row.at_C >= 0).any(), "scored tokens without a support"
                continue
            ids = [[token for token in tokens if token >= 0] for tokens in row.support_CK.tolist()]
            found += zip(row.at_C.tolist(), row.targets_C.tolist(), ids, strict=True)
    assert [(target, ids) for _, target, ids in sorted(found)] == wanted


def test_rows_without_supports_have_none() -> None:
    (row,), _ = pack_for_rank(make_groups(num_groups=1), max_tokens=1000, rank=0, num_ranks=1)
    assert row.support_CK is None


def test_the_last_tokens_of_sequences_are_scored_over_their_supports() -> None:
    (group,) = with_supports(make_groups(num_groups=1, group_size=2))
    completions = [rollout.completion for rollout in group.rollouts]
    sequences = [np.concatenate([group.prompt_token_ids, completion.token_ids]) for completion in completions]
    row = sequence_row(sequences, [completion.support for completion in completions])
    assert row.targets_C.tolist() == [token for completion in completions for token in completion.token_ids.tolist()]
    assert torch.equal(row.token_ids_R[row.predicting_C + 1], row.targets_C)
    assert row.support_CK is not None and torch.equal(row.support_CK[:, 0], row.targets_C)


@pytest.mark.parametrize(
    ("top_k", "is_set", "message"),
    [
        (20, False, "is needed when sampling.top_k is 20 .group g0, sample 0."),
        (0, True, "must be empty when sampling.top_k is 0 .group g0, sample 0."),
    ],
)
def test_supports_that_do_not_fit_the_sampling_are_refused(top_k: int, is_set: bool, message: str) -> None:
    groups = make_groups()
    with pytest.raises(InvalidArgument, match=rf"completion\.support_token_ids: {message}"):
        check_supports(make_batch(groups=with_supports(groups) if is_set else groups), SamplingConfig(top_k=top_k))
    check_supports(make_batch(groups=groups if is_set else with_supports(groups)), SamplingConfig(top_k=top_k))


def test_a_support_with_a_token_that_the_model_lacks_is_refused() -> None:
    groups = with_supports(make_groups(), vocab_size=300)
    with pytest.raises(InvalidArgument, match=r"completion\.support_token_ids: group g\d, sample \d "):
        check_batch(make_batch(groups=groups), vocab_size=257, max_positions=None)


def segmented() -> list[TrainGroup]:
    """Groups of which the second has a completion of three segments."""
    first, second, third = make_groups(num_groups=3)
    long = changed(second, token_ids=np.arange(100, 112, dtype=np.int32), behavior_logprobs=np.zeros(12, np.float32))
    return [first, with_segments(long, num_prompt_tokens=(5, 9, 2)), third]


def test_a_segment_is_packed_behind_its_own_prompt() -> None:
    groups = segmented()
    segments = groups[1].rollouts[0].completion.segments(groups[1].prompt_token_ids)
    (row,), _ = pack_for_rank(groups, max_tokens=1000, rank=0, num_ranks=1)
    sequences = [row.token_ids_R[index].tolist() for bucket in row.layout.buckets for index in bucket]
    for segment in segments:
        wanted = [*segment.prompt_token_ids.tolist(), *range(100 + segment.start, 100 + segment.end)]
        assert any(sequence[: len(wanted)] == wanted for sequence in sequences), f"{wanted} is not in {sequences}"
        positions = [
            row.positions_R[index].tolist()[: len(wanted)]
            for bucket in row.layout.buckets
            for index in bucket
            if row.token_ids_R[index].tolist()[: len(wanted)] == wanted
        ]
        assert positions == [list(range(len(wanted)))], f"positions count from the segment's prompt: {positions}"


@pytest.mark.parametrize("num_ranks", [1, 3])
def test_all_ranks_together_score_every_token_of_segments_once(num_ranks: int) -> None:
    groups = [replace(group) for group in with_supports(segmented())]
    rows = [
        row for r in range(num_ranks) for row in pack_for_rank(groups, max_tokens=40, rank=r, num_ranks=num_ranks)[0]
    ]
    at = sorted(int(index) for row in rows for index in row.at_C if index >= 0)
    num_tokens = sum(num_loss_tokens(rollout) for group in groups for rollout in group.rollouts)
    assert at == list(range(num_tokens)), f"scored: {at}"
    tokens = np.concatenate([rollout.completion.token_ids for group in groups for rollout in group.rollouts])
    for row in rows:
        for index, target in zip(row.at_C.tolist(), row.targets_C.tolist(), strict=True):
            assert index < 0 or tokens[index] == target, f"token {index} is {tokens[index]}, packed as {target}"


def test_a_segment_that_is_too_long_with_its_prompt_is_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"^completion\.token_ids: .* sample 0 .*\b13\b.*\b12$"):
        check_batch(make_batch(groups=segmented()[1:2]), vocab_size=256, max_positions=12)


def test_a_segment_without_a_prompt_is_refused() -> None:
    group = with_segments(make_groups(num_groups=1)[0], num_prompt_tokens=(0, 4))
    with pytest.raises(InvalidArgument, match=r"sample 0 .*empty prompt"):
        check_batch(make_batch(groups=[group]), vocab_size=256, max_positions=None)
