"""A whole run of episodes: real vLLM, real DeepSpeed, and an environment that is a Python file."""

import math
from collections.abc import Iterator

import pytest

from services.coordinator.store.rollouts import list_rollouts
from shoal.v1 import coordinator_pb2 as pb
from shoal.v1 import rollout_pb2
from tests.support.chatting_run import chatting_run
from tests.support.local_stack import LocalStack

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

NUM_STEPS, GROUPS, GROUP_SIZE = 7, 4, 8
GAME = '''
from shoal.environment import Environment, Observation


class Chatter(Environment):
    """Talks for 2 to 6 turns, and pays for digits."""

    is_deterministic = True

    def reset(self, task, seed):
        self.num_turns = 2 + seed % 5
        return "Say something." if seed % 2 else None

    def step(self, turn):
        self.metrics["digits"] = sum(letter.isdigit() for letter in turn.text)
        is_done = turn.number == self.num_turns
        return Observation(f"Again, for the {turn.number}th time.", reward=self.metrics["digits"] / 8, done=is_done)
'''


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStack]:
    folder = tmp_path_factory.mktemp("episodes")
    run = chatting_run(folder, "episodes", GAME, num_steps=NUM_STEPS, num_groups=GROUPS, group_size=GROUP_SIZE)
    with run as stack:
        yield stack


def test_engine_and_learner_agree_on_every_token_of_the_policy(stack: LocalStack) -> None:
    steps = stack.metrics()
    assert len(steps) == NUM_STEPS, stack.tail()
    gaps = [row["val/logprob_gap_max"] for row in steps]
    assert max(gaps) < 1e-4, f"largest difference of log-probabilities in each step: {gaps}"
    missing = [row["val/num_missing_behavior_logprobs"] for row in steps]
    assert not any(missing), f"tokens of the environment count in the loss: {missing}"
    assert all(math.isfinite(value) for row in steps for value in row.values() if isinstance(value, float))


def test_every_episode_is_in_the_ledger_and_only_what_was_sampled_is_trained_on(stack: LocalStack) -> None:
    response = list_rollouts(stack.folder, pb.ListRolloutsRequest(page_size=100))
    rollouts = [rollout for group in response.groups for rollout in group.rollouts]
    assert len(rollouts) >= 200 and {len(rollout.episode.turns) for rollout in rollouts} == {2, 3, 4, 5, 6}
    for rollout in rollouts:
        episode = rollout.episode
        assert (episode.stop_reason, episode.outcome) == ("done", rollout_pb2.SCORE_OUTCOME_SCORED), episode
        covered = [(span.start, span.end) for span in rollout.version_spans]
        assert covered == [(turn.start, turn.end) for turn in episode.turns], "versions are of sampled tokens alone"
        assert all(turn.end - turn.start <= 8 for turn in episode.turns)
    trained = [rollout for group in response.groups for rollout in group.rollouts if group.state == "TRAINED"]
    sampled = sum(turn.end - turn.start for rollout in trained for turn in rollout.episode.turns)
    counted = sum(row["val/num_loss_tokens"] for row in stack.metrics())
    assert counted == sampled, f"{counted} tokens counted in the loss, {sampled} were sampled"


def test_the_metrics_and_the_report_tell_of_turns(stack: LocalStack) -> None:
    row = stack.metrics()[-1]
    assert 2 <= row["episodes/turns"] <= 6 and row["episodes/failed_rate"] == 0 and "env/chatter/digits" in row
    assert row["episodes/environment_tokens"] > row["episodes/policy_tokens"] > 0
    report = (stack.folder / "report.html").read_text()
    assert "Again, for the 1th time." in report and "turn 2" in report and "(done)" in report
