"""What an environment of another server may say to one turn."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from services.reward.environments.remote import RemoteEnvironment
from shoal.config.tables.environments import EnvironmentConfig
from shoal.v1 import environment_pb2 as pb
from shoal.v1 import environment_pb2_grpc, rollout_pb2
from tests.support.loopback import ENVIRONMENT, serving


class Server(environment_pb2_grpc.EnvironmentServiceServicer):
    """Says one thing, whatever is played, and then that all is well."""

    def __init__(self, said: pb.Observation) -> None:
        self.said = said

    async def RunEpisode(self, request_iterator: Any, context: Any) -> AsyncIterator[pb.RunEpisodeResponse]:
        yield pb.RunEpisodeResponse(observation=self.said)
        yield pb.RunEpisodeResponse(result=pb.EpisodeResult(outcome=rollout_pb2.SCORE_OUTCOME_SCORED))


async def played(said: pb.Observation) -> list[pb.RunEpisodeResponse]:
    async def no_requests() -> AsyncIterator[pb.RunEpisodeRequest]:
        for request in ():
            yield request

    async with serving(Server(said), ENVIRONMENT) as address:
        config = EnvironmentConfig(name="game", server=address, max_observation_chars=64)
        environment = RemoteEnvironment(config, gets_token=False, patience_s=10.0)
        try:
            return [response async for response in environment.play(pb.EpisodeStart(), no_requests())]
        finally:
            await environment.close()


async def test_names_and_texts_are_cut_and_so_are_outcomes_of_calls_that_nobody_made() -> None:
    message = dict.fromkeys(("role", "content", "tool_call_id", "name"), "x" * 1000)
    outcomes = [rollout_pb2.ToolOutcome(name="y" * 1000)] * 300
    said = pb.Observation(messages=[rollout_pb2.ChatMessage(**message)] * 2, tool_outcomes=outcomes)
    observed, result = await played(said)
    lengths = [[len(getattr(one, name)) for name in message] for one in observed.observation.messages]
    assert [length[0] for length in lengths] == [length[2] for length in lengths] == [100, 100], lengths
    assert [length[3] for length in lengths] == [100, 100] and max(length[1] for length in lengths) < 100, lengths
    assert {len(outcome.name) for outcome in observed.observation.tool_outcomes} == {100}
    assert len(observed.observation.tool_outcomes) == 256
    assert result.result.outcome == rollout_pb2.SCORE_OUTCOME_SCORED


@pytest.mark.parametrize(("num_messages", "is_failed"), [(256, False), (257, True)])
async def test_more_messages_than_an_environment_may_say_at_once_fail_the_episode(
    num_messages: int, is_failed: bool
) -> None:
    said = pb.Observation(messages=[rollout_pb2.ChatMessage(role="user", content="x")] * num_messages)
    *_, last = await played(said)
    outcome = rollout_pb2.SCORE_OUTCOME_FAILED if is_failed else rollout_pb2.SCORE_OUTCOME_SCORED
    assert last.result.outcome == outcome, last
    if is_failed:
        assert last.result.detail.startswith("environments.game.server: ") and "256" in last.result.detail
