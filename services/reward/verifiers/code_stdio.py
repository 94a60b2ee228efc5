"""A program that is run on inputs, and whose outputs are compared."""

from typing import Any

from services.reward.common.verdict import Unscorable, Verdict, acceptable_texts
from services.reward.common.verifier import Verifier
from services.reward.sandbox import run
from services.reward.verifiers.code import CodeOptions, load, read_tests, run_tests, unavailable


def verify(completion: str, label: Any, options: CodeOptions = CodeOptions()) -> Verdict:
    """Runs the completion's program as a script on inputs and compares what it prints.

    Program: as for `code`. Label: a list of {"input": text, "output": text}, or such a list as JSON text; numbers count
    as texts. A test passes if the script ends with status 0 within `timeout_s` and prints the expected lines to its
    standard output, ignoring white space around them. Lines of numbers are compared by value, but as texts if a number
    begins with extra zeros. Value: as for `code`, with the same options. Source: open-instruct's label of this name.
    """
    tests = [_stdio_test(item, position) for position, item in enumerate(read_tests(label))]
    return run_tests(completion, tests, run.PROGRAM, options)


VERIFIER = Verifier(verify, values="0 to 1", can_stop=False, options=CodeOptions, load=load, unavailable=unavailable)


def _stdio_test(item: Any, position: int) -> dict[str, str]:
    pair = [item.get("input"), item.get("output")] if isinstance(item, dict) else []
    given, wanted = (acceptable_texts(one)[0] if _is_number(one) else one for one in pair or (None, None))
    if not isinstance(given, str) or not isinstance(wanted, str):
        raise Unscorable(f'test {position} must be {{"input": text, "output": text}} (found: {item!r:.80})')
    return {"input": given, "output": wanted}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
