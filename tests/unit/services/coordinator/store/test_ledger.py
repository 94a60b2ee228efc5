import hashlib
import sqlite3
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from services.coordinator.store.ledger import Ledger
from services.coordinator.store.progress import Progress
from services.coordinator.store.reading import reading
from services.coordinator.store.rollouts import LEDGER, count_groups, list_rollouts
from services.coordinator.store.rows import TrainedGroup
from services.coordinator.store.schema import SCHEMA, SCHEMA_VERSION
from shoal.errors import DataLoss, FailedPrecondition
from shoal.grpo.moments import Moments
from shoal.rollout import (
    Completion,
    FinishReason,
    Prompt,
    RewardPart,
    Rollout,
    Score,
    ScoreOutcome,
    Support,
    VerifierScore,
    VersionSpan,
    WeightVersion,
)
from shoal.v1 import coordinator_pb2 as pb
from shoal.v1 import rollout_pb2

PROMPT = Prompt("sums:3", np.array([1, 2], np.int32), "1 + 1?", ())


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


async def test_a_group_that_is_issued_again_loses_its_first_samples(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite", attempt=0)
    await ledger.open()
    await bring_to_scored(ledger, 0)
    await ledger.issued(0, 3, "g0", PROMPT, "cd" * 16, 3, "its generator was lost")
    (group,) = groups(tmp_path)
    assert group.state == "ISSUED" and not group.rollouts and group.trace_id == "cd" * 16
    assert count_groups(tmp_path) == {"ISSUED": 1}
    await ledger.close()


async def test_a_group_that_is_issued_again_loses_its_drop_reason_and_its_greedy_reward(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / LEDGER, attempt=0)
    await ledger.open()
    await ledger.issued(0, 3, "g0", PROMPT, "", 2, "")
    await ledger.scored(0, [], 2, greedy=Score(0, ScoreOutcome.SCORED, 0.5))
    await ledger.dropped(0, "refused", 2)
    await ledger.issued(0, 3, "g0", PROMPT, "", 1, "")
    await ledger.close()
    with reading(tmp_path / LEDGER) as connection:
        assert connection is not None
        row = connection.execute("SELECT state, drop_reason, greedy_reward FROM groups").fetchone()
    assert row == ("ISSUED", "", None)


async def test_a_snapshot_is_one_file_with_the_ledger_of_that_moment(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite", attempt=0)
    await ledger.open()
    await bring_to_scored(ledger, 0)
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    await ledger.snapshot(snapshot / LEDGER)
    await ledger.dropped(0, "no_signal", 2)
    await ledger.close()
    assert [path.name for path in snapshot.iterdir()] == [LEDGER]
    assert groups(snapshot)[0].state == "SCORED"


async def test_tokens_are_deleted_once_a_step_has_used_their_group_up_and_text_stays(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite", attempt=0)
    await ledger.open()
    for order_number in (0, 1):
        await bring_to_scored(ledger, order_number)
    trained = TrainedGroup(0, 0, (Rollout(completion(0), 1.0, reward=1.0),))
    await ledger.step_done(Progress(3, 1, 2), trained=[trained], dropped=[])
    await ledger.forget_committed_tokens()
    await ledger.close()
    rows = sqlite3.connect(tmp_path / "ledger.sqlite").execute(
        "SELECT order_number, token_ids IS NULL, text FROM completions WHERE sample_index = 0 ORDER BY 1"
    )
    assert rows.fetchall() == [(0, 1, "2"), (1, 0, "2")]


async def test_supports_are_kept_and_deleted_with_their_tokens(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite", attempt=0)
    await ledger.open()
    await ledger.issued(0, 3, "g0", PROMPT, "ab" * 16, 2, "")
    support = Support(np.array([5, 9, 6, 7, 8], np.int32), np.array([2, 1, 2], np.int32))
    await ledger.sampled(0, [replace(completion(0), support=support), completion(1)], 2, "generator-0")
    query = "SELECT support_token_ids, support_counts FROM completions ORDER BY sample_index"
    connection = sqlite3.connect(tmp_path / "ledger.sqlite")
    assert connection.execute(query).fetchall() == [
        (support.token_ids.tobytes(), support.counts.tobytes()),
        (None, None),
    ]
    await ledger.dropped(0, "no_signal", 2)
    await ledger.forget_committed_tokens()
    await ledger.close()
    assert connection.execute(query).fetchall() == [(None, None)] * 2


async def test_the_error_of_a_damaged_ledger_names_its_path(tmp_path: Path) -> None:
    (tmp_path / "ledger.sqlite").write_text("this is no database" * 100)
    ledger = Ledger(tmp_path / "ledger.sqlite", attempt=0)
    with pytest.raises(DataLoss, match=r"ledger\.sqlite is damaged"):
        await ledger.open()
    await ledger.close()


async def test_issued_and_excluded_prompts_outlive_the_process(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite", attempt=0)
    await ledger.open()
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


async def test_reward_weight_and_token_advantages_are_kept_as_trained(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite", attempt=0)
    await ledger.open()
    await bring_to_scored(ledger, 0)
    values = np.array([0.5, 0.25, 0.125], np.float32)
    rollout = Rollout(completion(1), float(values.mean()), weight=1.5, reward=0.75, token_advantages=values)
    await ledger.step_done(Progress(3, 1, 2), trained=[TrainedGroup(0, 0, (rollout,))], dropped=[])
    await ledger.close()
    row = (
        sqlite3.connect(tmp_path / "ledger.sqlite")
        .execute("SELECT reward, weight, token_advantages FROM completions WHERE sample_index = 1")
        .fetchone()
    )
    assert row == (0.75, 1.5, values.tobytes()), f"the ledger holds {row}"


def test_a_change_of_the_tables_changes_the_version() -> None:
    tables = " ".join(SCHEMA.split())
    assert (SCHEMA_VERSION, hashlib.sha256(tables.encode()).hexdigest()[:16]) == (2, "7b1c63fd4cc9bab6"), (
        "the ledger's tables have changed: raise SCHEMA_VERSION, and put both here"
    )


@pytest.mark.parametrize(("version", "age"), [(0, "an older"), (SCHEMA_VERSION + 1, "a newer")])
async def test_the_refusal_of_a_ledger_of_another_version_names_both(tmp_path: Path, version: int, age: str) -> None:
    path = tmp_path / "ledger.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE groups (order_number INTEGER PRIMARY KEY)")
        connection.execute(f"PRAGMA user_version = {version}")
    ledger = Ledger(path, attempt=0)
    message = f"has version {version} .* reads version {SCHEMA_VERSION}: {age} Shoal wrote it. Resume the run"
    with pytest.raises(FailedPrecondition, match=message) as caught:
        await ledger.open()
    await ledger.close()
    assert caught.value.reason == "LEDGER_VERSION"
    with pytest.raises(FailedPrecondition, match=message), reading(path):
        pass
    with sqlite3.connect(path) as connection:
        names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    assert names == [("groups",)], f"the refusal left tables behind: {names}"


async def test_a_snapshot_has_the_ledgers_version(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite", attempt=0)
    await ledger.open()
    await ledger.snapshot(tmp_path / "snapshot.sqlite")
    await ledger.close()
    with reading(tmp_path / "snapshot.sqlite") as snapshot:
        assert snapshot is not None and snapshot.execute("SELECT COUNT(*) FROM groups").fetchone() == (0,)
