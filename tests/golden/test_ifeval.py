"""Verdicts of instruction checkers against those of open-instruct."""

import pytest

from services.reward.common.verdict import Unscorable
from services.reward.verifiers.ifeval import verify
from services.reward.verifiers.ifeval.arguments import Arguments
from services.reward.verifiers.ifeval.catalog import CONSTRAINTS
from services.reward.verifiers.ifeval.functions import FUNCTIONS
from tests.golden import GoldenCase, golden_cases

pytest.importorskip("punkt")
pytest.importorskip("langdetect")


@pytest.fixture(scope="module", autouse=True)
def loaded_models() -> None:
    """Loads the models before any deadline starts: an interrupted load would break every later language test."""
    verify.load()


@golden_cases("ifeval", but=("IFEvalVerifier",))
def test_an_instruction_checker_gives_open_instructs_verdict(case: GoldenCase) -> None:
    name = case.config["instruction_id"]
    constraint = (CONSTRAINTS if case.config["set"] == "IFEvalG" else FUNCTIONS)[name]
    got = constraint.follows(case.inputs["response"], Arguments(name, case.inputs["kwargs"]))
    assert got is case.expected["follows"], f"{name} {case.inputs['kwargs']}: {case.inputs['response']!r}"


@golden_cases("ifeval", only=("IFEvalVerifier",))
def test_a_completion_scores_the_fraction_of_its_instructions(case: GoldenCase) -> None:
    label = {"instruction_id": case.inputs["instruction_ids"], "kwargs": case.inputs["kwargs"]}
    for form in (label, [label], str([label])):
        if not case.inputs["instruction_ids"]:
            # open-instruct gives 0 for a label that asks for nothing; here it is malformed, as for other verifiers.
            with pytest.raises(Unscorable):
                verify.VERIFIER.judge(case.inputs["response"], form, (), {})
            continue
        case.check("score", verify.VERIFIER.judge(case.inputs["response"], form, (), {}).value)
