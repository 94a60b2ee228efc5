"""How often a run restarts by itself, and after which pauses."""

from pathlib import Path

import pytest

from services.coordinator.run.active_run import MAX_PAUSE_S, count_restart, describe_failure
from services.coordinator.store.run_record import RunRecord
from shoal.error_reasons import ErrorReason
from shoal.errors import FailedPrecondition
from tests.support.wordings import has_all


def test_pauses_between_restarts_without_a_new_step_grow_and_are_bounded(tmp_path: Path) -> None:
    record = RunRecord("run", tmp_path)
    pauses = [count_restart(record, 10, "it died") for _ in range(10)]
    assert pauses == [0, 1, 2, 4, 8, 16, MAX_PAUSE_S, MAX_PAUSE_S, MAX_PAUSE_S, MAX_PAUSE_S], pauses


def test_only_a_step_that_no_attempt_has_trained_lets_restarts_count_from_zero(tmp_path: Path) -> None:
    record = RunRecord("run", tmp_path)
    record.step_trained(1, {})
    record.step_trained(2, {})
    count_restart(record, 2, "first death")
    record.step_trained(1, {})  # Repeated after a restore.
    record.attempt_begins()
    count_restart(record, 2, "second death")
    with pytest.raises(FailedPrecondition) as caught:
        count_restart(record, 2, "third death")
    assert caught.value.reason == ErrorReason.RESTARTS_SPENT and " 2 times " in caught.value.message
    deaths = ("third death; ", "attempt 1 at step 1: second death", "attempt 0 at step 2: first death")
    assert has_all(caught.value.message, *deaths), caught.value
    record.step_trained(3, {})
    assert count_restart(record, 2, "fourth death") == 0


def test_the_restarts_are_counted_over_the_end_of_the_coordinator(tmp_path: Path) -> None:
    record = RunRecord("run", tmp_path)
    count_restart(record, 1, "it died")
    record.save()
    with pytest.raises(FailedPrecondition, match="it died again"):
        count_restart(RunRecord.load_as_left(tmp_path), 1, "it died again")


def test_the_message_of_a_failed_run_names_the_checkpoint_to_resume_from(tmp_path: Path) -> None:
    record = RunRecord("run", tmp_path / "run", last_checkpoint_id="step-00000004")
    message = describe_failure(record, FailedPrecondition("the learner is gone"))
    command = f"shoal train --resume run --data-dir {tmp_path}"
    assert has_all(message, "the learner is gone; ", " step-00000004 ", command), message
