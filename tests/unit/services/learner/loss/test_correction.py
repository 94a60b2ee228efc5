"""Weights, filters and masks against values computed by hand, and the tokens that they leave in the loss."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from services.learner.gap import GapSums
from services.learner.loss.correction import Correction, correct, entropy_threshold, is_off_policy
from services.learner.loss.loss_tokens import LossTokens
from services.learner.loss.mini_batch import Surveyed, needs_survey, token_factors, weigh_mini_batch
from services.learner.loss.objectives.completions import Completions
from services.learner.loss.policy_loss import pick_tokens, row_loss
from shoal.config import RunConfig
from shoal.config.tables.correction import CorrectionConfig
from shoal.errors import InvalidArgument
from tests.support.configs import run_config

# Two completions, with three tokens and with one.
COMPLETIONS = Completions(torch.tensor([0, 0, 0, 1]), 2)
RATIOS = [2.0, 0.25, 1.0, 4.0]


def tensor(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def corrected(
    advantages: tuple[float, ...] = (1, 1, 1, 1), *, unknown: int | None = None, **options: Any
) -> Correction:
    behavior = torch.full((4,), -2.0, dtype=torch.float64)
    proximal = behavior + tensor(RATIOS).log()
    if unknown is not None:
        behavior[unknown] = math.nan
    return correct(CorrectionConfig.model_validate(options), proximal, behavior, tensor(advantages), COMPLETIONS)


@pytest.mark.parametrize(
    ("options", "weights"),
    [
        ({}, [1, 1, 1, 1]),
        ({"weight": "token"}, [2, 0.25, 1, 2]),
        ({"weight": "token", "weight_low": 0.5, "weight_high": 3.0}, [2, 0.5, 1, 3]),
        ({"weight": "token", "weight_high": 0}, [2, 0.25, 1, 4]),
        ({"weight": "sequence", "weight_high": 0}, [0.5, 0.5, 0.5, 4]),
        ({"weight": "geometric", "weight_high": 0}, [0.5 ** (1 / 3)] * 3 + [4]),
        # 2, 1/4, 1 and 2 have mean 21/16.
        ({"weight": "token", "normalize": True}, [32 / 21, 4 / 21, 16 / 21, 32 / 21]),
        # Completions: 1/2 and 2, whose mean is 5/4.
        ({"weight": "sequence", "normalize": True}, [0.4, 0.4, 0.4, 1.6]),
    ],
)
def test_weights_are_those_of_the_formula(options: dict[str, Any], weights: list[float]) -> None:
    torch.testing.assert_close(corrected(**options).weights_C, tensor(weights))


@pytest.mark.parametrize(
    ("weight", "expected"),
    [
        # Tokens: e^100, 1, 1, e^100; beside them the ones vanish.
        ("token", [2, 0, 0, 2]),
        # Completions: e^100 of three tokens, and e^100.
        ("sequence", [1, 1, 1, 1]),
    ],
)
def test_unbounded_weights_beyond_float32_have_their_share_of_the_mean(weight: str, expected: list[float]) -> None:
    config = CorrectionConfig(weight=weight, weight_high=0, normalize=True)
    proximal_C = torch.zeros(4)
    found = correct(config, proximal_C, torch.tensor([-100.0, 0, 0, -100.0]), torch.ones(4), COMPLETIONS)
    torch.testing.assert_close(found.weights_C, torch.tensor(expected, dtype=torch.float32), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("test", "dropped"),
    [
        ({"low": 0.5, "high": 3.0}, [1]),
        ({"low": 0.4, "high": 3.0, "level": "sequence_sum"}, []),
        ({"low": 0.6, "level": "sequence_sum"}, [0, 0, 0]),
        ({"high": 2.5, "level": "sequence_max"}, []),
        ({"high": 1.5, "level": "sequence_max"}, [0, 0, 0]),
        ({"statistic": "tv", "high": 0.7}, [0, 1]),
        # The mean over the completion of 1, 3/4 and 0.
        ({"statistic": "tv", "high": 0.6, "level": "sequence_mean"}, []),
        ({"statistic": "k2", "high": 0.5}, [1]),
        ({"statistic": "probability_difference", "low": -0.05, "high": 0.12}, [0, 1]),
        # Differences of e^-2 = 0.135 and -0.101: their mean is 0.011, that of their sizes 0.079.
        ({"statistic": "probability_difference", "high": 0.05, "level": "sequence_mean"}, []),
        ({"statistic": "probability_distance", "high": 0.05, "level": "sequence_mean"}, [0, 0, 0]),
        ({"statistic": "probability_distance", "high": 0.12}, [0]),
    ],
)
def test_a_filter_drops_tokens_outside_its_bounds(test: dict[str, Any], dropped: list[int]) -> None:
    """`dropped` lists the first completion's tokens; the second's ratio of 4 fails every upper bound."""
    result = corrected(filters=[test])
    indices = [0, 1, 2] if dropped == [0, 0, 0] else dropped
    expected = [index in indices for index in range(3)] + ["high" in test]
    assert result.is_dropped_C.tolist() == expected
    assert not result.is_rejected_C.any()


def test_with_only_harmful_only_tokens_that_the_step_would_push_further_off_are_dropped() -> None:
    test = {"low": 0.5, "high": 1.5, "only_harmful": True}
    assert corrected((1, 1, 1, -1), filters=[test]).is_dropped_C.tolist() == [True, False, False, False]
    assert corrected((-1, -1, 1, 1), filters=[test]).is_dropped_C.tolist() == [False, True, False, True]


def test_a_token_of_unknown_behavior_has_weight_1_and_passes() -> None:
    result = corrected(unknown=3, weight="token", filters=[{"high": 3.0}])
    assert float(result.weights_C[3]) == 1 and not result.is_dropped_C[3]


def factors(run: RunConfig, correction: Correction | None) -> list[float]:
    nothing = torch.zeros(4, dtype=torch.float64)
    weights = torch.tensor([1.0, 0.5], dtype=torch.float64)
    tokens = LossTokens(nothing, nothing, nothing, COMPLETIONS, COMPLETIONS)
    surveyed = None if correction is None else Surveyed(nothing, correction, torch.ones(4).bool())
    mini_batch = weigh_mini_batch((), COMPLETIONS.num_tokens(), weights, run, surveyed=surveyed)
    picked = pick_tokens(mini_batch, tokens, torch.arange(4))
    assert len(picked.where_C) == len(picked.advantages_C) == mini_batch.num_counted
    return torch.zeros(4).double().index_copy(0, picked.where_C, picked.factors_C).tolist()


def test_a_dropped_token_counts_in_the_divisor_and_a_rejected_one_does_not() -> None:
    run = run_config()
    assert factors(run, corrected(filters=[{"low": 0.5}])) == [0.25, 0.25, 0.25, 0.125]
    third = 1 / 3
    rejected = corrected(filters=[{"low": 0.5, "reject": True}])
    assert factors(run, rejected) == pytest.approx([third, 0, third, third / 2])
    by_sequence = run_config(loss={"aggregation": "seq-mean-token-mean"})
    assert factors(by_sequence, rejected) == pytest.approx([0.25, 0, 0.25, 0.25])
    all_of_one = corrected(filters=[{"high": 2.5, "reject": True}])
    assert factors(by_sequence, all_of_one) == pytest.approx([third, third, third, 0])
    counting = run_config(loss={"aggregation": "seq-mean-token-mean", "empty_sequences": "count"})
    assert factors(counting, all_of_one) == pytest.approx([1 / 6, 1 / 6, 1 / 6, 0])


def test_a_dropped_completion_of_infinite_weight_leaves_the_gradient_of_others_alone() -> None:
    """The product of 5000 ratios of e^0.02 exceeds float32: a completion that a filter drops must add nothing."""
    num = 5000
    completions = Completions(torch.arange(2).repeat_interleave(num), 2)
    behavior = torch.full((2 * num,), -2.0)
    logprobs = behavior + torch.tensor([0.02, 0.0]).repeat_interleave(num)
    filters = [{"level": "sequence_sum", "high": 3.0}]
    run = run_config(
        loss={"baseline": "proximal"}, correction={"weight": "sequence", "weight_high": 0.0, "filters": filters}
    )
    ones = torch.ones(2 * num)
    tokens = LossTokens(behavior, ones, ones, completions, completions)
    mini_batch = weigh_mini_batch((), completions.num_tokens(), torch.ones(2), run, surveyed=None)
    live = logprobs.clone().requires_grad_()
    picked = pick_tokens(mini_batch, tokens, torch.arange(2 * num))
    result = row_loss(picked, live, torch.zeros(2 * num), None, run, kl_coef=0.0, num_counted=2 * num)
    result.loss.backward()
    assert torch.isinf(result.correction.weights_C[0]) and bool(result.is_dropped_C[:num].all())
    assert live.grad is not None
    assert live.grad[:num].tolist() == [0.0] * num
    torch.testing.assert_close(live.grad[num:], torch.full((num,), -1 / (2 * num)))


def test_the_divisor_of_dr_grpo_is_completions_times_the_greatest_length() -> None:
    assert factors(run_config(loss={"aggregation": "seq-mean-token-sum-norm"}, sampling={"max_completion_tokens": 50}),
                   None)[0] == pytest.approx(1 / 100)  # fmt: skip
    run = run_config(loss={"aggregation": "seq-mean-token-sum-norm", "denominator": 8.0})
    assert factors(run, None)[0] == pytest.approx(1 / 16)


def test_nothing_to_average_gives_no_factor_and_no_error() -> None:
    for mode in ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum"):
        assert token_factors(mode, torch.zeros(3, dtype=torch.int64)).isfinite().all()


def test_the_entropy_threshold_lies_between_two_tokens() -> None:
    assert entropy_threshold(tensor([0.0, 1.0, 2.0, 3.0]), 0.5) == pytest.approx(1.5)
    assert entropy_threshold(tensor([0.0, 1.0, 2.0, 3.0]), 0.25) == pytest.approx(2.25)


def test_completions_of_negative_advantage_that_have_become_unlikely_are_masked() -> None:
    logprobs, sampled = tensor([-2.0, -2.0, -2.0, -2.0]), tensor([-1.0, math.nan, -1.4, -2.0])
    # The mean of 1, 0 and 0.6 is 0.53.
    for threshold, is_masked in ((0.5, True), (0.6, False)):
        found = is_off_policy(logprobs, sampled, tensor([-1.0, -1.0, 1.0, -1.0]), COMPLETIONS, threshold)
        assert found.tolist() == [is_masked, is_masked, False, False]


def test_a_step_is_surveyed_only_if_an_option_needs_it() -> None:
    proximal = {"loss": {"baseline": "proximal"}}
    for sections, expected in (
        ({}, False),
        ({"grpo": {"num_epochs": 3}}, False),
        (proximal, False),
        (proximal | {"grpo": {"num_mini_batches": 2}}, True),
        (proximal | {"correction": {"weight": "token"}}, False),
        (proximal | {"correction": {"weight": "token", "normalize": True}}, True),
        (proximal | {"correction": {"filters": [{"low": 0.5}]}}, False),
        (proximal | {"correction": {"filters": [{"low": 0.5, "reject": True}]}}, True),
        ({"loss": {"top_entropy_share": 0.5}}, True),
    ):
        assert needs_survey(run_config(**sections)) is expected, sections


def mismatch(learner: Tensor, behavior: Tensor) -> dict[str, float]:
    sums = GapSums(COMPLETIONS.num)
    sums.add(learner, behavior, COMPLETIONS)
    return sums.mismatch()


def test_equal_policies_show_no_mismatch_and_hopeless_ones_finite_metrics() -> None:
    behavior = tensor([-1.0, -2.0, math.nan, -0.5])
    equal = mismatch(torch.nan_to_num(behavior, nan=-3.0), behavior)
    assert equal["kl"] == equal["k3"] == equal["chi2_sequence"] == 0
    assert equal["effective_sample_size"] == equal["weight_mean"] == 1
    hopeless = mismatch(torch.zeros(4), torch.full((4,), -1e30))
    assert all(math.isfinite(value) for value in hopeless.values()), hopeless
    assert mismatch(torch.zeros(4), torch.full((4,), math.nan)) == {}


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        (
            {"loss": {"dual_clip": 3.0, "objective": "cispo"}},
            "dual_clip is an option of objective ppo_clip",
        ),
        ({"correction": {"weight": "token"}}, 'loss.baseline: .*set loss.baseline to "proximal"'),
        ({"correction": {"weight_high": 3.0}}, "weight is none: set weight, or remove weight_high"),
        ({"correction": {"weight": "token", "weight_high": 0.5}}, "must be above 1, or 0 for no bound"),
        ({"kl": {"coef": 0.1, "estimator": "ratio_k1", "gradient": "bias_corrected"}}, "already contains the ratio"),
        ({"loss": {"denominator": 10.0}}, "denominator applies only with aggregation fixed-denominator"),
    ],
)
def test_options_that_would_do_nothing_or_contradict_are_refused(sections: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        run_config(**sections)
