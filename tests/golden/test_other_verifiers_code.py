"""The program in a completion, against open-instruct's."""

from services.reward.common.code_text import program_text
from tests.golden import GoldenCase, golden_cases


@golden_cases("other_verifiers", only=("extract_code",))
def test_the_program_is_the_one_that_open_instruct_extracts(case: GoldenCase) -> None:
    got = program_text(case.inputs["text"])
    assert got == case.expected["code"], f"{case.name}: {got!r}, wanted {case.expected['code']!r}"
