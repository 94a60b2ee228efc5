"""A whole run of episodes whose generator gets adapters: real vLLM, real DeepSpeed, real gloo.

Half of the groups are of an environment that is a Python file, half of an agent that is written with `openai`. All are
sampled with a top_k and a top_p, so the learner agrees only if it uses the support of each token.
"""

import math
from collections.abc import Iterator

import pytest

from services.coordinator.store.rollouts import list_rollouts
from shoal.v1 import coordinator_pb2 as pb
from shoal.v1 import rollout_pb2
from tests.support.chatting_run import chatting_run
from tests.support.local_stack import LocalStack

pytest.importorskip("openai")
pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

NUM_STEPS, GROUPS, GROUP_SIZE = 4, 6, 4
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
AGENT = '''
import asyncio

from openai import AsyncOpenAI

from shoal.environment import Agent


def user(text):
    return {"role": "user", "content": text}


class Chatter(Agent):
    """Talks, forgets all but the last words, talks on, and asks two things at once; pays for digits."""

    async def run(self, task, seed, policy):
        client = AsyncOpenAI(base_url=policy.base_url, api_key=policy.api_key, max_retries=20)

        async def say(messages, **more):
            answer = await client.chat.completions.create(model=policy.model, messages=messages, **more)
            return answer.choices[0].message

        messages = [user(self.prompt[0].content)]
        for number in range(3):
            messages += [await say(messages, max_tokens=5 + number), user(f"Again, for the {number}th time.")]
        messages = [user(f"You said: {messages[-2].content}. Go on.")]
        messages.append(await say(messages))
        ends = await asyncio.gather(*(say([*messages, user(f"End {number}.")]) for number in range(2)))
        self.metrics["digits"] = sum(letter.isdigit() for end in ends for letter in end.content)
        return self.metrics["digits"] / 8
'''


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStack]:
    run = chatting_run(
        tmp_path_factory.mktemp("episodes"),
        "episodes",
        {"game": GAME, "agent": AGENT},
        num_steps=NUM_STEPS,
        num_groups=GROUPS,
        group_size=GROUP_SIZE,
        sampling={"top_k": 20, "top_p": 0.9, "max_completion_tokens": 400},
        generator={"lora": "adapter"},
        learner={"learning_rate": 1e-2, "lora": {"rank": 4, "alpha": 8}},
    )
    with run as stack:
        yield stack


def groups_of(stack: LocalStack) -> list[pb.RolloutGroup]:
    return list(list_rollouts(stack.folder, pb.ListRolloutsRequest(page_size=100)).groups)


def rollouts_of(stack: LocalStack, environment: str) -> list[pb.Rollout]:
    """Returns the rollouts of an environment; there are enough of each."""
    groups = [group for group in groups_of(stack) if f"/{environment}.jsonl:" in group.prompt_id]
    assert len(groups) >= NUM_STEPS * GROUPS / 4, [group.prompt_id for group in groups_of(stack)]
    return [rollout for group in groups for rollout in group.rollouts]


def test_engine_and_learner_agree_on_every_token_of_the_policy(stack: LocalStack) -> None:
    steps = stack.metrics()
    assert len(steps) == NUM_STEPS, stack.tail()
    gaps = [row["val/logprob_gap_max"] for row in steps]
    assert max(gaps) < 1e-4, f"largest difference of log-probabilities in each step: {gaps}"
    missing = [row["val/num_missing_behavior_logprobs"] for row in steps]
    assert not any(missing), f"tokens of the environment count in the loss: {missing}"
    assert all(math.isfinite(value) for row in steps for value in row.values() if isinstance(value, float))
    assert all(row["optim/grad_norm"] > 0 for row in steps), "the policy did not move"


def test_publishes_carry_adapters_and_prove_them_on_the_generator(stack: LocalStack) -> None:
    publishes = [event["attributes"] for event in stack.of_kind("publish")]
    # Rank 4 on 7 layers in each of 2 blocks, float32.
    num_bytes = 4 * 4 * 2 * (4 * (64 + 64) + 3 * (64 + 128))
    assert {publish["num_bytes"] for publish in publishes} == {num_bytes}
    assert max(publish["canary_gap"] for publish in publishes) < 1e-3, publishes
    assert (stack.folder / "model").exists()


def test_every_episode_is_in_the_ledger_and_only_what_was_sampled_is_trained_on(stack: LocalStack) -> None:
    rollouts = rollouts_of(stack, "game")
    assert {len(rollout.episode.turns) for rollout in rollouts} == {2, 3, 4, 5, 6}
    for rollout in rollouts:
        episode = rollout.episode
        assert (episode.stop_reason, episode.outcome) == ("done", rollout_pb2.SCORE_OUTCOME_SCORED), episode
        covered = [(span.start, span.end) for span in rollout.version_spans]
        assert covered == [(turn.start, turn.end) for turn in episode.turns], "versions are of sampled tokens alone"
        assert all(turn.end - turn.start <= 8 for turn in episode.turns)
    trained = [rollout for group in groups_of(stack) for rollout in group.rollouts if group.state == "TRAINED"]
    sampled = sum(turn.end - turn.start for rollout in trained for turn in rollout.episode.turns)
    counted = sum(row["val/num_loss_tokens"] for row in stack.metrics())
    assert counted == sampled, f"{counted} tokens counted in the loss, {sampled} were sampled"


def test_every_episode_of_the_agent_is_one_rollout_of_three_segments(stack: LocalStack) -> None:
    for rollout in rollouts_of(stack, "agent"):
        assert rollout.score.outcome == rollout_pb2.SCORE_OUTCOME_SCORED, rollout.score
        assert len(rollout.episode.turns) == 6 and rollout.episode.stop_reason == "done"
        _, second, _ = segments = rollout.episode.segments
        starts = [turn.start for turn in rollout.episode.turns]
        assert [sum(each.start <= start < each.end for start in starts) for each in segments] == [3, 2, 1]
        assert second.messages[0].content.startswith("You said: ")
        assert rollout.score.reward == rollout.episode.metrics["digits"] / 8


def test_the_metrics_and_the_report_tell_of_turns_and_segments(stack: LocalStack) -> None:
    for row in stack.metrics():
        groups = [group for group in groups_of(stack) if group.order_number // GROUPS == row["step"] - 1]
        segments = [max(1, len(rollout.episode.segments)) for group in groups for rollout in group.rollouts]
        assert row["episodes/segments"] == pytest.approx(sum(segments) / len(segments)), (row, segments)
    assert 2 <= row["episodes/turns"] <= 6 and row["episodes/failed_rate"] == 0 and "env/game/digits" in row
    assert row["episodes/environment_tokens"] > row["episodes/policy_tokens"] > 0
    report = (stack.folder / "report.html").read_text()
    assert "Again, for the 1th time." in report and "turn 2" in report and "(done)" in report
