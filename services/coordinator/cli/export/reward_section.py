"""The part of a model card about the model's rewards."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from services.coordinator.reporting.reward_parts import verifier_names
from shoal.config import RunConfig
from shoal.config.tables.verifiers import BUILT_IN_VERIFIERS, JUDGE_VERIFIERS, MODEL_VERIFIERS

_SHAPING = (
    "correct", "verification_reward", "apply_verifiable_reward", "only_reward_good_outputs", "non_stop_penalty",
    "format", "style", "overlong", "length", "cosine", "repetition", "verifiers",
)  # fmt: skip
"""Fields of `[reward]` that describe how a reward is made, but not where."""


def reward_rows(config: RunConfig, steps: Sequence[Mapping[str, float]]) -> list[tuple[str, str, str, str]]:
    """Returns a row for each verifier that judged in `steps`, with its function, its weight, and whether it decides
    correctness; and a row for each environment."""
    measured = {name: 0.0 for row in steps for name in row}
    rows = [
        (name, _function(config, name), _weight(config, name), "yes" if config.reward.says_correct(name) else "no")
        for name in verifier_names(measured)
    ]
    return rows + [(environment.name, "an environment", "1", "") for environment in config.environments]


def shaping(config: RunConfig) -> dict[str, Any]:
    """Returns the fields of `[reward]` that shape a reward and differ from the defaults."""
    values = config.reward.model_dump(mode="json", exclude_defaults=True)
    return {name: values[name] for name in _SHAPING if name in values}


def _function(config: RunConfig, verifier: str) -> str:
    """Names the function of a verifier, without folder and address."""
    reward = config.reward
    if verifier in reward.custom:
        custom = reward.custom[verifier]
        return custom.entry_point or f"{Path(custom.file).name}: {custom.function}"
    if verifier in JUDGE_VERIFIERS:
        return f"a judge, {_last(reward.judge.model)}"
    if verifier in MODEL_VERIFIERS:
        return f"a reward model, {_last(reward.model.path)}" if reward.model.path else "a reward model"
    return "Shoal" if verifier in BUILT_IN_VERIFIERS else "another package or server"


def _last(path: str) -> str:
    return Path(path).name


def _weight(config: RunConfig, verifier: str) -> str:
    factor = config.reward.weights.get(verifier, 1.0)
    return " or ".join(_numbers(factor * source.weight for source in config.data.sources))


def _numbers(values: Iterator[float]) -> list[str]:
    return [f"{value:g}" for value in sorted(set(values))]
