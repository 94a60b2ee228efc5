import numpy as np

from services.coordinator.reporting.shown_completions import MAX_CHARS, shown
from shoal.rollout import Completion, FinishReason, GroundTruth, Prompt
from shoal.scores import Score, ScoreOutcome, VerifierScore
from tests.support.wordings import has_all

NO_TOKENS = np.zeros(0, np.int32)


def prompt(text: str) -> Prompt:
    return Prompt(f"s:{text}", NO_TOKENS, text, (GroundTruth("gsm8k", 7),))


def completion(index: int, text: str) -> Completion:
    empty = np.zeros(0, np.float32)
    return Completion(index, np.zeros(3, np.int32), empty, FinishReason.STOP, (), seed=0, text=text)


def score(index: int, outcome: ScoreOutcome = ScoreOutcome.SCORED) -> Score:
    return Score(index, outcome, 0.5, (VerifierScore("gsm8k", outcome, 0.5),))


def test_each_group_shows_its_first_completion_before_any_shows_its_second() -> None:
    judged = [
        (prompt(name), [completion(i, f"{name}{i}") for i in range(size)], [score(i) for i in range(size)])
        for name, size in (("a", 3), ("b", 1), ("c", 2), ("dropped", 0))
    ]
    assert [one.completion for one in shown(judged, 5)] == ["a0", "b0", "c0", "a1", "c1"]
    assert len(shown(judged, 99)) == 6 and shown([], 4) == []


def test_what_a_model_wrote_is_visible_and_cut() -> None:
    long = "x" * MAX_CHARS + "\x1b[2J" + "y" * MAX_CHARS
    [hidden, cut] = shown([(prompt("q"), [completion(0, "a\u202eb"), completion(1, long)], [score(0), score(1)])], 2)
    assert hidden.completion == "a<U+202E>b"
    assert len(cut.completion) < MAX_CHARS + 50 and f"{len(long) - MAX_CHARS:,} characters" in cut.completion
    assert "\x1b" not in str(cut)


def test_a_completion_without_a_reward_says_why() -> None:
    [one] = shown([(prompt("q"), [completion(0, "text")], [score(0, ScoreOutcome.FAILED)])], 1)
    assert one.reward is None and one.verdicts == "gsm8k failed"
    assert str(one).splitlines()[1::2] == ["q", "text"]
    assert has_all(str(one), "label: 7", "3 tokens, no reward; gsm8k failed"), str(one)
