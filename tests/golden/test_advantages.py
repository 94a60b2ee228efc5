"""Advantages, as the coordinator computes them, against other systems' numbers."""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.config.tables.advantage import AdvantageConfig
from shoal.grpo.advantage import RewardGroup, batch_normalized, completion_advantages, has_signal, weighted_sum
from shoal.grpo.signal import solved_share, zero_signal_kind
from shoal.grpo.token_advantage import token_advantages
from tests.golden import GoldenCase, golden_cases

_BASELINES = {
    "group mean": "group_mean",
    "mean of the other": "leave_one_out",
    "batch mean": "batch_mean",
    # Whitening subtracts the mean over tokens.
    "batch token mean": "none",
    "length-weighted mean": "length_weighted",
    "reward of the greedy completion": "greedy",
    "only the best sample": "second_best",
}
_SCALES = {
    "none": "none",
    "group standard deviation": "group_std",
    "standard deviation of the other": "leave_one_out_std",
    "batch standard deviation": "batch_std",
    "standard deviation of all raw rewards": "batch_std",
    "multiplied by batch size": "nonzero_share",
    "whitened": "none",
}
_NUMBER = r"([0-9.]+(?:e-?[0-9]+)?)"


def _meaning(words: str, meanings: Mapping[str, str]) -> str:
    (found,) = {meaning for beginning, meaning in meanings.items() if words.startswith(beginning)}
    return found


def _spread(words: str, keys: tuple[str, str], explicit: Mapping[str, Any]) -> dict[str, Any]:
    """Reads ddof and eps of a standard deviation or a variance, from its words or from explicit values."""
    options: dict[str, Any] = {}
    if found := re.search(r"ddof ([01])", words):
        options[keys[0]] = int(found[1])
    if found := re.search(rf"(?:\+ ?|eps ){_NUMBER}", words):
        options[keys[1]] = float(found[1])
    elif "no eps" in words:
        options[keys[1]] = 0.0
    return options | {key: value for key, value in explicit.items() if value is not None}


def _config(words: Mapping[str, Any]) -> AdvantageConfig:
    options: dict[str, Any] = {
        "baseline": _meaning(words.get("baseline", words.get("rule", "group mean")), _BASELINES)
        if not words.get("rule", "").startswith("all rewards")
        else "group_mean"
    }
    scale = words.get("scale", "none")
    options["scale"] = _meaning(scale, _SCALES)
    options |= _spread(scale, ("std_ddof", "std_eps"), {"std_ddof": words.get("ddof"), "std_eps": words.get("eps")})
    steps = words.get("order") or words.get("aggregation", "").split(", ")
    for step in [scale, *([steps] if isinstance(steps, str) else steps)]:
        if step.startswith(("group normalise", "as whiten_and_clip")):
            options |= {"scale": "group_std"} | _spread(step, ("std_ddof", "std_eps"), {})
        elif step.startswith("each reward normalised"):
            options |= {"per_verifier": True, "scale": "group_std"}
        elif "whiten" in step:
            options["whiten"] = True
    if options.get("per_verifier"):
        options |= _per_verifier(words.get("aggregation", ""))
    if options.get("whiten"):
        options |= _whitening(words, options)
    if words.get("normalise_over_batch"):
        options |= {"batch_normalize": True, "batch_std_eps": words["eps"]}
        options.pop("std_eps", None)
    if "gamma" in words:
        options["discount"] = words["gamma"]
    return AdvantageConfig(**(options | _clips(words)))


def _per_verifier(words: str) -> dict[str, Any]:
    """Reads how the values of each verifier are normalized, and their sum."""
    within, _, after = words.partition("weighted sum")
    options = _spread(within, ("std_ddof", "std_eps"), {})
    if "over the batch" in after:
        options |= {"batch_normalize": True} | _spread(after, ("", "batch_std_eps"), {})
        options.pop("", None)
    elif "whitened" in after:
        options |= {"whiten": True} | _spread(after, ("whiten_ddof", "whiten_eps"), {})
    return options


def _whitening(words: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Reads ddof and eps of the whitening; `options` has those of the aggregation."""
    steps: dict[str, Any] = {}
    for step in words.get("order", ()):
        if step.startswith("whiten"):
            steps |= _spread(step, ("whiten_ddof", "whiten_eps"), {})
    options = {**options, **steps}
    # A variance above its floor is unchanged.
    eps = 0.0 if "variance_floor" in words else words.get("eps", options.get("whiten_eps", 1e-8))
    return {"whiten_ddof": words.get("variance_ddof", options.get("whiten_ddof", 1)), "whiten_eps": eps}


def _clips(words: Mapping[str, Any]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if "whiten_advantages" in words:
        options |= {"whiten": words["whiten_advantages"], "clip": words["advantage_clip"]}
    clip = words.get("reward_clip")
    if isinstance(clip, list):
        options |= {"reward_min": clip[0], "reward_max": clip[1]}
    elif clip is not None:
        options["reward_clip"] = clip
    return options


def _groups(inputs: Mapping[str, Any]) -> dict[tuple[int, ...], RewardGroup]:
    weights = tuple(inputs.get("reward_weights", ()))
    parts = [tuple(row) for row in inputs.get("rewards_per_function", ())]
    rewards = [weighted_sum(row, weights) for row in parts] if parts else list(inputs["rewards"])
    count = len(rewards)
    if "group_ids" in inputs:
        ids = inputs["group_ids"]
    elif "samples_per_group" in inputs:
        ids = [i // inputs["samples_per_group"] for i in range(count)]
    else:  # Nothing is compared within groups.
        ids = list(range(count))

    def of(key: str, indices: tuple[int, ...]) -> tuple[Any, ...]:
        return tuple(inputs[key][i] for i in indices) if key in inputs else ()

    groups = {}
    for group_id in dict.fromkeys(ids):
        indices = tuple(i for i in range(count) if ids[i] == group_id)
        groups[indices] = RewardGroup(
            rewards=tuple(rewards[i] for i in indices),
            parts=of("rewards_per_function", indices),
            part_weights=weights,
            num_tokens=of("completion_lengths", indices),
            greedy_reward=next(iter(of("greedy_rewards", indices)), None),
        )
    return groups


def _advantages(config: AdvantageConfig, groups: Mapping[tuple[int, ...], RewardGroup]) -> list[float]:
    """Returns the advantage of each sample; 0 for one without a reward, which the coordinator would leave out."""
    by_index = {
        index: value
        for indices, values in zip(groups, completion_advantages(config, list(groups.values())), strict=True)
        for index, value in zip(indices, values, strict=True)
    }
    present = [index for index in sorted(by_index) if by_index[index] is not None]
    if config.batch_normalize:
        (normalized,) = batch_normalized(config, [[by_index[index] or 0.0 for index in present]])
        by_index |= dict(zip(present, normalized, strict=True))
    return [by_index[index] or 0.0 for index in sorted(by_index)]


def _tokens(config: AdvantageConfig, inputs: Mapping[str, Any], advantages: list[float]) -> list[NDArray[np.float64]]:
    return token_advantages(config, advantages, [np.array(row, dtype=bool) for row in inputs["mask"]])


@golden_cases("advantages", but=("zero_std_filter",))
def test_advantages_are_those_of_other_systems(case: GoldenCase) -> None:
    config = _config(case.config)
    advantages = _advantages(config, _groups(case.inputs))
    if "advantages_per_token" in case.expected:
        case.check("advantages_per_token", np.stack(_tokens(config, case.inputs, advantages)))
    else:
        case.check("advantages", advantages)


@golden_cases("advantages", only=("zero_variance_constant",))
def test_equal_rewards_have_advantages_of_exactly_0(case: GoldenCase) -> None:
    assert not any(_advantages(_config(case.config), _groups(case.inputs)))


@golden_cases("advantages", only=("zero_std_filter",))
def test_groups_without_a_signal_are_classified(case: GoldenCase) -> None:
    groups = _groups(case.inputs)
    rewards = [[reward for reward in group.rewards if reward is not None] for group in groups.values()]
    max_reward = case.config["max_possible_score"]
    kept = [has_signal(AdvantageConfig(), group) for group in groups.values()]
    assert kept == case.expected["keep_group"], f"kept {kept}"
    kinds = [zero_signal_kind(values, max_reward) for values in rewards]
    assert kinds == case.expected["dropped_as"], f"dropped as {kinds}"
    case.check("percent_solved", [solved_share(values, max_reward) for values in rewards])
