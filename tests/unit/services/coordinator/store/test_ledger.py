import asyncio
import errno
import hashlib
import os
import sqlite3
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from services.coordinator.store.ledger import Ledger
from services.coordinator.store.progress import Progress
from services.coordinator.store.reading import reading
from services.coordinator.store.rollouts import LEDGER, count_groups, list_rollouts
from services.coordinator.store.rows import TrainedGroup
from services.coordinator.store.segments.records import PayloadKind, messages_of
from services.coordinator.store.segments.series import SEGMENTS, SegmentWriter
from services.coordinator.store.tables.payloads import read_payload
from services.coordinator.store.tables.schema import SCHEMA, SCHEMA_VERSION
from shoal.errors import DataLoss, FailedPrecondition, ResourceExhausted
from shoal.grpo.moments import Moments
from shoal.rollout import Completion, FinishReason, Rollout, Support, VersionSpan, WeightVersion
from shoal.scores import RewardPart, Score, ScoreOutcome, VerifierScore
from shoal.v1 import coordinator_pb2 as pb
from shoal.v1 import learner_pb2, rollout_pb2
from shoal.wire import completion_to_wire
from tests.support.sampled import PROMPT
from tests.support.whole_checkpoints import write_snapshot


def completion(index: int) -> Completion:
    return Completion(
        sample_index=index,
        token_ids=np.array([5, 6, 7], np.int32),
        behavior_logprobs=np.array([-1, -2, np.nan], np.float32),
        finish_reason=FinishReason.STOP,
        version_spans=(VersionSpan(WeightVersion(0, 2), 0, 1), VersionSpan(WeightVersion(0, 3), 1, 3)),
        seed=2**53 - 1,
        text="2",
    )


def rows(path: Path, query: str) -> list[Any]:
    with reading(path) as connection:
        assert connection is not None
        return connection.execute(query).fetchall()


def groups(folder: Path) -> list[pb.RolloutGroup]:
    return list(list_rollouts(folder, pb.ListRolloutsRequest()).groups)


async def bring_to_scored(ledger: Ledger, order_number: int) -> None:
    await ledger.issued(order_number, order_number + 3, f"g{order_number}", PROMPT, "ab" * 16, 2, "")
    await ledger.sampled(order_number, [completion(0), completion(1)], 2, "generator-0")
    scores = [
        Score(
            0,
            ScoreOutcome.SCORED,
            1.0,
            (VerifierScore("gsm8k", ScoreOutcome.SCORED, 1.0, "2", 0.1, code_digest="3fa2"),),
            (RewardPart("verifiable", 1.0),),
        ),
        Score(1, ScoreOutcome.FAILED, 0.0, (VerifierScore("gsm8k", ScoreOutcome.FAILED, 0.0, "timed out", 9.0),)),
    ]
    await ledger.scored(order_number, scores, 2)


async def test_a_group_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite", attempt=0)
    assert await ledger.open() == Progress(0, 0, 0)
    await bring_to_scored(ledger, 0)
    trained = TrainedGroup(0, 1, (Rollout(completion(0), 0.5, reward=1.0),))
    await ledger.step_done(Progress(3, 1, 2), trained=[trained], dropped=[])
    (group,) = groups(tmp_path)
    assert (group.state, group.train_step, group.staleness) == ("TRAINED", 3, 1)
    first, second = group.rollouts
    spans = [(span.version.policy_version, span.start, span.end) for span in first.version_spans]
    assert spans == [(2, 0, 1), (3, 1, 3)] and first.num_tokens == 3
    assert first.advantage == 0.5 and not second.HasField("advantage")
    assert second.score.outcome == rollout_pb2.SCORE_OUTCOME_FAILED
    assert second.score.verifier_scores[0].detail == "timed out"
    await ledger.close()
    again = Ledger(tmp_path / "ledger.sqlite", attempt=1)
    assert await again.open() == Progress(3, 1, 2), "progress did not outlive the process"
    await again.close()


async def test_a_group_that_is_issued_again_loses_its_first_samples(ledger: Ledger, tmp_path: Path) -> None:
    await bring_to_scored(ledger, 0)
    await ledger.issued(0, 3, "g0", PROMPT, "cd" * 16, 3, "its generator was lost")
    (group,) = groups(tmp_path)
    assert group.state == "ISSUED" and not group.rollouts and group.trace_id == "cd" * 16
    assert count_groups(tmp_path) == {"ISSUED": 1}


async def test_a_group_that_is_issued_again_loses_its_drop_reason_and_its_greedy_reward(
    ledger: Ledger, tmp_path: Path
) -> None:
    await ledger.issued(0, 3, "g0", PROMPT, "", 2, "")
    await ledger.scored(0, [], 2, greedy=Score(0, ScoreOutcome.SCORED, 0.5))
    await ledger.dropped(0, "refused", 2)
    await ledger.issued(0, 3, "g0", PROMPT, "", 1, "")
    await ledger.close()
    assert rows(tmp_path / LEDGER, "SELECT state, drop_reason, greedy_reward FROM groups") == [("ISSUED", "", None)]


async def test_a_snapshot_is_one_file_with_the_ledger_of_that_moment(ledger: Ledger, tmp_path: Path) -> None:
    await bring_to_scored(ledger, 0)
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    await write_snapshot(ledger, snapshot / LEDGER)
    await ledger.dropped(0, "no_signal", 2)
    await ledger.close()
    assert [path.name for path in snapshot.iterdir()] == [LEDGER]
    assert groups(snapshot)[0].state == "SCORED"


def tokens_in(folder: Path) -> dict[int, list[rollout_pb2.Completion]]:
    """The sampled tokens that a ledger has, by order number."""
    found: dict[int, list[rollout_pb2.Completion]] = {}
    with reading(folder / LEDGER) as connection:
        assert connection is not None
        for (number,) in connection.execute("SELECT order_number FROM groups"):
            if record := read_payload(connection, folder / SEGMENTS, number, PayloadKind.TOKENS):
                found[number] = list(messages_of(record, rollout_pb2.Completion))
    return found


async def test_tokens_are_deleted_once_a_step_has_used_their_group_up_and_text_stays(
    ledger: Ledger, tmp_path: Path
) -> None:
    for order_number in (0, 1):
        await bring_to_scored(ledger, order_number)
    trained = TrainedGroup(0, 0, (Rollout(completion(0), 1.0, reward=1.0),))
    await ledger.step_done(Progress(3, 1, 2), trained=[trained], dropped=[])
    assert set(tokens_in(tmp_path)) == {0, 1}, "tokens go with a snapshot, not before"
    await write_snapshot(ledger, tmp_path / "snapshot.sqlite")
    await ledger.close()
    assert set(tokens_in(tmp_path)) == {1}
    assert [[rollout.text for rollout in group.rollouts] for group in groups(tmp_path)] == [["2", "2"]] * 2


async def test_tokens_log_probabilities_and_supports_are_kept_to_the_bit(ledger: Ledger, tmp_path: Path) -> None:
    await ledger.issued(0, 3, "g0", PROMPT, "ab" * 16, 2, "")
    support = Support(np.array([5, 9, 6, 7, 8], np.int32), np.array([2, 1, 2], np.int32))
    sampled = [replace(completion(0), support=support), completion(1)]
    await ledger.sampled(0, sampled, 2, "generator-0")
    assert tokens_in(tmp_path)[0] == [completion_to_wire(each, with_text=False) for each in sampled]


async def test_the_error_of_a_damaged_ledger_names_its_path(tmp_path: Path) -> None:
    (tmp_path / "ledger.sqlite").write_text("this is no database" * 100)
    ledger = Ledger(tmp_path / "ledger.sqlite", attempt=0)
    with pytest.raises(DataLoss, match=r"ledger\.sqlite is damaged"):
        await ledger.open()
    await ledger.close()


async def test_issued_and_excluded_prompts_outlive_the_process(ledger: Ledger, tmp_path: Path) -> None:
    assert (await ledger.issue_state()).next_position == 0
    for order_number in (0, 1):
        await bring_to_scored(ledger, order_number)
    progress = Progress(3, 1, 2, 0.25, Moments(7, 0.1, 1 / 3))
    trained = [TrainedGroup(0, 0, (Rollout(completion(0), 1.0, reward=1.0),))]
    await ledger.step_done(progress, trained=trained, dropped=[], excluded=[(0, "sums:3")])
    await ledger.close()
    again = Ledger(tmp_path / "ledger.sqlite", attempt=1)
    assert await again.open() == progress, "to the last bit"
    state = await again.issue_state()
    assert (state.assigned, state.next_position, state.excluded) == ({1: 4}, 5, {"sums:3"})
    await again.close()


async def test_reward_weight_and_token_advantages_are_kept_as_trained(ledger: Ledger, tmp_path: Path) -> None:
    await bring_to_scored(ledger, 0)
    values = np.array([0.5, 0.25, 0.125], np.float32)
    rollout = Rollout(completion(1), float(values.mean()), weight=1.5, reward=0.75, token_advantages=values)
    await ledger.step_done(Progress(3, 1, 2), trained=[TrainedGroup(0, 0, (rollout,))], dropped=[])
    await ledger.close()
    with reading(tmp_path / LEDGER) as connection:
        assert connection is not None
        row = connection.execute("SELECT reward, weight FROM completions WHERE sample_index = 1").fetchone()
        record = read_payload(connection, tmp_path / SEGMENTS, 0, PayloadKind.TOKEN_ADVANTAGES)
    assert row == (0.75, 1.5), f"the ledger holds {row}"
    assert record is not None
    (stored,) = messages_of(record, learner_pb2.TrainRollout)
    assert (stored.completion.sample_index, stored.token_advantages) == (1, values.tobytes())


def test_a_change_of_the_tables_changes_the_version() -> None:
    tables = " ".join(SCHEMA.split())
    assert (SCHEMA_VERSION, hashlib.sha256(tables.encode()).hexdigest()[:16]) == (5, "af79cb3310635859"), (
        "the ledger's tables have changed: raise SCHEMA_VERSION, and put both here"
    )


@pytest.mark.parametrize(("version", "age"), [(0, "an older"), (1, "an older"), (SCHEMA_VERSION + 1, "a newer")])
async def test_the_refusal_of_a_ledger_of_another_version_names_both(tmp_path: Path, version: int, age: str) -> None:
    path = tmp_path / "ledger.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE groups (order_number INTEGER PRIMARY KEY)")
        connection.execute(f"PRAGMA user_version = {version}")
    ledger = Ledger(path, attempt=0)
    message = rf"tables of version {version}, .* versions 2 to {SCHEMA_VERSION}: {age} version"
    with pytest.raises(FailedPrecondition, match=message) as caught:
        await ledger.open()
    await ledger.close()
    assert caught.value.reason == "LEDGER_VERSION"
    with pytest.raises(FailedPrecondition, match=message), reading(path):
        pass
    with sqlite3.connect(path) as connection:
        names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    assert names == [("groups",)], f"the refusal left tables behind: {names}"


async def test_groups_are_issued_while_a_snapshot_is_copied(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bring_to_scored(ledger, 0)
    copying, may_go_on = asyncio.Event(), threading.Event()
    loop, sync = asyncio.get_running_loop(), SegmentWriter.sync

    def held_sync(*arguments: Any) -> None:
        loop.call_soon_threadsafe(copying.set)
        assert may_go_on.wait(60), "the test did not let the snapshot end"
        sync(*arguments)

    monkeypatch.setattr(SegmentWriter, "sync", held_sync)
    snapshot = asyncio.create_task(write_snapshot(ledger, tmp_path / "snapshot.sqlite"))
    await copying.wait()
    await bring_to_scored(ledger, 1)
    assert count_groups(tmp_path) == {"SCORED": 2} and not snapshot.done()
    may_go_on.set()
    (text, tokens) = await snapshot
    await ledger.close()
    assert rows(tmp_path / "snapshot.sqlite", "SELECT order_number FROM groups") == [(0,)]
    for digest in (text, tokens):
        named = (tmp_path / SEGMENTS / digest.name).read_bytes()[: digest.num_bytes]
        assert hashlib.sha256(named).hexdigest() == digest.sha256, f"{digest} is not what the file has"


async def test_a_damaged_segment_costs_the_texts_in_it_alone(ledger: Ledger, tmp_path: Path) -> None:
    for order_number in (0, 1):
        await bring_to_scored(ledger, order_number)
    await ledger.close()
    (text,) = (tmp_path / SEGMENTS).glob("text-*")
    content = bytearray(text.read_bytes())
    content[-1] ^= 1
    text.write_bytes(content)
    first, second = groups(tmp_path)
    assert (first.prompt_text, first.rollouts[0].text) == ("1 + 1?", "2")
    assert second.rollouts[0].score.reward == 1.0 and not second.rollouts[0].score.verifier_scores
    text.unlink()
    for group in groups(tmp_path):
        assert "text-00000001.segment cannot be read" in group.prompt_text, group.prompt_text
        assert all("[lost: " in rollout.text for rollout in group.rollouts)


async def test_the_number_of_a_segment_that_is_gone_is_not_used_again(ledger: Ledger, tmp_path: Path) -> None:
    await bring_to_scored(ledger, 0)
    await ledger.close()
    next((tmp_path / SEGMENTS).glob("tokens-00000002.*")).unlink()  # A mirror does not have it.
    resumed = Ledger(tmp_path / LEDGER, attempt=1)
    await resumed.open()
    await bring_to_scored(resumed, 1)
    await resumed.close()
    names = sorted(path.name for path in (tmp_path / SEGMENTS).iterdir())
    assert names == ["text-00000001.segment", "text-00000003.segment", "tokens-00000004.segment"], names


async def test_a_full_disk_is_reported_and_leaves_the_ledger_as_it_was(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bring_to_scored(ledger, 0)
    pwrite = os.pwrite

    def half_of_it(file: int, data: memoryview, offset: int) -> int:
        if len(data) < 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return pwrite(file, data[: len(data) // 2], offset)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", half_of_it)
        with pytest.raises(ResourceExhausted, match=r"ledger\.sqlite .*free some space"):
            await ledger.issued(1, 4, "g1", PROMPT, "", 2, "")
    assert count_groups(tmp_path) == {"SCORED": 1}
    await bring_to_scored(ledger, 1)
    assert [group.prompt_text for group in groups(tmp_path)] == ["1 + 1?"] * 2


OLD_TABLES = """
CREATE TABLE groups (order_number INTEGER PRIMARY KEY, group_id TEXT NOT NULL UNIQUE, prompt_id TEXT NOT NULL,
    position INTEGER NOT NULL, prompt_text TEXT NOT NULL, trace_id TEXT NOT NULL, state TEXT NOT NULL,
    num_issues INTEGER NOT NULL, drop_reason TEXT NOT NULL DEFAULT '', train_step INTEGER NOT NULL DEFAULT 0,
    staleness INTEGER, greedy_reward REAL);
CREATE TABLE completions (order_number INTEGER NOT NULL REFERENCES groups, sample_index INTEGER NOT NULL,
    text TEXT NOT NULL, num_tokens INTEGER NOT NULL, finish_reason TEXT NOT NULL, seed INTEGER NOT NULL,
    version_spans TEXT NOT NULL, token_ids BLOB, behavior_logprobs BLOB, support_token_ids BLOB, support_counts BLOB,
    outcome TEXT, reward REAL, verifier_scores TEXT, reward_parts TEXT, advantage REAL, token_advantages BLOB,
    weight REAL, PRIMARY KEY (order_number, sample_index));
CREATE TABLE transitions (sequence INTEGER PRIMARY KEY AUTOINCREMENT, order_number INTEGER NOT NULL REFERENCES groups,
    state TEXT NOT NULL, time_s REAL NOT NULL, attempt INTEGER NOT NULL, policy_version INTEGER NOT NULL,
    detail TEXT NOT NULL);
CREATE TABLE progress (singleton INTEGER PRIMARY KEY CHECK (singleton = 0), policy_version INTEGER NOT NULL,
    next_order_number INTEGER NOT NULL, num_episodes INTEGER NOT NULL, kl_coef REAL, reward_count INTEGER NOT NULL,
    reward_mean REAL NOT NULL, reward_squares REAL NOT NULL);
CREATE TABLE excluded_prompts (prompt_id TEXT PRIMARY KEY, order_number INTEGER NOT NULL REFERENCES groups);
INSERT INTO groups VALUES (0, 'g0', 'sums:3', 3, '1 + 1?', '', 'TRAINED', 1, '', 1, 0, NULL);
INSERT INTO completions VALUES (0, 0, '2', 3, 'stop', 7, '[["0.0", 0, 3]]', x'05000000', x'00000000', NULL, NULL,
    'scored', 1.0, '[["gsm8k", "scored", 1.0, "found 2", 0.1, []]]', '[["verifiable", 1.0]]', 0.5, NULL, 1.0);
INSERT INTO progress VALUES (0, 1, 1, 1, NULL, 0, 0, 0);
PRAGMA user_version = 2;
"""
"""What version 2 of the tables has after one step."""


async def test_transactions_that_fail_leave_nothing_in_the_segments(ledger: Ledger, tmp_path: Path) -> None:
    await bring_to_scored(ledger, 0)

    def sizes() -> dict[str, int]:
        return {path.name: path.stat().st_size for path in (tmp_path / SEGMENTS).iterdir()}

    before = sizes()
    for _ in range(20):
        with pytest.raises(DataLoss, match="UNIQUE"):
            await ledger.sampled(0, [completion(0), completion(1)], 2, "again")
    assert sizes() == before
    await bring_to_scored(ledger, 1)
    await ledger.close()
    assert [[rollout.text for rollout in group.rollouts] for group in groups(tmp_path)] == [["2", "2"], ["2", "2"]]


async def test_a_ledger_of_the_version_before_is_read_and_goes_on(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / LEDGER) as connection:
        connection.executescript(OLD_TABLES)
    connection.close()
    before = groups(tmp_path)
    ledger = Ledger(tmp_path / LEDGER, attempt=1)
    assert await ledger.open() == Progress(1, 1, 1)
    await bring_to_scored(ledger, 1)
    await write_snapshot(ledger, tmp_path / "snapshot.sqlite")
    await ledger.close()
    assert rows(tmp_path / LEDGER, "SELECT order_number FROM groups") == [(1,)], "the other is in a block"
    first, second = groups(tmp_path)
    assert [first] == before, f"its resume changed {before[0]} to {first}"
    (rollout,) = first.rollouts
    assert (first.prompt_text, rollout.text, rollout.score.verifier_scores[0].detail) == ("1 + 1?", "2", "found 2")
    assert (second.state, second.rollouts[0].text) == ("SCORED", "2")


async def test_a_ledger_whose_tables_are_damaged_is_data_loss_and_a_locked_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / LEDGER
    ledger = Ledger(path, attempt=0)
    await ledger.open()
    other = sqlite3.connect(path)
    other.execute("ALTER TABLE transitions RENAME COLUMN detail TO details")
    other.commit()
    with pytest.raises(DataLoss, match="is damaged"):
        await ledger.dropped(0, "no signal", 0)
    other.execute("BEGIN IMMEDIATE")
    assert ledger._connection is not None
    await ledger._run(lambda connection: connection.execute("PRAGMA busy_timeout = 1"))
    with pytest.raises(FailedPrecondition, match="database is locked"):
        await ledger.dropped(0, "no signal", 0)
    other.close()
    await ledger.close()
