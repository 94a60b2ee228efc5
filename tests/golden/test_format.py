"""The format score against open-instruct's."""

from services.reward.verifiers.r1_format import verify
from tests.golden import GoldenCase, golden_cases


@golden_cases("other_verifiers", only=("r1_format",))
def test_the_format_score_is_that_of_open_instruct(case: GoldenCase) -> None:
    case.check("score", case.config["reward"] * verify(case.inputs["response"], None).value)
