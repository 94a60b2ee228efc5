"""Tests of the answers of a pool process, also when a verifier breaks."""

import math
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from services.reward.common.verdict import Unscorable, Verdict
from services.reward.common.verifier import Verifier
from services.reward.custom.custom_verifiers import read_code
from services.reward.pool.worker import judge
from services.reward.process.frames import encode_frame, read_frame
from services.reward.verifiers.registry import VERIFIERS
from shoal.config.tables.custom_verifiers import CustomVerifierConfig
from shoal.scores import StepScore

NUM_SIGNALED = 3000
SIGNALS_S = 50e-6
"""Pause between signals: without it a process on a busy machine would do nothing else than handle them."""


def raising(error: BaseException) -> Callable[[str, Any], Verdict]:
    def verify(completion: str, label: Any) -> Verdict:
        raise error

    return verify


@pytest.mark.parametrize(
    ("verify", "outcome", "detail"),
    [
        (raising(ZeroDivisionError("by zero")), "failed", "ZeroDivisionError: by zero"),
        (raising(MemoryError()), "failed", "MemoryError"),
        (raising(RecursionError("too deep")), "failed", "RecursionError"),
        (raising(SystemExit(0)), "failed", "SystemExit"),
        (raising(Unscorable("no label")), "unscorable", "no label"),
        (lambda completion, label: Verdict(math.nan), "failed", "nan"),
        (lambda completion, label: Verdict(0.5, "half"), "scored", "half"),
    ],
)
def test_a_verifier_that_breaks_is_failed_and_never_scored(
    monkeypatch: pytest.MonkeyPatch, verify: Callable[[str, Any], Verdict], outcome: str, detail: str
) -> None:
    monkeypatch.setitem(VERIFIERS, "breaks", Verifier(verify, "1 or 0"))
    answer = judge("breaks", "text", "label")
    assert answer["outcome"] == outcome
    assert detail in answer["detail"]
    assert answer["value"] == (0.5 if outcome == "scored" else 0.0)


def test_a_detail_is_short_and_valid_unicode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(VERIFIERS, "wordy", Verifier(lambda completion, label: Verdict(1.0, completion), "1"))
    detail = judge("wordy", "\ud800" * 10_000, None)["detail"]
    assert len(detail.encode("utf-8")) == 500


def test_step_scores_are_returned_and_must_be_finite(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = (StepScore(4, 0.5), StepScore(9, 1.0))
    monkeypatch.setitem(VERIFIERS, "process", Verifier(lambda completion, label: Verdict(1.0, step_scores=steps), "1"))
    assert judge("process", "text", "label")["steps"] == [[4, 0.5], [9, 1.0]]
    broken = (StepScore(4, math.inf),)
    monkeypatch.setitem(VERIFIERS, "process", Verifier(lambda completion, label: Verdict(1.0, step_scores=broken), "1"))
    answer = judge("process", "text", "label")
    assert answer["outcome"] == "failed" and not answer["steps"], answer


@pytest.mark.parametrize("harm", ["sys.stdout.close()", "sys.stdout = None", "os.close(1)", "os.close(2)"])
def test_a_verifier_that_closes_its_outputs_gives_verdicts_and_keeps_the_process(tmp_path: Path, harm: str) -> None:
    path = tmp_path / "score.py"
    path.write_text(f"import os, sys\n\ndef score(completion, label):\n    {harm}\n    return 1.0\n")
    arguments = {"completion": "5", "label": "5"}
    jobs = (
        {"code": asdict(read_code("mine", CustomVerifierConfig(file=str(path))))},
        {"verifier": "mine", "arguments": arguments},
        {"verifier": "gsm8k", "token_ids": [], **arguments},
    )
    command = [sys.executable, "-m", "services.reward.pool.worker", str(os.getpid())]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        for job in jobs:
            process.stdin.write(encode_frame(job))
        process.stdin.close()
        answers = list(iter(lambda: read_frame(process.stdout), None))
    verdicts = [answer["value"] for answer in answers if answer["event"] == "judged"]
    assert verdicts == [1.0, 1.0] and process.returncode == 0, f"{answers}, exit code {process.returncode}"


def test_a_signal_to_stop_never_ends_the_process() -> None:
    """Signals arrive at every moment: before, within and after the judging of 3,000 quick completions."""
    job = encode_frame({"verifier": "passthrough", "completion": "5" * 100, "label": "5", "token_ids": []})
    command = [sys.executable, "-m", "services.reward.pool.worker", str(os.getpid())]
    with (
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process,
        ThreadPoolExecutor() as threads,
    ):
        assert process.stdin is not None and process.stdout is not None
        assert read_frame(process.stdout) == {"event": "ready"}
        is_over = threading.Event()
        threads.submit(process.stdin.write, job * NUM_SIGNALED)
        threads.submit(_signal_until, is_over, process)
        events: Counter[str] = Counter()
        while (
            events["judged"] + events["stopped"] < NUM_SIGNALED and (answer := read_frame(process.stdout)) is not None
        ):
            events[answer["event"]] += 1
        is_over.set()
    assert process.returncode == 0, f"exit code {process.returncode} after {dict(events)}"
    assert events["judged"] + events["stopped"] == NUM_SIGNALED, f"{dict(events)} of {NUM_SIGNALED} jobs"
    assert events["stopped"], f"no signal arrived while a completion was judged: {dict(events)}"


def _signal_until(is_over: threading.Event, process: subprocess.Popen[bytes]) -> None:
    while not is_over.wait(SIGNALS_S):
        process.send_signal(signal.SIGUSR1)
