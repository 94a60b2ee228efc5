"""A whole run of an agent that is written with the package `openai`: real vLLM, real DeepSpeed, segments."""

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

NUM_STEPS, GROUPS, GROUP_SIZE = 4, 4, 4
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
    folder = tmp_path_factory.mktemp("agents")
    run = chatting_run(folder, "agents", AGENT, num_steps=NUM_STEPS, num_groups=GROUPS, group_size=GROUP_SIZE)
    with run as stack:
        yield stack


def test_engine_and_learner_agree_on_every_token_of_every_segment(stack: LocalStack) -> None:
    steps = stack.metrics()
    assert len(steps) == NUM_STEPS, stack.tail()
    gaps = [row["val/logprob_gap_max"] for row in steps]
    assert max(gaps) < 1e-4, f"largest difference of log-probabilities in each step: {gaps}"
    assert not any(row["val/num_missing_behavior_logprobs"] for row in steps)
    assert [row["episodes/segments"] for row in steps] == [3.0] * NUM_STEPS
    assert all(math.isfinite(value) for row in steps for value in row.values() if isinstance(value, float))


def test_every_episode_of_the_agent_is_one_rollout_of_three_segments(stack: LocalStack) -> None:
    response = list_rollouts(stack.folder, pb.ListRolloutsRequest(page_size=100))
    rollouts = [rollout for group in response.groups for rollout in group.rollouts]
    assert len(rollouts) >= NUM_STEPS * GROUPS * GROUP_SIZE
    for rollout in rollouts:
        assert rollout.score.outcome == rollout_pb2.SCORE_OUTCOME_SCORED, rollout.score
        assert len(rollout.episode.turns) == 6 and rollout.episode.stop_reason == "done"
        _, second, _ = segments = rollout.episode.segments
        starts = [turn.start for turn in rollout.episode.turns]
        assert [sum(each.start <= start < each.end for start in starts) for each in segments] == [3, 2, 1]
        assert second.messages[0].content.startswith("You said: ")
        assert rollout.score.reward == rollout.episode.metrics["digits"] / 8
