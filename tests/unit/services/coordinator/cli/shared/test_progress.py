"""Lines of progress."""

import errno
import io
import logging
import os
import sys
from pathlib import Path

import pytest
from google.protobuf import json_format
from google.protobuf.struct_pb2 import Struct

from services.coordinator.cli.shared.progress import LEGEND, ProgressView, evaluation_summary, step_line
from shoal.v1 import coordinator_pb2 as pb
from tests.support.wordings import has_all, numbers_in


def _event(kind: str, message: str = "", **attributes: object) -> pb.RunEvent:
    return pb.RunEvent(kind=kind, message=message, attributes=json_format.ParseDict(attributes, Struct()))


def test_a_step_is_one_line_with_every_metric_that_was_measured() -> None:
    line = step_line(
        3,
        20,
        {
            "objective/scores": 0.3125,
            "objective/verifiable_correct_rate": 0.3125,
            "loss/policy_avg": -0.01234,
            "val/logprob_gap_mean": 0.00021,
            "staleness/max": 1.0,
            "val/num_step_tokens": 2000.0,
            "time/step": 8.0,
        },
    )
    assert line.split("  ") == [
        "step", "3/20", "reward 0.31", "correct 31%", "loss -0.0123", "gap 2.1e-04", "stale 1", "tok/s 250", "8.0 s",
    ]  # fmt: skip


def test_metrics_that_were_not_measured_are_left_out() -> None:
    assert step_line(1, 5, {"objective/scores": 0.0}) == "step 1/5  reward 0.00"


def test_a_combined_reward_is_followed_by_the_means_of_its_parts() -> None:
    metrics = {
        "objective/scores": 0.13,
        "objective/non_score_reward": 0.0,
        "objective/verifiable_correct_rate": 0.25,
        "objective/gsm8k_reward": 0.25,
        "objective/gsm8k_correct_rate": 0.25,
        "objective/soft_overlong_reward": -0.2,
        "objective/soft_overlong_correct_rate": 0.0,
        "reward/verifiable": 0.05,
        "reward/cosine": 0.08,
        "batch/all_wrong_prompts": 2.0,
    }
    parts = "gsm8k 0.25, soft_overlong -0.20, cosine 0.08"
    assert step_line(1, 5, metrics).split("  ")[1:] == [f"reward 0.13 ({parts})", "correct 25%", "all wrong 2"]
    assert step_line(1, 5, metrics | {"batch/all_wrong_prompts": 0.0}).endswith("correct 25%")
    # Without a verifier's name there is nothing to tell apart; without a verdict there is no rate.
    assert step_line(1, 5, {"objective/scores": 0.1, "reward/verifiable": 0.0, "reward/environment": 0.1}) == (
        "step 1/5  reward 0.10"
    )


def test_what_correct_means_is_told_once_where_several_verifiers_judge(capsys) -> None:  # type: ignore[no-untyped-def]
    view = ProgressView()
    metrics = {"batch/all_wrong_prompts": 1.0}
    for step in (1, 2):
        view.show(_event("step", step=step, num_steps=2, metrics=metrics, correct_by=["gsm8k", "r1_format"]))
    written = capsys.readouterr().out
    assert written.count("gsm8k, r1_format") == 1
    assert written.count("grpo.difficulty_low = 0") == 1 and written.count("all wrong 1") == 2


def _evaluation(before: float, after: float, low: float, high: float, num_questions: int) -> dict[str, object]:
    change = {"since_step": 0, "rate_before": before, "rate": after, "low": low, "high": high}
    return {"policy_version": 20, "change": {**change, "num_questions": num_questions}}


def test_the_summary_compares_the_first_with_the_last_evaluation() -> None:
    text = evaluation_summary(_evaluation(0.12, 0.61, 0.41, 0.559, 200))
    assert numbers_in(text) == ["12.0%", "0", "61.0%", "20", "49.0", "95%", "+41.0", "+55.9", "200"], text
    assert "better" in text and "noise" not in text


def test_the_summary_calls_a_gain_that_may_be_chance_noise_and_a_worse_policy_worse() -> None:
    assert has_all(evaluation_summary(_evaluation(0.5, 0.65, -0.0325, 0.3052, 20)), "15.0 points better", "noise")
    assert "25.0 points worse" in evaluation_summary(_evaluation(0.5, 0.25, -0.4, -0.1, 80))


def test_one_evaluation_alone_has_no_summary() -> None:
    assert evaluation_summary({"policy_version": 0, "correct_rate": 0.5}) == "" == evaluation_summary({})


def test_events_are_lines_with_the_seconds_and_the_summary_names_the_model(capsys) -> None:  # type: ignore[no-untyped-def]
    view = ProgressView()
    view.show(_event("worker_lost", "generator 127.0.0.1:7 is lost: no heartbeat for 15 s"))
    view.show(_event("publish", "version 3 is published"))
    view.show(_event("step", step=2, num_steps=5, remaining_s=125.0, metrics={"objective/scores": 0.5}))
    view.remember(_event("evaluation", policy_version=0, correct_rate=0.1, num_prompts=10))
    view.show(_event("evaluation", "45.0%", **_evaluation(0.1, 0.45, 0.1, 0.6, 40)))
    view.show(_event("exported", "the model is in /m", path="/m"))
    view.summarize(pb.Run(path="/runs/a"))
    lines = capsys.readouterr().out.splitlines()
    texts = [line.partition(" s] ")[2] for line in lines]
    assert all(line.startswith("[") for line in lines), lines
    lost = "generator 127.0.0.1:7 is lost: no heartbeat for 15 s"
    assert texts[:2] == [lost, LEGEND] and texts[2].split("  ") == ["step 2/5", "reward 0.50", "left 2 min 5 s"]
    assert "35.0 points better" in texts[5]
    assert texts[6:] == ["the trained model: /m", "the run's folder: /runs/a"]


def test_the_summary_leaves_out_what_a_restore_discarded(capsys) -> None:  # type: ignore[no-untyped-def]
    view = ProgressView()
    for step in (10, 20):
        view.remember(_event("evaluation", **{**_evaluation(0.1, 0.45, 0.1, 0.6, 40), "policy_version": step}))
    view.remember(_event("exported", path="/m"))
    view.remember(_event("restored", attempt=1, policy_version=10))
    view.summarize(pb.Run(path="/runs/a"))
    view.remember(_event("restored", attempt=2, policy_version=5))
    view.summarize(pb.Run(path="/runs/a"))
    first, *folders = [line.partition(" s] ")[2] for line in capsys.readouterr().out.splitlines()]
    assert "45.0% at step 10" in first, first
    assert folders == ["the run's folder: /runs/a"] * 2


def test_the_legend_precedes_the_first_step_alone_and_completions_without_a_reward_follow_theirs(capsys) -> None:  # type: ignore[no-untyped-def]
    view = ProgressView()
    failures = {"num_failed": 3, "num_unscorable": 0, "num_completions": 8, "first_error": "mine: KeyError: 'x'"}
    view.show(_event("step", step=1, num_steps=2, metrics={}))
    view.show(_event("step", step=2, num_steps=2, metrics={}, unscored=failures))
    texts = [line.partition(" s] ")[2] for line in capsys.readouterr().out.splitlines()]
    assert texts[:3] == [LEGEND, "step 1/2", "step 2/2"]
    assert has_all(texts[3], "3 of 8", "mine: KeyError: 'x'")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_on_a_terminal_a_line_of_progress_is_cut_to_one_row_and_replaced_by_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr("sys.stdout", Terminal())
    view = ProgressView()
    view.show(_event("progress", "waiting for workers: " + "no learner is registered " * 3))
    view.show(_event("progress", "waiting for workers: the learner is reading the weights"))
    view.show(_event("worker_joined", "the learner is ready"))
    view.show(_event("state", "training"))
    first, second, third, fourth, _ = sys.stdout.getvalue().split("\n")  # type: ignore[attr-defined]
    assert "\u2026" in first and "registered" not in first, first
    assert second.startswith("\x1b[1A\x1b[2K") and third.startswith("\x1b[1A\x1b[2K"), (second, third)
    assert "\x1b[1A" not in fourth, fourth


def test_logs_are_lines_of_progress_while_they_are_shown(capsys) -> None:  # type: ignore[no-untyped-def]
    view = ProgressView()
    with view.showing_logs("shoal.models"):
        logging.getLogger("shoal.models.gguf_folder").info("unpacking: tensor %d of %d", 91, 272)
        logging.getLogger("shoal.data").info("something else")
    logging.getLogger("shoal.models.gguf_folder").info("later")
    (line,) = capsys.readouterr().out.splitlines()
    assert line.endswith("91 of 272"), line


class _NoOutput(io.StringIO):
    """A standard output that cannot be written, above a file of its own."""

    def __init__(self, code: int, descriptor: int) -> None:
        super().__init__()
        self._code, self._descriptor = code, descriptor

    def fileno(self) -> int:
        return self._descriptor

    def write(self, text: str) -> int:
        raise OSError(self._code, os.strerror(self._code))


@pytest.mark.parametrize("code", [errno.EPIPE, errno.EIO, errno.ENOSPC])
def test_progress_of_a_run_outlives_its_output_and_that_of_a_watch_does_not(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (tmp_path / "log").open("wb") as log:
        monkeypatch.setattr(sys, "stdout", _NoOutput(code, log.fileno()))
        with pytest.raises(OSError, match=os.strerror(code)):
            ProgressView().write("step 1")
        ProgressView(outlives_output=True).write("step 1")
        is_lost = os.fstat(log.fileno()).st_ino != (tmp_path / "log").stat().st_ino
        assert is_lost == (code != errno.ENOSPC), "a full disk may have room again; whoever has gone does not return"


def test_what_pauses_a_run_is_said_once_and_bold(monkeypatch: pytest.MonkeyPatch) -> None:
    text, styles = "the verifier judge failed: the run is paused", list[str]()
    view = ProgressView()
    monkeypatch.setattr(view, "_print", lambda line, kind, style: styles.append(f"{style}: {line.partition('] ')[2]}"))
    view.show(_event("reward_outage", text))
    view.show(_event("state", text, state="PAUSED"))
    view.show(_event("state", "full", state="PAUSED"))
    view.show(_event("state", "step 0", state="RUNNING"))
    assert styles == [f"bold red: {text}", "bold yellow: full", "dim: step 0"], styles


def test_of_many_skipped_steps_in_a_row_few_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    view = ProgressView()
    for number in range(1, 21):
        view.show(_event("step_skipped", f"({number} in a row)", num_in_a_row=number))
    shown = [line.partition("(")[2] for line in capsys.readouterr().out.splitlines()]
    assert shown == [f"{number} in a row)" for number in (1, 2, 4, 8, 16)], shown


def test_what_befalls_many_groups_at_once_is_told_once_a_step(capsys: pytest.CaptureFixture[str]) -> None:
    view = ProgressView()
    for step in (1, 2):
        for group in range(64):
            name = f"group-{group:08d}"
            view.show(_event("group_reissued", f"{name} is issued again: generator g ended", group_id=name))
            view.show(_event("scoring_repeated", f"{name} is scored again: reward r ended", group_id=name))
            view.show(
                _event("episode_replayed", f"{group}/0 is played again: episode {group}/0: late", episode=f"{group}/0")
            )
        view.show(_event("group_reissued", f"{name} is issued again: generator h ended", group_id=name))
        view.show(_event("step", step=step, num_steps=5, metrics={}))
    reasons = [line.rpartition(": ")[2] for line in capsys.readouterr().out.splitlines() if "again" in line]
    assert reasons == ["generator g ended", "reward r ended", "late", "generator h ended"] * 2, reasons
