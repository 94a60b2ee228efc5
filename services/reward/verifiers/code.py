"""Programs that are run: against tests that call them, and against inputs and outputs.

Both run the program in a sandbox (docs/sandbox.md) and need one: without it they are FAILED, and nothing is run.
"""

import json
import math
import threading
from collections.abc import Sequence
from typing import Any

from services.reward.sandbox import run
from services.reward.sandbox.bubblewrap import Limits
from services.reward.verdict import Unscorable, Verdict, acceptable_texts
from services.reward.verifiers.code_text import program_text

_AVAILABLE = threading.Event()
_CHECKING = threading.Lock()
_PICKLED = "eJ"
"""How base64 of zlib-compressed data begins."""


def load() -> None:
    """Sees whether there is a sandbox, so that no completion's deadline pays for that."""
    unavailable()


def unavailable() -> str:
    """Why no program can be run here; empty when it can, which is then not tried again."""
    with _CHECKING:  # Sandboxes that are kept belong to one thread at a time.
        if not _AVAILABLE.is_set():
            try:
                run.check()
            except run.SandboxUnavailable as error:
                return str(error)
            _AVAILABLE.set()
    return ""


def verify(
    completion: str,
    label: Any,
    *,
    timeout_s: float = 1.0,
    total_timeout_s: float = 8.0,
    memory_mib: int = 512,
    pass_rate_threshold: float = 0.0,
    partial_credit: bool = True,
    reward_speed: bool = False,
    any_tag: bool = False,
) -> Verdict:
    """Runs the completion's program and Python tests that use what it defines.

    Program: the last block between triple backticks (a tag "python" is dropped; with `any_tag` every tag), or the
    whole completion. Label: a list of Python texts, or that as JSON text; each is a test that passes when it raises
    nothing, as "assert add(1, 2) == 3", within `timeout_s`, the program's own statements included, each time with the
    program run anew. Value: the share of tests that pass, 0 to 1; 0 below `pass_rate_threshold`. Without
    `partial_credit` 1 if all pass, else 0. With `reward_speed` each test that passes counts the share of its time
    that it left. Source: open-instruct's label of this name.
    """
    tests = [_test_text(item, position) for position, item in enumerate(_tests(label))]
    return _verdict(
        completion, tests, run.FUNCTIONS, Limits(timeout_s=timeout_s, memory_mib=memory_mib), total_timeout_s,
        pass_rate_threshold, partial_credit, reward_speed, any_tag,
    )  # fmt: skip


def verify_stdio(
    completion: str,
    label: Any,
    *,
    timeout_s: float = 1.0,
    total_timeout_s: float = 8.0,
    memory_mib: int = 512,
    pass_rate_threshold: float = 0.0,
    partial_credit: bool = True,
    reward_speed: bool = False,
    any_tag: bool = False,
) -> Verdict:
    """Runs the completion's program as a script on inputs and compares what it prints.

    Program: as for `code`. Label: a list of {"input": text, "output": text}, or that as JSON text; numbers are
    texts too. A test passes when the script ends with status 0 within `timeout_s` and its standard output has the
    lines wanted, white space around them aside; lines of numbers are compared by value. Value: as for `code`, with
    the same options. Source: open-instruct's label of this name.
    """
    tests = [_stdio_test(item, position) for position, item in enumerate(_tests(label))]
    return _verdict(
        completion, tests, run.PROGRAM, Limits(timeout_s=timeout_s, memory_mib=memory_mib), total_timeout_s,
        pass_rate_threshold, partial_credit, reward_speed, any_tag,
    )  # fmt: skip


def _verdict(
    completion: str,
    tests: list[Any],
    kind: str,
    limits: Limits,
    total_timeout_s: float,
    pass_rate_threshold: float,
    partial_credit: bool,
    reward_speed: bool,
    any_tag: bool,
) -> Verdict:
    program = program_text(completion, any_tag=any_tag)
    if not program:
        return Verdict(0.0, "no program")
    if why := unavailable():
        raise run.SandboxUnavailable(why)
    try:
        results = run.run_tests(program, tests, kind=kind, limits=limits, total_timeout_s=total_timeout_s)
    except run.Unfit as error:
        raise Unscorable(f"a test cannot be carried out: {error}") from None
    num_passed = sum(result.passed for result in results)
    pass_rate = num_passed / len(results)
    if pass_rate < (pass_rate_threshold if partial_credit else 1.0):
        value = 0.0
    elif reward_speed:
        value = math.fsum(_time_left(result, limits.timeout_s) for result in results if result.passed) / len(results)
    else:
        value = pass_rate
    return Verdict(value, _detail(num_passed, results))


def _time_left(result: run.TestResult, timeout_s: float) -> float:
    return max(0.0, 1.0 - result.seconds / timeout_s)


def _detail(num_passed: int, results: Sequence[run.TestResult]) -> str:
    failed = next(((number, result) for number, result in enumerate(results) if not result.passed), None)
    said = f"{num_passed} of {len(results)} tests passed"
    return said if failed is None else f"{said}; test {failed[0]}: {failed[1].detail}"


def _tests(label: Any) -> list[Any]:
    if isinstance(label, str):
        if label.startswith(_PICKLED):
            raise Unscorable("the label is compressed, and probably pickled: nothing is unpickled; convert it to JSON")
        try:
            label = json.loads(label)
        except (ValueError, RecursionError) as error:
            raise Unscorable(f"the label must be a list of tests, or one as JSON text: {error}") from None
    if not isinstance(label, list):
        raise Unscorable(f"the label must be a list of tests (found: {type(label).__name__})")
    if not label:
        raise Unscorable("the label holds no test")
    return label


def _test_text(item: Any, position: int) -> str:
    if not isinstance(item, str):
        raise Unscorable(f"test {position} of the label must be Python text (found: {type(item).__name__})")
    try:
        compile(item, "test", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise Unscorable(f"test {position} of the label is no Python: {error}") from None
    return item


def _stdio_test(item: Any, position: int) -> dict[str, str]:
    pair = [item.get("input"), item.get("output")] if isinstance(item, dict) else []
    given, wanted = (acceptable_texts(one)[0] if _is_number(one) else one for one in pair or (None, None))
    if not isinstance(given, str) or not isinstance(wanted, str):
        raise Unscorable(f'test {position} must be {{"input": text, "output": text}} (found: {item!r:.80})')
    return {"input": given, "output": wanted}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
