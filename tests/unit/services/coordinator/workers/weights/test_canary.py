from dataclasses import replace

import numpy as np
import pytest

from services.coordinator.workers.weights.canary import FLOAT32, LOWER, Reading, load_error, reading_of
from shoal.arrays import Float32Array, Int32Array
from shoal.error_reasons import ErrorReason
from shoal.rollout import WeightVersion
from shoal.v1 import weights_pb2
from shoal.wire import float32_to_wire, int32_to_wire

HONEST = np.linspace(-9, -1, 31, dtype=np.float32)
TOKENS = np.arange(32, dtype=np.int32)


def canary(logprobs: Float32Array, dtype: str, token_ids: Int32Array = TOKENS) -> weights_pb2.Canary:
    return weights_pb2.Canary(token_ids=int32_to_wire(token_ids), logprobs=float32_to_wire(logprobs), dtype=dtype)


def reading(version: int, learner: Float32Array, engine: Float32Array, dtype: str = "float32") -> Reading:
    return reading_of(WeightVersion(0, version), canary(learner, dtype), canary(engine, dtype))


@pytest.mark.parametrize(
    ("sent", "received", "precision"),
    [
        ("float32", "float32", FLOAT32),
        ("bfloat16", "float32", LOWER),
        ("float32", "bfloat16", LOWER),
        ("float16", "float16", LOWER),
        ("", "float32", LOWER),
        ("float32", "", LOWER),
    ],
)
def test_the_limits_are_those_of_the_type_that_rounds_most(sent: str, received: str, precision: object) -> None:
    """A worker of an earlier version does not report its type."""
    found = reading_of(WeightVersion(0, 1), canary(HONEST, sent), canary(HONEST, received))
    assert found.precision is precision and load_error(found, None, None) is None


def test_one_token_that_differs_is_enough_in_float32() -> None:
    engine = HONEST.copy()
    engine[7] += 0.1
    error = load_error(reading(1, HONEST, engine), None, None)
    assert error is not None and error.reason == ErrorReason.CANARY_DIFFERS
    assert "by 0.00323 on average" in error.message and "(0.001, " in error.message
    assert load_error(reading(1, HONEST, engine), None, 0.01) is None, "a tolerance that is set is taken"
    assert load_error(reading(1, HONEST, HONEST + 1e-4), None, None) is None
    assert load_error(reading(1, HONEST, HONEST + 0.1, "bfloat16"), None, None) is None


@pytest.mark.parametrize("engine", [HONEST * np.nan, HONEST[1:], HONEST[:0]], ids=["nan", "shorter", "none"])
def test_log_probabilities_that_are_no_numbers_or_not_as_many_are_none_of_the_same_weights(
    engine: Float32Array,
) -> None:
    error = load_error(reading(1, HONEST, engine, "bfloat16"), None, 100.0)
    assert error is not None and error.reason == ErrorReason.CANARY_DIFFERS


@pytest.mark.parametrize(
    ("spread", "differs", "is_right"),
    [
        (2.7, 0.13, True),  # SmolLM2-135M in bfloat16, at its worst in 200 publishes.
        (2.7, 0.7, False),
        (0.29, 0.002, True),  # A random Granite in bfloat16.
        (0.29, 0.26, False),  # One of its layers has other weights.
        (1.2, 0.017, True),  # A random Qwen3.5.
        (1.2, 0.2, False),
    ],
)
def test_the_tolerance_of_low_precision_follows_how_much_the_log_probabilities_differ_from_each_other(
    spread: float, differs: float, *, is_right: bool
) -> None:
    learner = (HONEST * (spread / HONEST.std())).astype(np.float32)
    error = load_error(reading(0, learner, learner + np.float32(differs), "bfloat16"), None, None)
    assert (error is None) is is_right, error
    if error is not None:
        assert error.reason == ErrorReason.CANARY_DIFFERS and f"by {differs:g} on average" in error.message


@pytest.mark.parametrize(
    ("tokens", "spread", "differs"),
    [([1, 2, 2], 0.13, 0.106), ([3] * 20, 0.61, 0.105), ([4] * 30, 0.98, 0.155)],
    ids=["three tokens", "one token 20 times", "one token 30 times"],
)
def test_few_or_repeated_tokens_do_not_lower_the_tolerance(tokens: list[int], spread: float, differs: float) -> None:
    """Readings of SmolLM2-135M in bfloat16 with correct weights, whose first prompt was like this."""
    learner = np.linspace(-1, 1, len(tokens) - 1, dtype=np.float32)
    learner *= spread / learner.std()
    ids = np.array(tokens, dtype=np.int32)
    sent, received = (canary(values, "bfloat16", ids) for values in (learner, learner + np.float32(differs)))
    assert load_error(reading_of(WeightVersion(0, 1), sent, received), None, None) is None


def test_a_single_token_may_differ_by_ten_times_the_tolerance() -> None:
    engine = HONEST.copy()
    engine[3] += 3.5
    assert load_error(reading(0, HONEST, engine, "bfloat16"), None, None) is None
    engine[3] += 0.2
    error = load_error(reading(0, HONEST, engine, "bfloat16"), None, None)
    assert error is not None and error.reason == ErrorReason.CANARY_DIFFERS and "by 3.7 for one token" in error.message


def test_an_engine_that_did_not_move_with_the_learner_has_other_weights_however_little_that_was() -> None:
    before, moved = reading(1, HONEST, HONEST), HONEST + np.float32(5e-4)
    error = load_error(reading(2, moved, HONEST), before, None)
    assert error is not None and error.reason == ErrorReason.CANARY_UNMOVED
    assert "weights 0.1" in error.message and "by up to 0.0005" in error.message
    assert load_error(reading(2, moved, moved), before, None) is None
    assert load_error(reading(1, moved, HONEST), before, None) is None, "the same weights once more"
    assert load_error(reading(2, HONEST + np.float32(1e-5), HONEST), before, None) is None, "within rounding"
    assert load_error(reading(2, moved, HONEST), None, None) is None, "the first load of this generator"
    lower = replace(before, precision=LOWER)
    assert load_error(reading(2, moved, HONEST, "bfloat16"), lower, None) is None, "within rounding"
    error = load_error(reading(2, HONEST + np.float32(0.02), HONEST, "bfloat16"), lower, None)
    assert error is not None and error.reason == ErrorReason.CANARY_UNMOVED
