"""Episodes that follow a script, over real gRPC: an environment with one tool, a policy that calls it, no engine."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import numpy as np
from google.protobuf import json_format
from google.protobuf.struct_pb2 import Struct

from shoal.errors import Aborted, InvalidArgument
from shoal.rpc.server import RpcServer
from shoal.v1 import environment_pb2 as pb
from shoal.v1 import environment_pb2_grpc, generator_pb2, reward_pb2, rollout_pb2
from tests.support.scripted_workers import ENCODER, Plane, ScriptedGenerator, ScriptedReward, break_connection
from tests.support.tiny_model import IM_END

SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
END = ENCODER.token_to_id(IM_END)


class ScriptedEnvironment(environment_pb2_grpc.EnvironmentServiceServicer):
    """Answers each call of its tool `add` with a number that counts the calls, and pays 0.25 for it. The whole episode
    is worth 1 if the policy ends it."""

    def __init__(self) -> None:
        self.is_deterministic = True
        self.starts: list[pb.EpisodeStart] = []
        self.turns: list[tuple[str, int]] = []
        """Episode and number of each turn that came, without those that are played again."""
        self.ends: list[str] = []
        """The stop reasons of the episodes that the caller ended."""
        self.num_open = 0
        self.losses: dict[int, int] = {}
        """How often the stream ends with ABORTED when a turn of that number comes; 0 is the start."""
        self.is_broken = False
        """End every stream with ABORTED when something comes on it."""
        self.fails_at: int | None = None
        """The turn at which the environment breaks."""
        self.fails_for = ""
        """The end of the ids of the episodes in which it does."""
        self.hangs_at: int | None = None
        self.hangs_for = ""
        self.dies_at: int | None = None
        """The turn at which the service breaks its connections, as a killed process does."""
        self.name = "counter"
        self.holds_at: int | None = None
        """The turn whose answer waits for `may_answer`."""
        self.may_answer = asyncio.Event()
        self.num_held = 0
        self.refused = ""
        """The question whose task it does not take."""
        self.server: RpcServer | None = None
        self.says = lambda calls: f"Result: {calls}"

    async def ListEnvironments(self, request: Any, context: Any) -> pb.ListEnvironmentsResponse:
        tool = pb.ToolDefinition(name="add", description="Adds", parameters=json_format.ParseDict(SCHEMA, Struct()))
        info = pb.EnvironmentInfo(name=self.name, tools=[tool], is_deterministic=self.is_deterministic)
        return pb.ListEnvironmentsResponse(environments=[info])

    async def RunEpisode(
        self, request_iterator: AsyncIterator[pb.RunEpisodeRequest], context: Any
    ) -> AsyncIterator[pb.RunEpisodeResponse]:
        self.num_open += 1
        try:
            async for response in self._play(request_iterator):
                yield response
        finally:
            self.num_open -= 1

    async def _play(self, requests: AsyncIterator[pb.RunEpisodeRequest]) -> AsyncIterator[pb.RunEpisodeResponse]:
        number, num_calls, episode_id = 0, 0, ""
        async for request in requests:
            part = request.WhichOneof("part")
            if part == "end":
                self.ends.append(request.end.stop_reason)
                result = pb.EpisodeResult(
                    outcome=rollout_pb2.SCORE_OUTCOME_SCORED,
                    reward=float(request.end.stop_reason == "no_call"),
                    metrics={"calls": num_calls},
                )
                yield pb.RunEpisodeResponse(result=result)
                return
            turns = [request.turn] if part == "turn" else list(request.start.replay)
            if part == "start":
                self._refuse(request.start)
                self.starts.append(request.start)
                episode_id = request.start.episode_id
            for turn in turns:
                number, num_calls = turn.number, num_calls + len(turn.message.tool_calls)
            if part == "turn":
                self.turns.append((episode_id, number))
            response = await self._answer(episode_id, number, num_calls, turns[-1] if turns else None)
            yield response
            if response.HasField("result"):
                return

    def _refuse(self, start: pb.EpisodeStart) -> None:
        if self.refused and any(message.content == self.refused for message in start.messages):
            raise InvalidArgument("start.task: the environment does not take it")

    async def _answer(
        self, episode_id: str, number: int, num_calls: int, turn: pb.PolicyTurn | None
    ) -> pb.RunEpisodeResponse:
        if self.losses.get(number):
            self.losses[number] -= 1
            raise Aborted("its process ended")
        if number == self.dies_at:
            server, self.server = self.server, None
            # gRPC does not stand a second call for the end of a server.
            await (break_connection(server) if server else asyncio.Event().wait())
        if number == self.holds_at:
            self.num_held += 1
            await self.may_answer.wait()
        if number == self.hangs_at and episode_id.endswith(self.hangs_for):
            await asyncio.Event().wait()
        if self.is_broken:
            raise Aborted("its process ended")
        if number == self.fails_at and episode_id.endswith(self.fails_for):
            result = pb.EpisodeResult(outcome=rollout_pb2.SCORE_OUTCOME_FAILED, detail="division by zero")
            return pb.RunEpisodeResponse(result=result)
        observation = pb.Observation(turn=number)
        if turn is not None and turn.message.tool_calls:
            for call in turn.message.tool_calls:
                observation.messages.add(role="tool", content=self.says(num_calls), tool_call_id=call.id, name="add")
                observation.tool_outcomes.add(name="add", ok=True, duration_s=0.01)
            observation.reward = 0.25
        return pb.RunEpisodeResponse(observation=observation)


class ScriptedStage(ScriptedReward, ScriptedEnvironment):
    """A reward service with an environment. The reward is the environment's (1 without one), and the sample's index."""

    def __init__(self) -> None:
        ScriptedReward.__init__(self)
        ScriptedEnvironment.__init__(self)
        self.episodes: list[rollout_pb2.Completion] = []

    async def ScoreGroup(
        self, request_iterator: AsyncIterator[reward_pb2.ScoreGroupRequest], context: Any
    ) -> AsyncIterator[reward_pb2.ScoreGroupResponse]:
        async for request in request_iterator:
            if request.HasField("prompt"):
                continue
            completion, episode = request.completion, request.completion.episode
            outcome, reward = rollout_pb2.SCORE_OUTCOME_SCORED, 1.0
            if completion.HasField("episode"):
                self.episodes.append(completion)
                outcome, reward = episode.outcome, episode.reward + sum(turn.reward for turn in episode.turns)
            index = completion.sample_index
            score = rollout_pb2.Score(sample_index=index, outcome=outcome, reward=reward + index)
            yield reward_pb2.ScoreGroupResponse(score=score)


class ScriptedPolicy(ScriptedGenerator):
    """Says what a script says to the text so far, token by token, and stops as an engine does."""

    def __init__(self, plane: Plane, says: Callable[[str, int], str] | None = None) -> None:
        super().__init__(plane)
        self.says = says or (lambda text, seed: "<add>1</add>" if text.count("Result") < 2 else f"{seed % 10}")
        """From the text so far and the seed."""
        self.end = END
        """The token that ends a turn."""
        self.holds_after: int | None = None
        """Report so many tokens of a turn, and go no further."""
        self.holds_turn = 1
        """The turn in which it does."""
        self.num_held = 0
        self.num_tokens = 0

    async def GenerateGroup(
        self, request: generator_pb2.GenerateGroupRequest, context: Any
    ) -> AsyncIterator[generator_pb2.GenerateGroupResponse]:
        if "/turn-" not in request.request_id:  # A group of single turns.
            async for response in super().GenerateGroup(request, context):
                yield response
            return
        self.requests.append(request)
        yield generator_pb2.GenerateGroupResponse(has_begun=True)
        await self.running.wait()
        text = ENCODER.decode(np.frombuffer(request.prompt_token_ids, "<i4").tolist(), skip_special_tokens=False)
        said, end = self.says(text, request.seeds[0]), [self.end]
        if stops := [stop for stop in request.sampling.stop_strings if stop in said]:
            stop = min(stops, key=said.index)
            said, end = said.partition(stop)[0] + stop, []
        tokens = np.array([*ENCODER.encode(said).ids, *end], "<i4")
        prefix = len(request.prefixes[0].token_ids) // 4 if request.prefixes else 0
        is_whole = len(tokens) <= request.sampling.max_completion_tokens
        tokens = tokens[prefix : request.sampling.max_completion_tokens]
        if self.holds_after is not None and f"/turn-{self.holds_turn}/" in request.request_id:
            part = self._fields(tokens[: self.holds_after])
            yield generator_pb2.GenerateGroupResponse(parts=[generator_pb2.CompletionPart(sample_index=0, **part)])
            self.num_held += 1
            await asyncio.Event().wait()
        self.num_tokens += len(tokens)
        finish = rollout_pb2.FINISH_REASON_STOP if is_whole else rollout_pb2.FINISH_REASON_LENGTH
        completion = rollout_pb2.Completion(
            sample_index=0, finish_reason=finish, seed=request.seeds[0], **self._fields(tokens)
        )
        yield generator_pb2.GenerateGroupResponse(completion=completion, num_prefix_tokens=prefix)

    def _fields(self, tokens: np.ndarray[Any, Any]) -> dict[str, Any]:
        return {
            "token_ids": tokens.astype("<i4").tobytes(),
            "behavior_logprobs": np.full(len(tokens), -1.0, "<f4").tobytes(),
            "version_spans": [rollout_pb2.VersionSpan(version=self.version, start=0, end=len(tokens))],
        }
