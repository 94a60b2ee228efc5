"""Plans of packed rows."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.grpo.packing import GroupLengths, PackingPlan, plan_packing

lengths = st.builds(
    GroupLengths,
    num_prompt_tokens=st.integers(1, 40),
    num_completion_tokens=st.lists(st.integers(0, 60), max_size=6).map(tuple),
)


def placed(plan: PackingPlan) -> list[tuple[int, int]]:
    return sorted(
        (piece.group, completion)
        for forward in plan.rows
        for row in forward
        for piece in row
        for completion in piece.completions
    )


@settings(max_examples=200, deadline=None)
@given(groups=st.lists(lengths, max_size=8), max_tokens=st.integers(1, 200), num_ranks=st.integers(1, 4))
def test_every_completion_is_in_one_row_and_no_row_is_too_long(
    groups: list[GroupLengths], max_tokens: int, num_ranks: int
) -> None:
    plan = plan_packing(groups, max_tokens=max_tokens, num_ranks=num_ranks)
    wanted = [(index, i) for index, group in enumerate(groups) for i in range(len(group.num_completion_tokens))]
    assert placed(plan) == wanted
    for forward in plan.rows:
        assert len(forward) == num_ranks, f"a forward has {len(forward)} rows for {num_ranks} ranks"
        for row in forward:
            total = sum(piece.num_tokens for piece in row)
            alone = len(row) == 1 and len(row[0].completions) == 1
            assert total <= max_tokens or alone, f"{total} tokens in {row}"
            for piece in row:
                group = groups[piece.group]
                length = group.num_prompt_tokens + sum(group.num_completion_tokens[i] for i in piece.completions)
                assert piece.num_tokens == length


def test_groups_that_fit_share_one_row_with_each_prompt_once() -> None:
    groups = [GroupLengths(40, (16,) * 8)] * 8
    plan = plan_packing(groups, max_tokens=4096, num_ranks=1)
    assert len(plan.rows) == 1
    assert [piece.num_tokens for piece in plan.rows[0][0]] == [40 + 8 * 16] * 8


def test_rows_of_one_forward_are_about_equally_long() -> None:
    groups = [GroupLengths(10, tuple(range(2 * number, 2 * number + 12, 3))) for number in range(1, 40)]
    plan = plan_packing(groups, max_tokens=900, num_ranks=3)
    assert len(plan.rows) > 1
    for forward in plan.rows:
        loads = [sum(piece.num_tokens for piece in row) for row in forward]
        assert max(loads) <= 1.25 * min(loads), loads


def test_a_single_group_is_spread_over_all_ranks() -> None:
    plan = plan_packing([GroupLengths(8, (100,) * 6)], max_tokens=4096, num_ranks=3)
    assert [sum(piece.num_tokens for piece in row) for row in plan.rows[0]] == [208, 208, 208]


def test_completions_of_a_group_in_one_row_share_the_prompt() -> None:
    # The group is too long for one row; the second group is cut as well, and its pieces may meet again.
    groups = [GroupLengths(10, (70, 70)), GroupLengths(10, (20, 20, 20, 20))]
    plan = plan_packing(groups, max_tokens=100, num_ranks=1)
    for forward in plan.rows:
        for row in forward:
            assert len({piece.group for piece in row}) == len(row), row


def test_ranks_without_work_get_an_empty_row() -> None:
    plan = plan_packing([GroupLengths(8, (5,))], max_tokens=100, num_ranks=3)
    assert [len(plan.of_rank(rank)) for rank in range(3)] == [1, 1, 1]
    assert plan.num_rows == 1


def test_a_completion_longer_than_a_row_adds_no_empty_forwards() -> None:
    plan = plan_packing([GroupLengths(10, (400, 30)), GroupLengths(10, (300,))], max_tokens=48, num_ranks=2)
    assert len(plan.rows) == 2
    assert plan.num_rows == 3


@pytest.mark.timeout(20)
def test_many_long_prompts_are_planned_in_seconds() -> None:
    plan = plan_packing([GroupLengths(2000, (40,) * 24)] * 48, max_tokens=2048, num_ranks=1)
    assert plan.num_rows == 48 * 24, "no two completions fit beside a prompt"
