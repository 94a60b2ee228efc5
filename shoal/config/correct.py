"""Which verifiers say whether a completion is correct: `reward.correct`, or the ones that can."""

from collections.abc import Collection
from typing import TYPE_CHECKING

from shoal.config.verifiers import MEASURES, ZERO_AT_BEST, VerifiersConfig

if TYPE_CHECKING:
    from shoal.config.run import RunConfig


def reaches_1(options: VerifiersConfig, verifier: str) -> bool:
    """Returns whether the best value of a verifier is at least 1, with the options that it has. Nothing is known of
    custom verifiers and those of other servers: they may."""
    return verifier not in ZERO_AT_BEST and getattr(getattr(options, verifier, None), "reaches_1", True)


def says_correct(named: Collection[str], options: VerifiersConfig, verifier: str) -> bool:
    """Returns whether a verifier takes part in the verdict: those that `reward.correct` names, and without names those
    that can reach 1, but for measures of length and style, and reward models."""
    return verifier in named if named else reaches_1(options, verifier) and verifier not in MEASURES


def why_unfiltered(config: "RunConfig", verifiers: Collection[str]) -> str:
    """Returns why groups cannot be filtered by what these verifiers call correct; empty if they can, or need not be."""
    if config.grpo.filter_groups_by != "correct" or any(config.reward.says_correct(name) for name in verifiers):
        return ""
    return (
        'grpo.filter_groups_by: "correct" needs a verifier that says what is correct, and none of '
        f'{", ".join(sorted(verifiers))} does: set it to "reward", or name in reward.correct those whose value of 1 '
        "means so"
    )


def check_filter(config: "RunConfig") -> None:
    """Raises `ValueError` where groups are filtered by what is correct, and none of the verifiers that the sources name
    says it. Where rows name verifiers or environments, the data decide."""
    sources = config.data.sources
    if any(source.verifier is None or source.names_environments for source in sources):
        return
    given = [name.lower() for source in sources for name in source.verifiers]
    names = {config.reward.remap.get(name, name) for name in given}
    if why := why_unfiltered(config, names):
        raise ValueError(why)
