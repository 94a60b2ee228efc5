"""Tests of truncated sampling without a top-k, which is the same for all systems."""

import pytest

from shoal.config.tables.sampling import MAX_TOP_K
from tests.support.translations import translate_values


@pytest.mark.parametrize(
    ("system", "values"),
    [
        ("trl", {"top_p": 0.9, "max_steps": 5}),
        ("trl", {"min_p": 0.1, "max_steps": 5}),
        ("unsloth", {"vllm_sampling_params": {"min_p": 0.1, "top_k": -1}, "max_steps": 5}),
        ("verl", {"algorithm.adv_estimator": "grpo", "actor_rollout_ref.rollout.top_p": 0.9}),
    ],
)
def test_truncated_sampling_without_top_k_is_bounded_and_says_so(system: str, values: dict[str, object]) -> None:
    result = translate_values(system, values)
    assert result.values["sampling"]["top_k"] == MAX_TOP_K
    (note,) = [note for note in result.notes if "drawn from at most the 1024 likeliest" in note]
    assert ("min_p alone" in note) == ("min_p" in str(values))
