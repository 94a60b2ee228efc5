"""The number of operations of a row: on a GPU each is about one kernel, and thousands of small ones leave it idle."""

from typing import Any

import pytest

from tests.support.triton_programs import output_of_interpreter

# Each more than today's number by at most a hundredth: whoever lowers a number lowers its bound.
LIMITS = {
    "one sequence": 1868, "eight sequences": 2433, "windows": 2670, "supports": 1897, "adapters": 3940, "experts": 5210,
}  # fmt: skip


@pytest.fixture(scope="module")
def counts() -> dict[str, dict[str, dict[str, float]]]:
    program = "tests.unit.services.learner.model.operation_counts"
    found: dict[str, Any] = output_of_interpreter(program)
    assert found.keys() == LIMITS.keys()
    return found


@pytest.mark.parametrize("row", LIMITS)
def test_a_row_takes_no_more_operations_than_before(counts: dict[str, dict[str, dict[str, float]]], row: str) -> None:
    whole = counts[row]["whole"]["all"]
    assert whole <= LIMITS[row], f"{row}: {whole:.0f} operations, {counts[row]['layer']['all']:.0f} of them in a layer"


@pytest.mark.parametrize("row", ["one sequence", "windows", "supports", "adapters"])
def test_attention_gathers_nothing_in_a_row_of_one_sequence(
    counts: dict[str, dict[str, dict[str, float]]], row: str
) -> None:
    assert counts[row]["layer"]["gathers"] == 0, counts[row]


@pytest.mark.parametrize("row", LIMITS)
def test_a_row_after_the_first_casts_no_weight_but_those_of_routers(
    counts: dict[str, dict[str, dict[str, float]]], row: str
) -> None:
    assert counts[row]["layer"]["weight casts"] == (row == "experts"), counts[row]
    assert counts[row]["whole"]["weight casts"] == (48 if row == "experts" else 0), counts[row]


def test_the_experts_of_a_layer_take_one_grouped_product_for_each_projection(
    counts: dict[str, dict[str, dict[str, float]]],
) -> None:
    """Two projections, each with a product forward and two backward."""
    assert counts["experts"]["layer"]["grouped products"] == 2 * 3, counts["experts"]
