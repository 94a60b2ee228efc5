import pytest

from shoal.config.tables.kl import KlConfig
from shoal.grpo.kl import adapted_coef


@pytest.mark.parametrize(
    ("mean_kl", "num_completions", "expected"),
    [
        (0.2, 10, 0.5 * 1.02),  # Twice the target counts as a fifth above the target.
        (0.0, 10, 0.5 * 0.98),
        (0.11, 50, 0.5 * 1.05),
        (0.5, 0, 0.5),
        # More than the horizon counts as the horizon; otherwise ten horizons would make it -0.5.
        (0.0, 1000, 0.5 * 0.8),
    ],
)
def test_a_coefficient_moves_towards_its_target_and_never_below_0(
    mean_kl: float, num_completions: int, expected: float
) -> None:
    config = KlConfig(coef=1.0, target=0.1, horizon=100)
    assert adapted_coef(config, 0.5, mean_kl, num_completions) == pytest.approx(expected)
