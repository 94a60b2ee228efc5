"""Consecutive steps that were not applied: how many there are, and when there are too many to continue.

By default, a run ends when it is not expected to train again. `grpo.max_skipped_steps` sets another limit.

    what the steps had                          ends after
    groups to train on, which the learner       3 steps
    refused
    groups that failed: not scored, lost, ...   3 steps, once every prompt has failed
    groups with rewards but no signal           3 steps with 100 such groups

Then the run fails. However, if all completions of the groups without a signal are right, a trained policy has learned
its prompts, and the run finishes (`num_learned_groups`). Groups of learned prompts (`grpo.easy_rate`) do not count.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from services.coordinator.rollout.groups import DropReason, JudgedGroup
from services.coordinator.rollout.prompt_order import PromptOrder
from shoal.config.live import LiveConfig
from shoal.error_reasons import ErrorReason
from shoal.errors import FailedPrecondition
from shoal.quantities import counted
from shoal.rollout import FinishReason

MAX_REFUSED_STEPS = 3
"""Number of steps in a row that the learner refuses before the run ends, if `grpo.max_skipped_steps` is unset. Numbers
that are not finite do not become finite by themselves."""

MIN_FAILED_STEPS = 3
"""Minimum number of skipped steps in a row before failed prompts end a run. One step may ask all of few prompts."""

MIN_GROUPS_WITHOUT_SIGNAL = 100
"""Number of groups in a row, from at least three steps, that end a run if none of them has a signal. Then, by the rule
of three, fewer than 3 % of groups have a signal, with 95 % confidence. A few hard first steps do not end a run."""

_LIMIT = "set grpo.max_skipped_steps to let the run skip more steps"
_REFUSED = "lower learner.learning_rate or learner.max_grad_norm; if correction.filters rejected all tokens, relax them"
_CURES = {
    DropReason.NOT_SCORED: "`{look} --failed` shows what the verifiers said",
    DropReason.REFUSED: "the group_dropped events show why workers refused prompts",
    DropReason.LOST: "the group_reissued events show what broke",
    DropReason.TIMEOUT: "raise coordinator.sampling_timeout_s, or lower sampling.max_completion_tokens",
    DropReason.MASKED: "raise sampling.max_completion_tokens, or mask less (grpo.mask_truncated_completions, "
    "grpo.max_wrong_completion_tokens, episodes.truncated)",
}
"""Where to look or what to change, by the reason why a failed group was dropped. Groups that were dropped for other
reasons have rewards, and the next completions of their prompts may have a signal."""

_WITHOUT_SIGNAL = (DropReason.NO_SIGNAL, DropReason.TOO_HARD, DropReason.TOO_EASY)
_ALL_WRONG = (
    "all wrong: if some answers look right, correct the labels or the verifier, or say in the prompt which form of "
    "answer the verifier reads; else take easier questions or a larger grpo.group_size"
)
_ALL_RIGHT = "all right: take harder questions"
_ALIKE = "neither all right nor all wrong: tell them apart by a finer reward or a larger grpo.group_size"


def empty_reason(groups: Sequence[JudgedGroup]) -> str:
    """Describes why no group is trained on, as in "every group was dropped: 3 no_signal, 1 not_scored"."""
    return f"every group was dropped: {_listed(Counter(group.drop_reason for group in groups if group.drop_reason))}"


def _listed(counts: "Counter[DropReason]") -> str:
    return ", ".join(f"{count} {reason}" for reason, count in sorted(counts.items()))


class SkippedSteps:
    """Counts the steps in a row that were not applied, and ends a run that is not expected to train again."""

    def __init__(self, config: LiveConfig, prompt_order: PromptOrder, *, look: str = "shoal run rollouts") -> None:
        """`look` is the command that lists the run's groups."""
        self._config = config
        self._look = look
        self._prompt_order = prompt_order
        self.num_in_a_row = 0
        """Steps in a row that were not applied."""
        self.num_refused = 0
        """Number of steps in a row that the learner refused. A step without a group to train on ends the row."""
        self._failures = Counter[DropReason]()
        """Number of groups in a row that failed, by reason."""
        self._failed_prompts = set[str]()
        """The prompts of the groups in a row that failed."""
        self._silent = SilentGroups()
        """Groups in a row that have rewards but no signal."""

    def end_row(self) -> None:
        """Records that a step was applied."""
        self.num_in_a_row = self.num_refused = 0
        self._silent = SilentGroups()
        self._forget_failures()

    def add(self, groups: Sequence[JudgedGroup]) -> None:
        """Counts a step that was not applied. The learner refused the step if it had a group to train on."""
        self.num_in_a_row += 1
        is_refused = any(group.is_trained for group in groups)
        self.num_refused = self.num_refused + 1 if is_refused else 0
        if is_refused:
            self._silent = SilentGroups()
        else:
            self._silent.add(group for group in groups if not self._prompt_order.is_learned(group))
        for group in groups:
            if group.drop_reason in _CURES:
                self._failures[group.drop_reason] += 1
                self._failed_prompts.add(group.settled.prompt.prompt_id)
            else:
                self._forget_failures()

    @property
    def num_learned_groups(self) -> int:
        """Number of groups in a row whose completions are all right; 0 until this is enough to end the run."""
        is_end = self._config().grpo.max_skipped_steps is None and self._has_no_signal()
        return self._silent.num_groups if is_end and self._silent.are_all_right else 0

    def raise_if_too_many(self, reason: str, unscored: str = "") -> None:
        """Raises `FailedPrecondition` (STEPS_SKIPPED) if the step that was added last ends the run.

        `reason` describes why that step was not applied, and `unscored` which of its completions have no reward.
        """
        if self._prompt_order.are_learned:
            return
        limit, message, steps = self._config().grpo.max_skipped_steps, "", counted(self.num_in_a_row, "step")
        if limit is not None and self.num_in_a_row >= limit:
            message = f"{steps} skipped in a row, the limit of grpo.max_skipped_steps; the last reason: {reason}"
        elif limit is None and self.num_refused >= MAX_REFUSED_STEPS:
            message = f"the learner refused {self.num_refused} steps in a row; the last reason: {reason}; {_REFUSED}"
        elif limit is None and self._every_prompt_failed():
            message = self._describe_failures(unscored)
        elif limit is None and self._has_no_signal():
            message = (
                f"{self.num_in_a_row} steps in a row were skipped, and none of their {self._silent.num_groups} groups "
                f"with rewards has a signal; {self._silent.advice(self._look)}; {_LIMIT}"
            )
        if message:
            raise FailedPrecondition(message, reason=ErrorReason.STEPS_SKIPPED)

    def _every_prompt_failed(self) -> bool:
        return self.num_in_a_row >= MIN_FAILED_STEPS and self._prompt_order.has_only(self._failed_prompts)

    def _has_no_signal(self) -> bool:
        return self.num_in_a_row >= MIN_FAILED_STEPS and self._silent.num_groups >= MIN_GROUPS_WITHOUT_SIGNAL

    def _describe_failures(self, unscored: str) -> str:
        return "; ".join(
            [
                f"{self.num_in_a_row} steps in a row were skipped, and every prompt failed; "
                f"the reasons of the last {self._failures.total()} groups: {_listed(self._failures)}",
                *([f"in the last step, {unscored}"] if unscored else []),
                *(cure.format(look=self._look) for reason, cure in _CURES.items() if reason in self._failures),
                _LIMIT,
            ]
        )

    def _forget_failures(self) -> None:
        self._failures.clear()
        self._failed_prompts.clear()


class SilentGroups:
    """Counts groups that have rewards but no signal."""

    def __init__(self) -> None:
        self._by_kind = Counter[str]()
        self._num_completions = self._num_cut_off = 0

    @property
    def num_groups(self) -> int:
        """Number of groups counted so far."""
        return self._by_kind.total()

    @property
    def are_all_right(self) -> bool:
        """Whether every completion of every group is right."""
        return set(self._by_kind) == {_ALL_RIGHT}

    def add(self, groups: Iterable[JudgedGroup]) -> None:
        """Counts the groups that have rewards and no signal."""
        for group in groups:
            if group.drop_reason in _WITHOUT_SIGNAL:
                self._by_kind[_kind_of(group)] += 1
                reasons = [completion.finish_reason for completion in group.settled.completions]
                self._num_completions += len(reasons)
                self._num_cut_off += reasons.count(FinishReason.LENGTH)

    def advice(self, look: str) -> str:
        """Describes each kind of group and what would help, the most frequent kind first. `look` lists groups."""
        parts = [f"in {counted(num, 'group')} the completions are {kind}" for kind, num in self._by_kind.most_common()]
        if 2 * self._num_cut_off > self._num_completions:
            parts.append(
                f"{self._num_cut_off} of {self._num_completions} completions were cut off: raise "
                "sampling.max_completion_tokens"
            )
        return "; ".join([*parts, f"`{look} --dropped --last 5` shows completions and rewards"])


def _kind_of(group: JudgedGroup) -> str:
    if group.correct_share == 0:
        return _ALL_WRONG
    return _ALL_RIGHT if group.correct_share == 1 else _ALIKE
