"""The format score against open-instruct's."""

from services.reward.verifiers.r1_format import verify
from tests.golden import GoldenCase, golden_cases


@golden_cases("other_verifiers", only=("r1_format",))
def test_the_format_is_open_instructs(case: GoldenCase) -> None:
    case.check("score", case.config["reward"] * verify(case.inputs["response"], None).value)
