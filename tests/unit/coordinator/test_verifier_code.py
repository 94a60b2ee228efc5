"""The event log says once which code scores, whatever order scores come in."""

from pathlib import Path

from services.coordinator.events import EventLog
from services.coordinator.verifier_code import VerifierCode
from shoal.rollout import Score, ScoreOutcome, VerifierScore

SETTLE_S = 10.0


def test_late_scores_of_the_code_before_are_no_change_and_going_back_is_one(tmp_path: Path) -> None:
    now = 0.0
    events = EventLog(tmp_path / "events.jsonl")
    code = VerifierCode(events, settle_s=SETTLE_S, clock=lambda: now)

    def told(digest: str, service: str = "one") -> int:
        """Events after a score by that code."""
        parts = (VerifierScore("gsm8k", ScoreOutcome.SCORED), VerifierScore("mine", ScoreOutcome.SCORED))
        parts = (parts[0], VerifierScore("mine", ScoreOutcome.SCORED, code_digest=digest))
        code.seen(service, "data:0", Score(0, ScoreOutcome.SCORED, 0.0, parts))
        return len((tmp_path / "events.jsonl").read_text().splitlines())

    assert [told("a"), told("a")] == [1, 1]
    assert [told("b"), told("a"), told("b")] == [2, 2, 2], "a completion that was begun before is no change"
    assert [told("a", "two"), told("a", "two")] == [3, 3], "each service takes the new code when it sees it"
    now = SETTLE_S + 1
    assert [told("a"), told("b")] == [4, 4], "the file was changed back"
    events.close()
