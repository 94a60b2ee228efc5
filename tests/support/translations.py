"""Translations of settings of other systems, for tests."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from shoal.config import RunConfig, parse_config
from shoal.translate import SYSTEMS, Translation, translate, translate_arguments
from shoal.translate.sources.settings import Settings

BASE = ("model.path=m", 'data.sources=[{path = "d.jsonl"}]')


def translate_values(system: str, values: dict[str, Any], *overrides: str) -> Translation:
    """Translates the values of fields, with a model and data beside them."""
    return translate(SYSTEMS[system], Settings(dict(values)), overrides=[*BASE, *overrides])


def translate_file(system: str, path: Path, text: str, *flags: str, overrides: Sequence[str] = ()) -> Translation:
    path.write_text(text)
    return translate_arguments(system, [str(path), *flags], overrides=overrides)


def parsed(translation: Translation) -> RunConfig:
    assert translation.toml, [str(refusal) for refusal in translation.blocking]
    return parse_config(translation.values)


def config_of(system: str, values: dict[str, Any], *overrides: str) -> RunConfig:
    return parsed(translate_values(system, values, *overrides))


def values_at(config: Any, paths: Iterable[str]) -> dict[str, Any]:
    """Returns the values of a configuration at dotted paths, in which a number is the index of an item."""

    def value_at(path: str) -> Any:
        value = config
        for part in path.split("."):
            value = value[int(part)] if part.isdigit() else getattr(value, part)
        return value

    return {path: value_at(path) for path in paths}


ROLL_GUIDE: dict[str, Any] = {
    "rollout_batch_size": 64,
    "num_return_sequences_in_group": 8,
    "prompt_length": 2048,
    "response_length": 4096,
    "adv_estimator": "grpo",
    "ppo_epochs": 1,
    "use_kl_loss": True,
    "kl_loss_coef": 0.001,
    "loss_agg_mode": "seq-mean-token-mean",
    "whiten_advantages": True,
    "advantage_clip": 2.0,
    "dual_clip_loss": True,
    "reward_clip": 10,
    "reward_norm": None,
    "reward_shift": False,
    "reward_scale": False,
    "add_token_level_kl": False,
}
"""The settings in ROLL's guide."""
