"""The program in a completion, as open-instruct finds it."""

from services.reward.verifiers.code_text import program_text
from tests.golden import GoldenCase, golden_cases


@golden_cases("other_verifiers", only=("extract_code",))
def test_the_program_is_what_open_instruct_takes_from_the_completion(case: GoldenCase) -> None:
    got = program_text(case.inputs["text"])
    assert got == case.expected["code"], f"{case.name}: {got!r}, wanted {case.expected['code']!r}"
