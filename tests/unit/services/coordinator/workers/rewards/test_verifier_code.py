"""The event log names each new code once, in whatever order scores come."""

from pathlib import Path

from services.coordinator.store.events import EventLog
from services.coordinator.workers.rewards.verifier_code import VerifierCode
from shoal.scores import Score, ScoreOutcome, VerifierScore

SETTLE_S = 10.0


def test_late_scores_of_the_former_code_are_no_change_and_going_back_is_one(tmp_path: Path) -> None:
    now = 0.0
    events = EventLog(tmp_path / "events.jsonl")
    code = VerifierCode(events, settle_s=SETTLE_S, clock=lambda: now)

    def num_events(digest: str, service: str = "one") -> int:
        """Number of events after a score by that code."""
        parts = (VerifierScore("gsm8k", ScoreOutcome.SCORED), VerifierScore("mine", ScoreOutcome.SCORED))
        parts = (parts[0], VerifierScore("mine", ScoreOutcome.SCORED, code_digest=digest))
        code.observe(service, "data:0", Score(0, ScoreOutcome.SCORED, 0.0, parts))
        return len((tmp_path / "events.jsonl").read_text().splitlines())

    assert [num_events("a"), num_events("a")] == [1, 1]
    assert [num_events("b"), num_events("a"), num_events("b")] == [2, 2, 2], (
        "a completion that was begun before is no change"
    )
    assert [num_events("a", "two"), num_events("a", "two")] == [3, 3], "each service takes the new code when it sees it"
    now = SETTLE_S + 1
    assert [num_events("a"), num_events("b")] == [4, 4], "the file was changed back"
    events.close()
