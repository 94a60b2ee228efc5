"""The `[reward]` table: how completions are judged, and what makes up a reward."""

from typing import Any, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from shoal.config.tables.composition import (
    CosineLengthConfig,
    FormatRewardConfig,
    LengthPenaltyConfig,
    OverlongConfig,
    RepetitionPenaltyConfig,
    StyleConfig,
)
from shoal.config.tables.custom_verifiers import (
    CustomVerifierConfig,
    RewardServerConfig,
    check_name,
    installed_verifiers,
)
from shoal.config.tables.judge import JudgeConfig
from shoal.config.tables.reward_model import RewardModelConfig
from shoal.config.tables.section import Section
from shoal.config.tables.verifiers import (
    BUILT_IN_VERIFIERS,
    JUDGE_VERIFIERS,
    MEASURES,
    RULE_VERIFIERS,
    ZERO_AT_BEST,
    VerifiersConfig,
)

EVERY_OTHER_NAME = "*"
"""Key of `reward.remap` that matches every name that the table does not have."""


class RewardConfig(Section):
    num_processes: int = Field(default=2, ge=1)
    """Number of verifier processes of one reward service."""
    timeout_s: float = Field(default=10.0, gt=0)
    """Time limit of one verifier for one completion. Then the process is killed, and the outcome is FAILED."""
    max_queued: int = Field(default=4096, ge=1)
    """Maximum number of completions that wait. Further completions are refused with RESOURCE_EXHAUSTED."""
    max_failed_share: float = Field(default=0.5, gt=0, le=1)
    """Pause the run when a verifier or an environment FAILED on more than this share of its latest completions, so that
    the run does not train through an outage. With 1 the run is never paused."""
    outage_window: int = Field(default=64, ge=1)
    """Number of latest completions of each verifier and environment over which `max_failed_share` is measured."""
    verification_reward: float = Field(default=1.0, ge=0)
    """Factor of the weighted sum of the verifiers' values."""
    apply_verifiable_reward: bool = True
    """Include the verifiers' values in the reward. Otherwise the values are only computed and reported, and the reward
    consists of the other parts of the `[reward]` table."""
    only_reward_good_outputs: bool = False
    """Include the verifiers' values only for completions that ended by themselves and are not empty."""
    non_stop_penalty: float | None = None
    """Reward of a completion that did not end by itself, in place of all other parts of the reward."""
    remap: dict[str, str] = Field(default_factory=dict)
    """Table from names in the data's verifier column to the verifiers that replace them (open-instruct's
    `remap_verifier`). The key `*` matches every name that the table does not have."""
    weights: dict[str, float] = Field(default_factory=dict)
    """Table from each verifier to a factor of its values, by default 1, in addition to the weight of the source."""
    format: FormatRewardConfig = FormatRewardConfig()
    """A reward for the required format."""
    style: StyleConfig = StyleConfig()
    """Rewards for tags and for signs of steps."""
    overlong: OverlongConfig = OverlongConfig()
    """A penalty for completions near the length limit."""
    length: LengthPenaltyConfig = LengthPenaltyConfig()
    """A penalty that grows with length."""
    cosine: CosineLengthConfig = CosineLengthConfig()
    """A reward that depends on length and correctness."""
    repetition: RepetitionPenaltyConfig = RepetitionPenaltyConfig()
    """A penalty for repetition."""
    verifiers: VerifiersConfig = VerifiersConfig()
    """Options of verifiers, by name."""
    correct: list[str] = Field(default_factory=list)
    """Verifiers that decide whether a completion is correct. If several of these verifiers score a completion, each
    value must be at least 1. If the list is empty, all verifiers whose value can reach 1 decide, except `max_length`,
    `reasoning_steps` and `reward_model`. Custom verifiers and verifiers of other servers are included. Metrics,
    `grpo.difficulty_low` and similar fields, `length` and `cosine` use this decision."""
    keep_thoughts: list[str] = Field(default_factory=list)
    """Built-in verifiers that judge thoughts as well. The other built-in verifiers judge only the text outside of
    thoughts, and give nothing for an unfinished thought (docs/rewards.md has the marks). Verifiers of form and length,
    and custom verifiers, always get the whole text."""
    judge: JudgeConfig = JudgeConfig()
    """The language model behind the labels that need one: `general-*`, `rubric`, `llm_judge`."""
    model: RewardModelConfig = RewardModelConfig()
    """The reward model behind the label `reward_model`."""
    custom: dict[str, CustomVerifierConfig] = Field(default_factory=dict)
    """Custom verifiers, by the names that the data uses."""
    servers: dict[str, RewardServerConfig] = Field(default_factory=dict)
    """Other servers whose verifiers are used, by names that you choose."""

    @field_validator("custom")
    @classmethod
    def _names_are_free(cls, custom: dict[str, CustomVerifierConfig]) -> dict[str, CustomVerifierConfig]:
        # Names in the data are read in lower case.
        tables: dict[str, CustomVerifierConfig] = {}
        for spelling, table in custom.items():
            name = check_name(spelling)
            if name in tables:
                raise ValueError(f"{name!r} occurs twice, in upper and in lower case: choose another name")
            tables[name] = table
        return tables

    @model_validator(mode="after")
    def _names_have_one_owner(self) -> Self:
        owners = {name: f"reward.custom.{name}" for name in self.custom}
        for server, config in self.servers.items():
            place = f"reward.servers.{server}.verifiers"
            for name in config.verifiers:
                if (owner := owners.setdefault(name, place)) != place:
                    raise ValueError(f"{place}: {owner} already has {name!r}: keep one of the two")
        return self

    @field_validator("remap", "weights")
    @classmethod
    def _names_are_in_lower_case(cls, table: dict[str, Any]) -> dict[str, Any]:
        return {name.lower(): value.lower() if isinstance(value, str) else value for name, value in table.items()}

    @field_validator("correct")
    @classmethod
    def _can_be_said(cls, correct: list[str], info: ValidationInfo) -> list[str]:
        names = [name.lower() for name in correct]
        options = info.data.get("verifiers", VerifiersConfig())
        if never := [name for name in names if not _reaches_1(options, name)]:
            raise ValueError(
                f"{never[0]!r} cannot say that a completion is correct: its best value is below 1. Name verifiers that "
                "judge answers, or leave this one out"
            )
        return names

    @field_validator("keep_thoughts")
    @classmethod
    def _keepers_are_built_in(cls, names: list[str]) -> list[str]:
        names = [name.lower() for name in names]
        if unknown := sorted({*names} - (RULE_VERIFIERS | JUDGE_VERIFIERS)):
            raise ValueError(
                f"{', '.join(unknown)}: name only built-in verifiers and judges that read answers; your own verifiers "
                "always get the whole text, and reward.model.after_thoughts decides what a reward model is shown"
            )
        return names

    def says_correct(self, verifier: str) -> bool:
        """Returns whether a verifier takes part in the verdict "correct". The verifiers that `reward.correct` names
        take part. If `reward.correct` is empty, all verifiers whose value can reach 1 take part, except measures of
        length and style, and reward models."""
        return (
            verifier in self.correct
            if self.correct
            else _reaches_1(self.verifiers, verifier) and verifier not in MEASURES
        )

    @property
    def verifiers_here(self) -> frozenset[str]:
        """Names of verifiers that are known without a call to a server."""
        declared = [name for server in self.servers.values() for name in server.verifiers]
        return BUILT_IN_VERIFIERS | installed_verifiers() | self.custom.keys() | frozenset(declared)

    @property
    def known_verifiers(self) -> frozenset[str] | None:
        """Names of verifiers that data may use. None if a server has not yet listed its verifiers."""
        return self.verifiers_here if all(server.verifiers for server in self.servers.values()) else None

    @property
    def shapes(self) -> bool:
        """Whether the reward is more than the weighted sum of the verifiers' values."""
        return (
            self.verification_reward != 1
            or not self.apply_verifiable_reward
            or self.only_reward_good_outputs
            or self.non_stop_penalty is not None
            or self.format.kind != "none"
            or any((self.style.tags, self.style.steps, self.overlong.factor, self.length.coef))
            or any((self.cosine.factor, self.repetition.max_penalty))
        )


def _reaches_1(options: VerifiersConfig, verifier: str) -> bool:
    """Returns whether the best value of a verifier is at least 1, with the verifier's options. The best values of
    custom verifiers and verifiers of other servers are unknown, so the result for these verifiers is true."""
    return verifier not in ZERO_AT_BEST and getattr(getattr(options, verifier, None), "reaches_1", True)
