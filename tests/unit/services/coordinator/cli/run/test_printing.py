import pytest

from services.coordinator.cli.run.printing import print_group, print_run
from services.coordinator.cli.shared.output import Output
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


def test_an_episode_is_shown_by_its_end_and_its_turns_and_a_web_page_in_it_by_its_two_ends(
    capsys: pytest.CaptureFixture[str],
) -> None:
    turn = rollout_pb2.EpisodeTurn(message=rollout_pb2.ChatMessage(role="assistant", content="I read. " * 100))
    page = "begin" + "x" * 5000 + "end"
    turn.observations.add(role="tool", name="browse", content=page)
    episode = rollout_pb2.Episode(turns=[turn], stop_reason="max_turns", truncated=True)
    episode.outcome = rollout_pb2.SCORE_OUTCOME_SCORED
    print_group(pb.RolloutGroup(rollouts=[pb.Rollout(text="I read. " * 100, episode=episode)]))
    lines = [line.split(maxsplit=2) for line in capsys.readouterr().out.splitlines()[2:]]
    assert lines[0][:2] == ["0", "-"] and "max_turns" in lines[0][2] and "truncated" in lines[0][2], lines[0]
    assert lines[1] == ["turn", "1", repr("I read. " * 100)], "what the policy said is whole"
    who, shown = lines[2][0], " ".join(lines[2][1:])
    assert who == "browse" and shown.startswith("'begin") and shown.endswith("end'") and len(shown) < 700, shown
    assert "4,408 characters left out" in shown


def test_a_verb_answers_with_the_state_of_the_run_and_without_its_metrics(capsys: pytest.CaptureFixture[str]) -> None:
    run = pb.Run(run_id="sums", policy_version=3, num_steps=9, metrics={"grpo/loss": 0.5})
    print_run(run, Output.TABLE)
    short = capsys.readouterr().out
    print_run(run, Output.TABLE, with_metrics=True)
    whole = capsys.readouterr().out
    assert "3 of 9" in short and "grpo/loss" not in short, short
    assert "3 of 9" in whole and "grpo/loss" in whole, whole
