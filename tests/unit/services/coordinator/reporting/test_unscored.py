from dataclasses import replace

from services.coordinator.reporting.unscored import Unscored, unscored_of
from services.coordinator.rollout.groups import SettledGroup
from shoal.scores import Score, ScoreOutcome, VerifierScore
from tests.support.groups import group_config, judged, settled_group
from tests.support.wordings import has_all, numbers_in


def unscored(*groups: SettledGroup) -> Unscored | None:
    return unscored_of(judged(group_config(), list(groups)))


def judge(outcome: ScoreOutcome, *parts: VerifierScore) -> Score:
    return Score(0, outcome, 0.0, parts)


def test_a_step_with_a_reward_for_every_completion_has_nothing_to_name() -> None:
    assert unscored(settled_group(0, [1.0, 0.0])) is None


def test_completions_without_a_reward_are_counted_and_the_first_failure_is_named() -> None:
    failed, unscorable, scored = ScoreOutcome.FAILED, ScoreOutcome.UNSCORABLE, ScoreOutcome.SCORED
    scores = (
        judge(unscorable, VerifierScore("math", unscorable, detail="no number")),
        judge(failed, VerifierScore("math", scored, 1.0), VerifierScore("mine", failed, detail="KeyError:\n  'x'")),
    )
    found = unscored(replace(settled_group(0, [0.0, 0.0]), scores=scores), settled_group(1, [1.0, 0.0]))
    assert found == Unscored(1, 1, 4, "mine: KeyError: 'x'")
    assert numbers_in(str(found)) == ["2", "4", "1", "1"] and str(found).endswith("mine: KeyError: 'x'"), found
    assert Unscored.from_attributes(found.attributes()) == found


def test_a_completion_that_cannot_be_judged_is_named_where_nothing_failed() -> None:
    scores = (judge(ScoreOutcome.UNSCORABLE, VerifierScore("math", ScoreOutcome.UNSCORABLE)),)
    found = unscored(replace(settled_group(0, [0.0]), scores=scores))
    assert has_all(str(found), "1 of 1 ", ": math: ") and "failed" not in str(found), found


def test_a_reason_that_quotes_a_completion_keeps_no_control_characters() -> None:
    part = VerifierScore("mine", ScoreOutcome.FAILED, detail="ValueError: '\x1b[2J\u202e5'")
    found = unscored(replace(settled_group(0, [0.0]), scores=(judge(ScoreOutcome.FAILED, part),)))
    assert found is not None and found.first_error == "mine: ValueError: '<U+001B>[2J<U+202E>5'"


def test_a_failure_without_any_verifiers_answer_says_so() -> None:
    found = unscored(replace(settled_group(0, [0.0]), scores=(judge(ScoreOutcome.FAILED),)))
    assert found is not None and "in time" in found.first_error
