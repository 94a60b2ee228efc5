"""Rewards of completions, composed from the verifiers' scores by the configuration's `[reward]`.

First come the verifiers' values and an environment's rewards, then the format, which gates them or adds to them, then
style, length and repetition. A penalty replaces all of these if the completion did not end by itself.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from services.reward.verifiers.r1_format import has_r1_format
from services.reward.verifiers.reasoning_steps import reasoning_steps
from services.reward.verifiers.repetition_penalty import repetition_penalty
from services.reward.verifiers.soft_overlong import soft_overlong_punishment
from services.reward.verifiers.think_answer_format import has_think_answer_format
from services.reward.verifiers.think_answer_tags import think_answer_tags
from services.reward.verifiers.think_format import has_think_format
from shoal.config.run import RunConfig
from shoal.config.tables.composition import FormatRewardConfig
from shoal.config.tables.reward import RewardConfig
from shoal.grpo.correctness import deciding_values, verdict
from shoal.rollout import FinishReason, GroundTruth
from shoal.scores import RewardPart, Score, ScoreOutcome, VerifierScore

_FROM_BEST_TO_WORST = [ScoreOutcome.SCORED, ScoreOutcome.UNSCORABLE, ScoreOutcome.FAILED]


@dataclass(frozen=True)
class Output:
    """The parts of a completion that its reward depends on."""

    text: str
    finish_reason: FinishReason
    token_ids: Sequence[int] = ()
    """Needed if length or repetition counts."""
    turn_rewards: tuple[float, ...] = ()
    """Rewards of an environment's turns, in order."""
    episode_reward: float | None = None
    """The environment's reward of the whole episode."""
    outcome: ScoreOutcome = ScoreOutcome.SCORED
    """The environment's outcome; SCORED without an environment."""
    is_good: bool | None = None
    """Whether it is good for `only_reward_good_outputs`. None: it is good if it ended by itself and is not empty."""

    @property
    def ended(self) -> bool:
        return self.finish_reason is FinishReason.STOP


@dataclass(frozen=True)
class Composer:
    """The rules that compose rewards."""

    config: RewardConfig
    length_limit_tokens: int
    """The length limit of the parts that do not set one."""
    turns: Literal["last", "sum", "tokens"] = "last"
    """The turns of an environment that count; the verifiers' values belong to the last turn. With "tokens" no turn
    counts, since the advantages of tokens use them."""

    @classmethod
    def of(cls, config: RunConfig) -> "Composer":
        return cls(config.reward, config.sampling.max_completion_tokens, config.episodes.turn_rewards)

    @property
    def reads_tokens(self) -> bool:
        """Whether `compose` reads the token ids of outputs. Verifiers may also read them."""
        config = self.config
        counts_tokens = config.cosine.factor and not config.cosine.max_length_characters
        repeats_tokens = config.repetition.max_penalty and config.repetition.unit == "tokens"
        return any((config.overlong.factor, config.length.coef, counts_tokens, repeats_tokens))

    def score(
        self, sample_index: int, truths: Sequence[GroundTruth], parts: Sequence[VerifierScore], output: Output
    ) -> Score:
        """Returns the reward of one completion, with the worst outcome of its verifiers and environment. `parts` are in
        the order of `truths`. Unless all of them scored, there is no reward: the value 0 is then meaningless."""
        outcome = max((output.outcome, *(part.outcome for part in parts)), key=_FROM_BEST_TO_WORST.index)
        if outcome is not ScoreOutcome.SCORED:
            return Score(sample_index, outcome, 0.0, tuple(parts))
        if self.reads_tokens and output.text and not output.token_ids:
            # The length is unknown, and 0 tokens would get the best reward.
            return Score(sample_index, ScoreOutcome.UNSCORABLE, 0.0, tuple(parts))
        verified = math.fsum(truth.weight * part.value for truth, part in zip(truths, parts, strict=True))
        correct = bool(verdict(deciding_values(self.config, parts, self._environment_reward(output))))
        verifiers = [truth.verifier for truth in truths]
        reward, shares = self.compose(verified, output, correct=correct, verifiers=verifiers)
        return Score(sample_index, outcome, reward, tuple(parts), shares)

    def compose(
        self, verified: float, output: Output, *, correct: bool, verifiers: Sequence[str] = ()
    ) -> tuple[float, tuple[RewardPart, ...]]:
        """Returns the reward and its parts. `verified` is the weighted sum of the verifiers' values."""
        config = self.config
        total, shares = self._verifiable(verified, output)
        if config.format.kind != "none":
            before, total = total, self._with_format(total, output)
            shares.append(RewardPart("format", total - before))
        shaping = self._shaping_parts(output, correct=correct, verifiers=verifiers)
        shares += shaping
        total = math.fsum([total, *(share.value for share in shaping)])
        if config.non_stop_penalty is not None:
            before = total
            total = total if output.ended else config.non_stop_penalty
            shares.append(RewardPart("non_stop", total - before))
        return total, tuple(shares)

    def _verifiable(self, verified: float, output: Output) -> tuple[float, list[RewardPart]]:
        """Returns the reward of verifiers and turns, and its parts."""
        if not self.config.apply_verifiable_reward:
            return 0.0, []
        total = self.config.verification_reward * verified
        shares = [RewardPart("verifiable", total)]
        if (environment := self._environment_reward(output)) is not None:
            shares.append(RewardPart("environment", environment))
            total += environment
        if self.config.only_reward_good_outputs:
            correction = 0.0 if self._is_good(output) else -total
            shares.append(RewardPart("good_output", correction))
            total += correction
        return total, shares

    def _environment_reward(self, output: Output) -> float | None:
        """Returns the environment's reward; None if there is no environment or no reward."""
        if not output.turn_rewards and output.episode_reward is None:
            return None
        paid = output.turn_rewards if self.turns == "sum" else output.turn_rewards[-1:] if self.turns == "last" else ()
        return math.fsum((*paid, output.episode_reward or 0.0))

    def _is_good(self, output: Output) -> bool:
        return bool(output.ended and output.text.strip()) if output.is_good is None else output.is_good

    def _with_format(self, verifiable: float, output: Output) -> float:
        settings = self.config.format
        is_found = _has_format(settings, output.text)
        pays_verifiers = self.config.apply_verifiable_reward and (
            not self.config.only_reward_good_outputs or self._is_good(output)
        )
        if settings.mode == "gate" and pays_verifiers:
            return verifiable if is_found else 0.0
        return verifiable + (settings.value if is_found else 0.0)

    def _shaping_parts(self, output: Output, *, correct: bool, verifiers: Collection[str]) -> list[RewardPart]:
        """Returns the parts for style, length and repetition that are enabled."""
        config, limit, text, num_tokens = self.config, self.length_limit_tokens, output.text, len(output.token_ids)
        overlong, length, cosine, repetition = config.overlong, config.length, config.cosine, config.repetition
        parts = []
        if config.style.tags:
            parts.append(RewardPart("tags", config.style.tags * think_answer_tags(text)))
        if config.style.steps:
            parts.append(RewardPart("steps", config.style.steps * reasoning_steps(text)))
        if overlong.factor:
            most = overlong.max_length_tokens or limit
            punishment = soft_overlong_punishment(num_tokens, most, overlong.buffer_tokens)
            parts.append(RewardPart("overlong", overlong.factor * punishment))
        if length.coef:
            share = min(num_tokens / (length.max_length_tokens or limit), 1.0)
            parts.append(RewardPart("length", -length.coef * share if correct or not length.only_correct else 0.0))
        if cosine.factor:
            value = cosine_scaled_length(
                correct,
                len(text) if cosine.max_length_characters else num_tokens,
                max_length=cosine.max_length_characters or cosine.max_length_tokens or limit,
                correct_range=(cosine.correct_long, cosine.correct_short),
                wrong_range=(cosine.wrong_short, cosine.wrong_long),
            )
            parts.append(RewardPart("cosine", cosine.factor * value))
        if repetition.max_penalty:
            applies = not repetition.verifiers or any(name in repetition.verifiers for name in verifiers)
            units = text.lower().split() if repetition.unit == "words" else output.token_ids
            penalty = repetition_penalty(units, repetition.ngram_size, repetition.max_penalty)
            parts.append(RewardPart("repetition", penalty if applies else 0.0))
        return parts


def _has_format(settings: FormatRewardConfig, text: str) -> bool:
    if settings.kind == "think_answer":
        return has_think_answer_format(text, settings.code_language)
    return has_r1_format(text) if settings.kind == "r1" else has_think_format(text)


def cosine_scaled_length(
    correct: bool,
    length: int,
    *,
    max_length: int,
    correct_range: tuple[float, float] = (0.5, 1.0),
    wrong_range: tuple[float, float] = (-1.0, -0.5),
) -> float:
    """Returns a reward that favors short correct answers and long wrong answers (arXiv:2502.03373, section 4).

    From length 0 to `max_length`, the reward of a correct answer falls from the upper to the lower end of its range,
    and the reward of a wrong answer rises from the lower to the upper end, along half a period of the cosine.
    From `max_length` on the reward stays the same.
    """
    at_start, at_limit = reversed(correct_range) if correct else wrong_range
    share = (1 + math.cos(math.pi * min(length / max_length, 1.0))) / 2
    return at_limit + (at_start - at_limit) * share
