import pytest

from services.coordinator.cli.run.printing import print_group
from shoal.v1 import coordinator_pb2 as pb
from shoal.v1 import rollout_pb2

FAILED = rollout_pb2.SCORE_OUTCOME_FAILED


def test_no_control_character_of_a_completion_or_of_an_error_that_quotes_it_reaches_the_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    hostile = "\x1b]0;title\x07\x1b[2J\u202e5"
    part = rollout_pb2.VerifierScore(verifier="mine", outcome=FAILED, detail=f"Traceback\nValueError: {hostile}")
    score = rollout_pb2.Score(outcome=FAILED, verifier_scores=[part])
    print_group(pb.RolloutGroup(prompt_text=hostile, rollouts=[pb.Rollout(text=hostile, score=score)]))
    lines = capsys.readouterr().out.splitlines()
    assert [line.strip() for line in lines[-2:]] == [
        "mine FAILED: Traceback",
        "ValueError: <U+001B>]0;title<U+0007><U+001B>[2J<U+202E>5",
    ]
    assert all(line.isprintable() for line in lines), lines
