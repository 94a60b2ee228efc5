"""Groups that steps have used up, in blocks beside the ledger's tables."""

import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from services.coordinator.store.ledger import Ledger
from services.coordinator.store.progress import Progress
from services.coordinator.store.replacement import replace_ledger
from services.coordinator.store.rollouts import LEDGER, count_drop_reasons, count_groups, list_rollouts, whole_ledger
from services.coordinator.store.rows import TrainedGroup
from services.coordinator.store.segments.series import SEGMENTS
from services.coordinator.store.tables import blocks
from shoal.rollout import Prompt, Rollout
from shoal.scores import Score, ScoreOutcome
from shoal.v1 import coordinator_pb2 as pb
from tests.support.sampled import completion
from tests.support.whole_checkpoints import write_snapshot


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "GROUPS_PER_BLOCK", 3)


async def take_step(ledger: Ledger, step: int) -> None:
    """Trains on the first of a step's two groups and drops the second; one more is left in flight."""
    for number in (2 * step - 2, 2 * step - 1, 2 * step):
        prompt = Prompt(f"sums:{number}", np.arange(3, dtype=np.int32), f"question {number}", ())
        await ledger.issued(number, 10 + number, f"g{number}", prompt, "ab", step - 1, "")
        await ledger.sampled(
            number, [completion(index, f"answer {index}", num_tokens=8) for index in (0, 1)], step - 1, "generator-0"
        )
        await ledger.scored(number, [Score(index, ScoreOutcome.SCORED, 1.0) for index in (0, 1)], step - 1)
    trained = TrainedGroup(2 * step - 2, 1, (Rollout(completion(num_tokens=8), 0.5, weight=2.0, reward=1.0),))
    await ledger.step_done(Progress(step, 2 * step, 4 * step), trained=[trained], dropped=[(2 * step - 1, "no_signal")])


async def run_of(folder: Path, num_steps: int, *, every_steps: int) -> None:
    """Writes the ledger of a run, with a snapshot now and then."""
    ledger = Ledger(folder / LEDGER, attempt=0)
    await ledger.open()
    for step in range(1, num_steps + 1):
        await take_step(ledger, step)
        if step % every_steps == 0:
            await write_snapshot(ledger, folder / f"step-{step}.sqlite")
    await ledger.close()


def contents(folder: Path) -> list[list[object]]:
    """All that the ledger says of its groups, times aside."""
    columns = "sequence, order_number, state, attempt, policy_version, detail"
    queries = ("* FROM groups", "* FROM completions", f"{columns} FROM transitions")
    with closing(whole_ledger(folder)) as ledger:
        return [ledger.execute(f"SELECT {query} ORDER BY 1, 2").fetchall() for query in queries]


async def test_a_block_changes_nothing_that_the_ledger_says_of_a_group(tmp_path: Path) -> None:
    folders = [tmp_path / "blocks", tmp_path / "tables"]
    for folder, every_steps in zip(folders, (2, 99), strict=True):
        folder.mkdir()
        await run_of(folder, 5, every_steps=every_steps)
    with sqlite3.connect(folders[0] / LEDGER) as connection:
        left = [number for (number,) in connection.execute("SELECT order_number FROM groups ORDER BY 1")]
        ranges = connection.execute("SELECT first_order_number, last_order_number FROM blocks").fetchall()
    connection.close()
    assert (left, ranges) == ([8, 9, 10], [(0, 2), (3, 3), (4, 6), (7, 7)])
    for say in (contents, count_groups, count_drop_reasons):
        assert say(folders[0]) == say(folders[1])
    for folder in folders:
        assert count_groups(folder) == {"TRAINED": 5, "DROPPED": 5, "SCORED": 1}, folder
    pages = [list_rollouts(folder, pb.ListRolloutsRequest()) for folder in folders]
    assert pages[0] == pages[1] and pages[0].groups[3].rollouts[1].text == "answer 1"


async def test_a_snapshot_has_the_groups_that_the_next_step_needs_and_no_others(tmp_path: Path) -> None:
    await run_of(tmp_path, 40, every_steps=2)
    sizes = [(tmp_path / f"step-{step}.sqlite").stat().st_size for step in range(4, 41, 2)]
    assert max(sizes) == min(sizes), f"the bytes of the snapshots: {sizes}"


async def test_what_a_checkpoint_voids_is_in_no_block_that_it_knows(tmp_path: Path) -> None:
    await run_of(tmp_path, 6, every_steps=2)
    after_four = contents(tmp_path)[0][:8]
    replace_ledger(tmp_path / LEDGER, tmp_path / "step-4.sqlite")
    resumed = Ledger(tmp_path / LEDGER, attempt=1)
    assert await resumed.open() == Progress(4, 8, 16)
    state = await resumed.issue_state()
    assert (state.assigned, state.next_position) == ({8: 18}, 19), "a position is assigned anew, or left out"
    groups = contents(tmp_path)[0]
    assert groups[:8] == after_four and [row[0] for row in groups] == list(range(9)), groups  # type: ignore[index]
    for step in (5, 6):
        await take_step(resumed, step)
        await write_snapshot(resumed, tmp_path / "again.sqlite")
    await resumed.close()
    assert count_groups(tmp_path) == {"TRAINED": 6, "DROPPED": 6, "SCORED": 1}
    names = sorted(path.name for path in (tmp_path / SEGMENTS).glob("groups-*"))
    assert names == ["groups-00000003.segment", "groups-00000006.segment"], names


async def test_positions_go_on_after_blocks_that_have_all_groups(ledger: Ledger, tmp_path: Path) -> None:
    await take_step(ledger, 1)
    await ledger.step_done(Progress(1, 3, 6), trained=[], dropped=[(2, "no_signal")])
    await write_snapshot(ledger, tmp_path / "snapshot.sqlite")
    state = await ledger.issue_state()
    await ledger.close()
    assert (state.assigned, state.next_position) == ({}, 13)


async def test_the_groups_of_a_ledger_of_version_3_go_to_blocks_with_its_next_snapshot(tmp_path: Path) -> None:
    await run_of(tmp_path, 3, every_steps=99)
    with closing(sqlite3.connect(tmp_path / LEDGER)) as connection:
        connection.executescript("DROP TABLE blocks; DROP TABLE block_counts; PRAGMA user_version = 3")
    before = contents(tmp_path)
    assert count_groups(tmp_path) == {"TRAINED": 3, "DROPPED": 3, "SCORED": 1}
    resumed = Ledger(tmp_path / LEDGER, attempt=1)
    assert await resumed.open() == Progress(3, 6, 12)
    await write_snapshot(resumed, tmp_path / "snapshot.sqlite")
    await resumed.close()
    with closing(sqlite3.connect(tmp_path / LEDGER)) as connection:
        assert connection.execute("SELECT order_number FROM groups").fetchall() == [(6,)]
    assert contents(tmp_path) == before


async def test_a_lost_block_costs_its_own_groups_alone(tmp_path: Path) -> None:
    await run_of(tmp_path, 4, every_steps=2)
    (segment,) = (tmp_path / SEGMENTS).glob("groups-*")
    content = bytearray(segment.read_bytes())
    content[20] ^= 1
    segment.write_bytes(content)
    groups = list_rollouts(tmp_path, pb.ListRolloutsRequest()).groups
    assert [group.order_number for group in groups] == list(range(9))
    assert [group.state for group in groups] == ["LOST"] * 3 + [
        "DROPPED",
        "TRAINED",
        "DROPPED",
        "TRAINED",
        "DROPPED",
        "SCORED",
    ]
    assert "groups-00000003.segment is damaged" in groups[0].prompt_text
    assert [group.order_number for group in list_rollouts(tmp_path, pb.ListRolloutsRequest(last=2)).groups] == [7, 8]
    segment.unlink()
    assert [group.state for group in list_rollouts(tmp_path, pb.ListRolloutsRequest()).groups] == ["LOST"] * 8 + [
        "SCORED"
    ]
