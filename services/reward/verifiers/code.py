"""A program that is run against tests of its functions.

Programs run in a sandbox (docs/sandbox.md). Without a sandbox the completion is FAILED, and nothing runs.
"""

import ast
import json
import math
import threading
from collections.abc import Sequence
from typing import Any

from pydantic import Field

from services.reward.common.code_text import program_text
from services.reward.common.verdict import Unscorable, Verdict
from services.reward.common.verifier import Verifier
from services.reward.sandbox import run
from services.reward.sandbox.limits import SandboxLimits
from shoal.config.tables.section import Section
from shoal.parsing import unique_keys

_AVAILABLE = threading.Event()
_CHECKING = threading.Lock()
_PICKLED = "eJ"
"""The first characters of zlib-compressed data in base64."""


class CodeOptions(Section):
    timeout_s: float = Field(default=1.0, gt=0)
    """Longest time for the program and one test (open-instruct's `code_max_execution_time`)."""
    total_timeout_s: float = Field(default=8.0, gt=0)
    """Longest time for all tests of one completion. Tests that are not finished by then are not passed. Keep this time
    two seconds below `reward.timeout_s`, which makes the completion FAILED."""
    memory_mib: int = Field(default=512, ge=64)
    """Address space of the program, in MiB."""
    pass_rate_threshold: float = Field(default=0.0, ge=0, le=1)
    """Share of passed tests below which the value is 0 (open-instruct's `code_pass_rate_reward_threshold`)."""
    partial_credit: bool = True
    """Make the value the share of passed tests. Otherwise the value is 1 if all tests pass, else 0."""
    reward_speed: bool = False
    """Count for each passed test only the share of its time limit that is left (open-instruct's
    `code_apply_perf_penalty`)."""
    any_tag: bool = False
    """Drop any word after the opening backticks, not only "python"."""

    @property
    def reaches_1(self) -> bool:
        """Whether the best value is at least 1. With `reward_speed` it is not, since each test takes some time."""
        return not self.reward_speed


def load() -> None:
    """Starts a first sandbox, so that its start does not count against a completion's deadline."""
    unavailable()


def unavailable() -> str:
    """Returns why no program can run here; empty if programs can run. Does not test again after an empty result."""
    with _CHECKING:  # A reused sandbox belongs to one thread at a time.
        if not _AVAILABLE.is_set():
            if why := run.why_unavailable():
                return why
            _AVAILABLE.set()
    return ""


def verify(completion: str, label: Any, options: CodeOptions = CodeOptions()) -> Verdict:
    """Runs the completion's program and Python tests that use its definitions.

    Program: the last block between triple backticks, without a tag "python" (with `any_tag`, without any tag); the
    whole completion if it has no block; none if the last block is never closed. Label: a list of tests, or such a list
    as JSON text. A test is a Python text, such as "assert add(1, 2) == 3", and passes if it raises nothing within
    `timeout_s`, including the program's own statements, which run anew for each test in an empty folder. Builtins and
    comparing functions come from Python's library, even if the program binds their names. Value: the share of tests
    that pass, 0 to 1; 0 below `pass_rate_threshold`. Without `partial_credit` 1 if all pass, else 0. With
    `reward_speed` each passed test counts the share of its time that is left. Source: open-instruct's label of this
    name.
    """
    tests = [_test_text(item, position) for position, item in enumerate(read_tests(label))]
    return run_tests(completion, tests, run.FUNCTIONS, options)


VERIFIER = Verifier(verify, values="0 to 1", can_stop=False, options=CodeOptions, load=load, unavailable=unavailable)


def run_tests(completion: str, tests: list[Any], kind: str, options: CodeOptions) -> Verdict:
    """Runs the completion's program against tests of one kind. Raises `Unscorable` for a test that cannot be run, and
    `SandboxUnavailable`."""
    program = program_text(completion, any_tag=options.any_tag)
    if not program:
        return Verdict(0.0, "no program")
    if why := unavailable():
        raise run.SandboxUnavailable(why)
    limits = SandboxLimits(timeout_s=options.timeout_s, memory_mib=options.memory_mib)
    try:
        results = run.run_tests(program, tests, kind=kind, limits=limits, total_timeout_s=options.total_timeout_s)
    except run.Unfit as error:
        raise Unscorable(f"a test of the label cannot be run: {error}") from None
    num_passed = sum(result.passed for result in results)
    pass_rate = num_passed / len(results)
    if pass_rate < (options.pass_rate_threshold if options.partial_credit else 1.0):
        value = 0.0
    elif options.reward_speed:
        left = [max(0.0, 1.0 - each.seconds / options.timeout_s) for each in results if each.passed]
        value = math.fsum(left) / len(results)
    else:
        value = pass_rate
    return Verdict(value, _detail(num_passed, results))


def read_tests(label: Any) -> list[Any]:
    """Returns the label's tests, at least one. Raises `Unscorable`."""
    if isinstance(label, str):
        if label.startswith(_PICKLED):
            raise Unscorable("the label is compressed and probably pickled; Shoal reads neither: convert it to JSON")
        try:
            label = json.loads(label, object_pairs_hook=unique_keys)
        except (ValueError, RecursionError) as error:
            raise Unscorable(f"the label must be a list of tests, or such a list as JSON text: {error}") from None
    if not isinstance(label, list):
        raise Unscorable(f"the label must be a list of tests (found: {type(label).__name__})")
    if not label:
        raise Unscorable("the label contains no test")
    return label


def _detail(num_passed: int, results: Sequence[run.TestResult]) -> str:
    failed = next(((index, result) for index, result in enumerate(results) if not result.passed), None)
    passed = f"{num_passed} of {len(results)} tests passed"
    return passed if failed is None else f"{passed}; test {failed[0]}: {failed[1].detail}"


def _test_text(item: Any, position: int) -> str:
    if not isinstance(item, str):
        raise Unscorable(f"test {position} of the label must be Python text (found: {type(item).__name__})")
    try:
        compile(item, "test", "exec", dont_inherit=True)
        is_empty = not ast.parse(item).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise Unscorable(f"test {position} of the label is not Python: {error}") from None
    if is_empty:
        raise Unscorable(f"test {position} of the label has no statement, so any program would pass it")
    return item
