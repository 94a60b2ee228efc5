"""Pages of a ledger's groups."""

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from services.coordinator.store.ledger import Ledger
from services.coordinator.store.progress import Progress
from services.coordinator.store.reading import reading
from services.coordinator.store.rollout_query import RolloutQuery
from services.coordinator.store.rollouts import LEDGER, count_groups, list_rollouts
from services.coordinator.store.rows import TrainedGroup
from services.coordinator.store.segments.series import SEGMENTS
from services.coordinator.store.tables import blocks
from services.coordinator.store.tables.blocks import WholeLedger
from shoal.errors import InvalidArgument
from shoal.rollout import Completion
from shoal.rpc.options import MAX_MESSAGE_BYTES
from shoal.scores import Score, ScoreOutcome, VerifierScore
from shoal.v1 import coordinator_pb2 as pb
from tests.support.sampled import PROMPT, completion
from tests.support.whole_checkpoints import write_snapshot


async def issue(ledger: Ledger, order_number: int, *completions: Completion) -> None:
    await ledger.issued(order_number, order_number, f"g{order_number}", PROMPT, "", 0, "")
    if completions:
        await ledger.sampled(order_number, completions, 0, "")


async def test_pages_of_long_groups_fit_a_message_and_omit_no_group(ledger: Ledger, tmp_path: Path) -> None:
    num_groups = 40
    for number in range(num_groups):
        await issue(ledger, number, completion(0, "a" * (256 << 10)))
    await ledger.close()
    assert [group.order_number for group in all_pages(tmp_path)] == list(range(num_groups))


def all_pages(folder: Path, **fields: Any) -> list[pb.RolloutGroup]:
    """Lists the groups by pages that gRPC takes by default; joins the parts of a group."""
    groups: list[pb.RolloutGroup] = []
    request = pb.ListRolloutsRequest(page_size=100, **fields)
    while True:
        page = list_rollouts(folder, request)
        assert 0 < page.ByteSize() < MAX_MESSAGE_BYTES, f"{page.ByteSize()} bytes for {len(page.groups)} groups"
        for group in page.groups:
            if groups and groups[-1].order_number == group.order_number:
                groups[-1].rollouts.extend(group.rollouts)
            else:
                groups.append(group)
        if not page.next_page_token:
            return groups
        request.page_token = page.next_page_token


@pytest.mark.parametrize("order", [pb.ROLLOUT_ORDER_ISSUE, pb.ROLLOUT_ORDER_REWARD])
async def test_a_group_that_is_larger_than_a_message_is_on_several_pages(
    ledger: Ledger, tmp_path: Path, order: "pb.RolloutOrder.ValueType"
) -> None:
    for number, length in ((0, 10), (1, 600 << 10), (2, 10), (3, 600 << 10)):
        await issue(ledger, number, *(completion(index, chr(97 + index) * length) for index in range(16)))
        await ledger.scored(number, [Score(index, ScoreOutcome.SCORED, -number) for index in range(16)], 0)
    await ledger.close()
    for groups in (all_pages(tmp_path, order=order), all_pages(tmp_path, order=order, last=4)):
        assert [group.order_number for group in groups] == [0, 1, 2, 3], [group.order_number for group in groups]
        for group in groups:
            assert [rollout.sample_index for rollout in group.rollouts] == list(range(16)), group.order_number
            assert group.num_rollouts == 16 and not any(rollout.text_bytes for rollout in group.rollouts)
        assert [len(rollout.text) for rollout in groups[3].rollouts] == [600 << 10] * 16


async def test_a_completion_that_is_larger_than_a_message_is_cut_and_says_so(ledger: Ledger, tmp_path: Path) -> None:
    prompt = replace(PROMPT, text="p" * (5 << 20))
    await ledger.issued(0, 0, "g0", prompt, "", 0, "")
    await ledger.sampled(0, [completion(0, "€" * (2 << 20)), completion(1, "b")], 0, "")
    said = VerifierScore("judge", ScoreOutcome.SCORED, 1.0, "because " * (1 << 20), 0.1)
    await ledger.scored(0, [Score(index, ScoreOutcome.SCORED, 1.0, (said,)) for index in range(2)], 0)
    await ledger.close()
    (group,) = all_pages(tmp_path)
    assert (len(group.prompt_text), group.prompt_text_bytes) == (1 << 20, 5 << 20)
    first, second = group.rollouts
    assert (first.text, first.text_bytes) == ("€" * ((1 << 20) // 3), 6 << 20)
    assert (second.text, second.text_bytes) == ("b", 0)
    assert second.score.verifier_scores[0].detail == ("because " * 125)


FAILED = Score(0, ScoreOutcome.FAILED, 0.0, (VerifierScore("gsm8k", ScoreOutcome.FAILED, 0.0, "timed out", 9.0),))


async def bring_to(ledger: Ledger, order_number: int, *rewards: float | None) -> None:
    """Brings a group to SCORED, with a completion for each reward; None is one that a verifier failed on."""
    await issue(ledger, order_number, *(completion(index) for index in range(len(rewards))))
    scores = [
        replace(FAILED, sample_index=index) if reward is None else Score(index, ScoreOutcome.SCORED, reward)
        for index, reward in enumerate(rewards)
    ]
    await ledger.scored(order_number, scores, 0)


@pytest.fixture(params=["checkpoints", "no checkpoint"])
async def folder(
    ledger: Ledger, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A ledger with ten groups: 2 steps of 4, the first after a skipped attempt at it, and 2 more groups."""
    monkeypatch.setattr(blocks, "GROUPS_PER_BLOCK", 3)
    for number, rewards in enumerate(
        [(0.0, 0.0), (1.0, None), (0.0, 1.0), (1.0, 1.0), (0.25, 0.5), (None, None), (0.5, 0.5), (0.5, 0.0)]
    ):
        await bring_to(ledger, number, *rewards)
    await issue(ledger, 8, completion(0))
    await issue(ledger, 9)

    async def step(version: int, trained: list[int], dropped: list[int]) -> None:
        groups = [TrainedGroup(number, 0, ()) for number in trained]
        reasons = [(number, "no_signal") for number in dropped]
        await ledger.step_done(Progress(version, 4 * version, 0), trained=groups, dropped=reasons)
        if request.param == "checkpoints":
            await write_snapshot(ledger, tmp_path / "snapshot.sqlite")

    await step(0, [], [0])
    await step(1, [1, 2], [3])
    await ledger.dropped(5, "timeout", 1)
    await step(2, [4, 7], [6])
    await ledger.close()
    return tmp_path


def numbers(folder: Path, **fields: Any) -> list[int]:
    listed: list[int] = []
    token = ""
    while True:
        page = list_rollouts(folder, pb.ListRolloutsRequest(page_token=token, **fields))
        listed += [group.order_number for group in page.groups]
        if not (token := page.next_page_token):
            return listed


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]),
        ({"step": 1}, [0, 1, 2, 3]),
        ({"step": 2}, [4, 5, 6, 7]),
        ({"step": 3}, []),
        ({"dropped": True}, [0, 3, 5, 6]),
        ({"failed": True}, [1, 5]),
        ({"last": 3}, [7, 8, 9]),
        ({"last": 99}, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]),
        ({"order": pb.ROLLOUT_ORDER_REWARD}, [1, 3, 2, 6, 4, 7, 0, 5, 8, 9]),
        ({"step": 1, "dropped": True}, [0, 3]),
        ({"failed": True, "dropped": True}, [5]),
        ({"dropped": True, "last": 2}, [5, 6]),
        ({"last": 6, "order": pb.ROLLOUT_ORDER_REWARD}, [6, 4, 7, 5, 8, 9]),
        ({"step": 2, "dropped": True, "failed": True, "last": 1, "order": pb.ROLLOUT_ORDER_REWARD}, [5]),
    ],
)
@pytest.mark.parametrize("page_size", [1, 3, 100])
def test_every_filter_and_order_gives_its_groups_whatever_the_pages(
    folder: Path, fields: dict[str, Any], expected: list[int], page_size: int
) -> None:
    assert numbers(folder, page_size=page_size, **fields) == expected


async def test_a_group_dropped_ahead_of_its_step_and_issued_again_after_a_restore_is_one_of_its_last_step_alone(
    ledger: Ledger,
    tmp_path: Path,
) -> None:
    await bring_to(ledger, 0, 0.0, 1.0)
    await bring_to(ledger, 1, 0.0, 0.0)
    await ledger.dropped(0, "timeout", 1)
    await ledger.dropped(1, "timeout", 1)
    assert numbers(tmp_path, step=2) == [0, 1]
    await bring_to(ledger, 0, 0.0, 1.0)
    assert numbers(tmp_path, step=2) == [1], "a group that is sampled again was dropped by no step"
    await ledger.step_done(Progress(5, 0, 0), trained=[TrainedGroup(0, 0, ())], dropped=[])
    await ledger.close()
    assert [numbers(tmp_path, step=step) for step in (2, 5)] == [[1], [0]]
    again = list_rollouts(tmp_path, pb.ListRolloutsRequest(step=5)).groups[0]
    assert (again.state, again.train_step, again.drop_reason) == ("TRAINED", 5, "")


async def test_the_next_page_stays_the_same_while_groups_are_issued(folder: Path) -> None:
    by_reward = pb.ListRolloutsRequest(page_size=2, last=4, order=pb.ROLLOUT_ORDER_REWARD)
    plain = pb.ListRolloutsRequest(page_size=8)
    tokens = [list_rollouts(folder, request).next_page_token for request in (by_reward, plain)]
    ledger = Ledger(folder / LEDGER, attempt=0)
    await ledger.open()
    await bring_to(ledger, 10, 1.0, 1.0)
    by_reward.page_token, plain.page_token = tokens
    pages = [list_rollouts(folder, request) for request in (by_reward, plain)]
    await ledger.close()
    assert [[group.order_number for group in page.groups] for page in pages] == [[8, 9], [8, 9, 10]]


@pytest.mark.parametrize(
    ("fields", "token"),
    [
        ({}, "x"), ({}, "²"), ({}, "9" * 30), ({}, "7:0.5"), ({}, "7::3:9"),
        ({"last": 2}, "7"), ({"last": 2}, "7:0.5:3"),
        ({"order": pb.ROLLOUT_ORDER_REWARD}, "7"), ({"order": pb.ROLLOUT_ORDER_REWARD}, "7:high"),
        ({"order": pb.ROLLOUT_ORDER_REWARD}, "7:0.5:3:9"),
    ],
)  # fmt: skip
def test_the_token_of_another_listing_is_refused(folder: Path, fields: dict[str, Any], token: str) -> None:
    with pytest.raises(InvalidArgument, match="page_token: "):
        list_rollouts(folder, pb.ListRolloutsRequest(page_token=token, **fields))


@pytest.mark.parametrize("field", ["step", "last", "page_size"])
def test_a_negative_number_is_refused_by_name(folder: Path, field: str) -> None:
    with pytest.raises(InvalidArgument, match=rf"{field}: .* 0 \(given: -1\)"):
        list_rollouts(folder, pb.ListRolloutsRequest(**{field: -1}))


def test_outcomes_and_rewards_are_found_without_reading_texts(folder: Path) -> None:
    request = pb.ListRolloutsRequest(step=1, failed=True, dropped=True, order=pb.ROLLOUT_ORDER_REWARD)
    statements: list[str] = []
    with reading(folder / LEDGER) as connection:
        assert connection is not None
        connection.set_trace_callback(statements.append)
        RolloutQuery(WholeLedger(connection, folder / SEGMENTS), request).places(10)
        connection.set_trace_callback(None)
        [statement] = [text.replace("Inf", "9e999") for text in statements if "WITH" in text]
        plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}")]
    for line in plan:
        assert "completions" not in line or "COVERING INDEX completions_by_outcome" in line, plan


def test_a_run_without_a_ledger_has_no_groups(tmp_path: Path) -> None:
    assert count_groups(tmp_path) == {} and not list_rollouts(tmp_path, pb.ListRolloutsRequest()).groups
    assert not list(tmp_path.iterdir()), "reading left a file behind"
    (tmp_path / LEDGER).touch()  # SQLite makes the file before the tables.
    assert count_groups(tmp_path) == {}


async def test_a_live_ledger_is_read_while_it_is_written_and_reading_leaves_no_file_behind(
    ledger: Ledger, tmp_path: Path
) -> None:
    await issue(ledger, 0)
    with closing(sqlite3.connect(tmp_path / LEDGER, isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        writer.execute("UPDATE groups SET state = 'DROPPED'")
        assert count_groups(tmp_path) == {"ISSUED": 1}, "a reader saw what was not committed"
        writer.execute("COMMIT")
    assert count_groups(tmp_path) == {"DROPPED": 1}
    await issue(ledger, 1)
    assert count_groups(tmp_path) == {"DROPPED": 1, "ISSUED": 1}
    await ledger.close()
    assert count_groups(tmp_path) == {"DROPPED": 1, "ISSUED": 1}
    assert {path.name for path in tmp_path.iterdir()} == {LEDGER, SEGMENTS}
