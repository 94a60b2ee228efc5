"""Runs of a program against tests, in a sandbox that is reused as long as that is safe."""

import time
from dataclasses import dataclass
from typing import Any

from services.reward.sandbox.bubblewrap import Sandbox, SandboxLost, SandboxUnavailable
from services.reward.sandbox.inside.subject import FUNCTIONS, OUTPUT, PROGRAM
from services.reward.sandbox.limits import SandboxLimits

__all__ = [
    "FUNCTIONS",
    "OUTPUT",
    "PROGRAM",
    "SandboxLost",
    "SandboxUnavailable",
    "TestResult",
    "Unfit",
    "run_tests",
    "why_unavailable",
]

_HUNG = "no result, and the test itself could not be stopped"
_MAX_LOSSES = 2
_SELF_TEST = """
import os, socket

def attempt(what, *args):
    try:
        what(*args)
    except OSError:
        return "refused"
    return "done"

def escapes():
    seen = os.listdir("/tmp")
    open("/tmp/x", "w").close()
    return [
        attempt(os.fork), attempt(socket.socket), attempt(open, "/usr/x", "w"), attempt(open, "/x", "w"),
        attempt(os.listdir, "/proc"), attempt(os.kill, 2, 9), attempt(os.utime, "/dev/null"), os.getpid(), seen,
    ]
"""
_SELF_TEST_RESULT = "assert escapes() == ['refused'] * 7 + [1, []]"


class Unfit(Exception):
    """A test cannot run as it is written."""


@dataclass(frozen=True)
class TestResult:
    """The result of one test of a program."""

    __test__ = False

    passed: bool
    detail: str
    """The reason of a failure, only for people, since part of the text comes from the program."""
    seconds: float
    output: str = ""
    """The printed output of a program of the kind OUTPUT."""


_kept: dict[SandboxLimits, Sandbox] = {}


def run_tests(
    program: str, tests: list[Any], *, kind: str, limits: SandboxLimits, total_timeout_s: float
) -> tuple[TestResult, ...]:
    """Runs the program anew for each test, and returns the results in the tests' order.

    `kind` is FUNCTIONS (a test is Python text that uses the program's names), PROGRAM ({"input": text, "output": text}
    of a script) or OUTPUT ({"input": text}; the result has the script's output in any case). Tests that are not
    finished after `total_timeout_s` fail.

    Raises `Unfit`, `SandboxUnavailable`, or `SandboxLost` if the sandbox ends twice during the same test.
    """
    deadline = time.monotonic() + total_timeout_s
    results: list[TestResult] = []
    num_losses = 0
    while len(results) < len(tests):
        job = {
            "kind": kind,
            "program": program,
            "tests": tests[len(results) :],
            "timeout_s": limits.timeout_s,
            "output_limit_bytes": limits.output_limit_kib << 10,
        }
        num_before = len(results)
        try:
            _run(job, limits, deadline, results)
        except TimeoutError:
            late = TestResult(False, f"the tests take more than {total_timeout_s:g} s together", 0.0)
            results += [late] * (len(tests) - len(results))
        except SandboxLost:
            num_losses = num_losses + 1 if len(results) == num_before else 1
            if num_losses >= _MAX_LOSSES:
                raise
    return tuple(results)


def _run(job: dict[str, Any], limits: SandboxLimits, deadline: float, results: list[TestResult]) -> None:
    """Adds a result for each test, or for fewer tests if a test could be stopped only by ending the sandbox."""
    # Remove the sandbox while it is in use, so that a sandbox that fails in any way is not reused.
    sandbox = _kept.pop(limits, None) or Sandbox(limits)
    is_reusable = False
    try:
        sandbox.send(job, deadline=deadline)
        missing = len(job["tests"])
        while (event := sandbox.receive(deadline=deadline))["event"] != "end":
            if event["event"] == "unfit":
                raise Unfit(event["detail"])
            result = TestResult(event["passed"], event["detail"], event["seconds"], event["output"])
            results += [result] * (missing if event["rest_fails"] else 1)
            missing -= missing if event["rest_fails"] else 1
        if event["why"] == "hung":
            results.append(TestResult(False, _HUNG, limits.timeout_s))
        elif missing:
            raise SandboxLost(f"the examiner {event['why']} before it had examined everything")
        is_reusable = event["why"] == "finished"
    finally:
        if is_reusable:  # Keep it, and a second sandbox for the other verifier, whose limits may differ.
            while len(_kept) > 1:
                _kept.pop(next(iter(_kept))).close()
            _kept[limits] = sandbox
        else:
            sandbox.close()


def close() -> None:
    """Closes the kept sandboxes."""
    while _kept:
        _kept.popitem()[1].close()


def why_unavailable() -> str:
    """Starts a sandbox and tries to break out of it. Returns why programs cannot run here; empty if they can."""
    try:
        # Run it twice: the second run must find no trace of the first.
        results = run_tests(
            _SELF_TEST,
            [_SELF_TEST_RESULT] * 2,
            kind=FUNCTIONS,
            limits=SandboxLimits(timeout_s=10.0),
            total_timeout_s=20.0,
        )
    except SandboxUnavailable as error:
        return str(error)
    except SandboxLost as error:
        return f"the sandbox ended during its self-test: {error}"
    finally:
        close()
    for result in results:
        if not result.passed:
            return f"the sandbox does not contain its self-test, or does not work here: {result.detail}"
    return ""
