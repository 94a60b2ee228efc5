"""Metrics of the evaluation (metrics.json): pass@k."""

from shoal.grpo.pass_at_k import pass_at_k
from tests.golden import GoldenCase, golden_cases


@golden_cases("metrics", only=("pass_at_k",))
def test_pass_at_k_equals_that_of_other_systems(case: GoldenCase) -> None:
    rates = pass_at_k([[bool(correct) for correct in answers] for answers in case.inputs["correct"]])
    for k, want in case.expected["unbiased"].items():
        got = rates[int(k)]
        assert abs(got - want) <= case.tolerance * max(1.0, abs(want)), f"{case.name}: pass@{k} is {got}, wanted {want}"
    case.check("pass_at_1", rates[1])
    case.check("any_correct_of_n", rates[max(rates)])
