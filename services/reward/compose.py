"""From what each verifier said to the reward of a completion, by the configuration's `[reward]`.

In this order: what the verifiers pay, or the turns of an environment; the form, which gates that or adds to it; length
and repetition; and, in place of all of it, the penalty for not coming to an end.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from services.reward.shaping import reads_tokens, shaping_parts
from services.reward.verifiers.r1_format import has_r1_format
from services.reward.verifiers.think_format import has_think_format
from shoal.config.run import RunConfig
from shoal.config.services import RewardConfig
from shoal.rollout import FinishReason, GroundTruth, RewardPart, Score, ScoreOutcome, VerifierScore

_FROM_BEST_TO_WORST = [ScoreOutcome.SCORED, ScoreOutcome.UNSCORABLE, ScoreOutcome.FAILED]
_CORRECT = 1.0
"""The value from which on a verifier calls a completion correct."""


@dataclass(frozen=True)
class Output:
    """What a reward reads of a completion."""

    text: str
    finish_reason: FinishReason
    token_ids: Sequence[int] = ()
    """Needed where length or repetition counts."""
    turn_rewards: tuple[float, ...] = ()
    """What an environment paid, turn by turn."""
    is_good: bool | None = None
    """What `only_reward_good_outputs` asks; None: it ended by itself and is not empty."""

    @property
    def ended(self) -> bool:
        """Whether it ended by itself."""
        return self.finish_reason is FinishReason.STOP


@dataclass(frozen=True)
class Composer:
    """The rules by which rewards are made."""

    config: RewardConfig
    length_limit_tokens: int
    """The limit of the parts that name none."""
    turns: Literal["last", "sum"] = "last"
    """Which of an environment's turns count, the verifiers' pay included in the last."""

    @classmethod
    def of(cls, config: RunConfig) -> "Composer":
        return cls(config.reward, config.sampling.max_completion_tokens)

    @property
    def reads_tokens(self) -> bool:
        """Whether outputs need their token ids, whatever the verifiers read."""
        return reads_tokens(self.config)

    def score(
        self, sample_index: int, truths: Sequence[GroundTruth], parts: Sequence[VerifierScore], output: Output
    ) -> Score:
        """The reward of one completion, with the worst of its verifiers' outcomes.

        `parts` are in the order of `truths`. Unless every verifier scored there is no reward, so it is 0 and means
        nothing.
        """
        outcome = max((part.outcome for part in parts), key=_FROM_BEST_TO_WORST.index)
        if outcome is not ScoreOutcome.SCORED:
            return Score(sample_index, outcome, 0.0, tuple(parts))
        if self.reads_tokens and output.text and not output.token_ids:
            # Its length is not known, and 0 tokens would be paid best.
            return Score(sample_index, ScoreOutcome.UNSCORABLE, 0.0, tuple(parts))
        verified = math.fsum(truth.weight * part.value for truth, part in zip(truths, parts, strict=True))
        correct = all(part.value >= _CORRECT for part in parts)
        reward, shares = self.compose(verified, output, correct=correct)
        return Score(sample_index, outcome, reward, tuple(parts), shares)

    def compose(self, verified: float, output: Output, *, correct: bool) -> tuple[float, tuple[RewardPart, ...]]:
        """The reward and what it is made of. `verified` is the weighted sum of the verifiers' values."""
        config = self.config
        total, shares = self._paid(verified, output)
        if config.format.kind != "none":
            before, total = total, self._with_format(total, output)
            shares.append(RewardPart("format", total - before))
        shaping = shaping_parts(config, output.token_ids, correct=correct, length_limit_tokens=self.length_limit_tokens)
        shares += shaping
        total = math.fsum([total, *(share.value for share in shaping)])
        if config.non_stop_penalty is not None:
            before = total
            total = total if output.ended else config.non_stop_penalty
            shares.append(RewardPart("non_stop", total - before))
        return total, tuple(shares)

    def _paid(self, verified: float, output: Output) -> tuple[float, list[RewardPart]]:
        """What verifiers and turns pay."""
        if not self.config.apply_verifiable_reward:
            return 0.0, []
        total = self.config.verification_reward * verified
        shares = [RewardPart("verifiable", total)]
        if output.turn_rewards:
            *earlier, last = output.turn_rewards
            turns = last + (math.fsum(earlier) if self.turns == "sum" else 0.0)
            shares.append(RewardPart("turns", turns))
            total += turns
        if self.config.only_reward_good_outputs:
            taken = 0.0 if self._is_good(output) else -total
            shares.append(RewardPart("good_output", taken))
            total += taken
        return total, shares

    def _is_good(self, output: Output) -> bool:
        return bool(output.ended and output.text.strip()) if output.is_good is None else output.is_good

    def _with_format(self, paid: float, output: Output) -> float:
        form = self.config.format
        is_found = has_r1_format(output.text) if form.kind == "r1" else has_think_format(output.text)
        pays_verifiers = self.config.apply_verifiable_reward and (
            not self.config.only_reward_good_outputs or self._is_good(output)
        )
        if form.mode == "gate" and pays_verifiers:
            return paid if is_found else 0.0
        return paid + (form.value if is_found else 0.0)
