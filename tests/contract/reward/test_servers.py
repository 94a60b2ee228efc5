"""Contract tests of verifiers on other servers: the example server, and a scripted one that misbehaves."""

import sys
from asyncio import sleep
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest

from services.reward.reward_servers import ServerScorer
from shoal.config.tables.custom_verifiers import RewardServerConfig
from shoal.errors import FailedPrecondition, Internal, InvalidArgument, ResourceExhausted, ShoalError, Unavailable
from shoal.rollout import GroundTruth
from shoal.rpc.auth import credentials as auth
from shoal.rpc.auth.credentials import Credentials
from shoal.rpc.auth.permissions import Role
from shoal.rpc.server import RpcServer
from shoal.scores import ScoreOutcome
from shoal.v1 import reward_pb2, rollout_pb2, worker_pb2
from shoal.v1.reward_pb2_grpc import RewardServiceServicer, add_RewardServiceServicer_to_server
from shoal.wire import ground_truth_to_wire
from tests.contract.reward.test_custom_verifiers import listed, refusal
from tests.support.loopback import REWARD, serving
from tests.support.processes import line_of, running
from tests.support.reward_client import FIVE, TIMEOUT_S, Client, completion_request, prompt_request
from tests.support.secured import Tokens
from tests.support.waiting import eventually

SCORED = rollout_pb2.SCORE_OUTCOME_SCORED


class Scripted(RewardServiceServicer):
    """A server that answers `ScoreGroup` by a script: errors to raise, lists of scores to send, None to hang."""

    def __init__(self) -> None:
        self.names = ["Style"]
        self.script: list[ShoalError | Sequence[dict[str, Any]] | None] = []
        self.requests: list[list[reward_pb2.ScoreGroupRequest]] = []

    async def start(self, port: int = 0) -> None:
        self.server = RpcServer(listen=f"127.0.0.1:{port}")
        self.server.add(add_RewardServiceServicer_to_server, self, "shoal.v1.RewardService")
        await self.server.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.port}"

    def table(self, **settings: Any) -> dict[str, Any]:
        return {"other": {"address": self.address, **settings}}

    async def ListVerifiers(self, request: Any, context: Any) -> reward_pb2.ListVerifiersResponse:
        return reward_pb2.ListVerifiersResponse(
            verifiers=[reward_pb2.VerifierInfo(name=name, description=f"About {name}.") for name in self.names]
        )

    async def ScoreGroup(
        self, request_iterator: AsyncIterator[reward_pb2.ScoreGroupRequest], context: Any
    ) -> AsyncIterator[reward_pb2.ScoreGroupResponse]:
        self.requests.append([request async for request in request_iterator])
        answer = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        if isinstance(answer, ShoalError):
            raise answer
        if answer is None:
            await sleep(3600)
        for score in answer or ():
            yield reward_pb2.ScoreGroupResponse(score=score)  # type: ignore[arg-type]


@pytest.fixture
async def other() -> AsyncIterator[Scripted]:
    scripted = Scripted()
    await scripted.start()
    yield scripted
    await scripted.server.stop(0)


STYLE = GroundTruth("style", ["a label"], 2.0)


async def test_the_example_server_is_listed_and_its_scores_are_added_to_those_of_built_in_verifiers(
    client: Client,
) -> None:
    async with running(sys.executable, "examples/reward_server.py", "127.0.0.1:0") as process:
        port = (await line_of(process)).split()[-1]
        servers = {"words": {"address": f"127.0.0.1:{port}"}}
        await client.configured(num_processes=1, servers=servers, verification_reward=10.0)
        assert (await listed(client))["word_budget"].description
        truths = [FIVE, GroundTruth("word_budget", "2", 0.5)]
        scores = sorted(await client.score(truths, ["so 5", "it is 5"]), key=lambda score: score.sample_index)
        assert [score.reward for score in scores] == [15.0, 12.5]
        (score,) = await client.score([FIVE, GroundTruth("word_budget", "few")], ["5"])
        assert score.outcome is ScoreOutcome.UNSCORABLE, score


async def test_a_server_receives_one_verifier_in_its_own_spelling_and_one_completion(
    client: Client, other: Scripted
) -> None:
    other.script = [[{"sample_index": 3, "outcome": SCORED, "reward": 0.5}]]
    await client.configured(num_processes=1, servers=other.table())
    requests = [prompt_request([FIVE, STYLE]), completion_request(3, "it is 5", [1, 2])]
    (score,) = await client.send(requests)
    assert score.reward == 1 + 2 * 0.5
    ((prompt, completion),) = other.requests
    (truth,) = prompt.prompt.ground_truths
    assert (truth.verifier, truth.weight, list(truth.label.list_value)) == ("Style", 1.0, ["a label"])
    assert prompt.prompt.text == "a question"
    assert completion.completion == requests[1].completion


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ([], "0 scores for one completion"),
        ([{"outcome": SCORED}] * 2, "2 scores for one completion"),
        ([{"outcome": SCORED, "sample_index": 7}], "sample_index 7, not 0"),
        ([{"reward": 1.0}], "score.outcome"),
        ([{"outcome": SCORED, "reward": float("nan")}], "the value nan"),
        ([{"outcome": SCORED, "reward": 1e300}], "the value 1e+300"),
        ([{"outcome": SCORED, "verifier_scores": [{"outcome": SCORED}] * 2}], "2 verifier_scores for one verifier"),
        (Internal("a defect"), "a defect"),
        (InvalidArgument("no such label"), "no such label"),
        (FailedPrecondition("not configured"), "not configured"),
        (Unavailable("away"), "away"),
    ],
)
async def test_an_invalid_score_or_an_error_is_failed_with_the_reason(
    client: Client, other: Scripted, answer: Any, message: str
) -> None:
    other.script = [answer]
    await client.configured(num_processes=1, servers=other.table(max_attempts=2))
    (score,) = await client.score([STYLE], ["x"])
    (part,) = score.verifier_scores
    assert (score.outcome, part.verifier) == (ScoreOutcome.FAILED, "style"), score
    assert f"reward.servers.other ({other.address})" in part.detail and message in part.detail, part


async def test_an_unavailable_or_busy_server_is_retried_and_an_internal_error_is_not(
    client: Client, other: Scripted
) -> None:
    good = [{"outcome": SCORED, "verifier_scores": [{"outcome": SCORED, "value": 0.75, "code_digest": "3fa2"}]}]
    other.script = [ResourceExhausted("busy", retry_after_s=0.3), Unavailable("away"), good]
    await client.configured(num_processes=1, servers=other.table(max_attempts=3))
    (score,) = await client.score([STYLE], ["x"])
    (part,) = score.verifier_scores
    assert (part.value, part.code_digest) == (0.75, "3fa2"), part
    assert part.duration_s >= 0.3, "it was retried before its retry delay"
    num_requests = len(other.requests)
    other.script = [Internal("a defect"), good]
    (score,) = await client.score([STYLE], ["x"])
    assert score.outcome is ScoreOutcome.FAILED
    assert len(other.requests) == num_requests + 1


class Strict(Scripted):
    async def CheckLabels(self, request: Any, context: Any) -> reward_pb2.CheckLabelsResponse:
        truth = request.ground_truths[0]
        bad = [reward_pb2.LabelProblem(index=0, reason="is short")] if len(truth.label.string_value) < 3 else []
        return reward_pb2.CheckLabelsResponse(problems=bad if truth.verifier == "Style" else [])


@pytest.mark.parametrize(("kind", "found"), [(Strict, [1]), (Scripted, [])])
async def test_labels_are_checked_by_a_server_that_implements_it_and_accepted_by_one_that_does_not(
    client: Client, kind: type[Scripted], found: list[int]
) -> None:
    other = kind()
    await other.start()
    await client.configured(num_processes=1, servers=other.table())
    truths = [GroundTruth("style", "long"), GroundTruth("style", "no"), GroundTruth("gsm8k", "5")]
    request = reward_pb2.CheckLabelsRequest(ground_truths=map(ground_truth_to_wire, truths))
    problems = (await client.stub.CheckLabels(request, timeout=TIMEOUT_S)).problems
    await other.server.stop(0)
    assert [problem.index for problem in problems] == found, problems
    assert all("reward.servers.other" in problem.reason and "is short" in problem.reason for problem in problems)


async def test_completions_fail_until_a_stopped_server_is_back(client: Client, other: Scripted) -> None:
    other.script = [[{"outcome": SCORED, "reward": 1.0}]]
    await client.configured(num_processes=1, servers=other.table(max_attempts=1, timeout_s=20.0))
    port = other.server.port
    await other.server.stop(0)
    scores = await client.score([STYLE], ["x", "y"])
    assert {score.outcome for score in scores} == {ScoreOutcome.FAILED}
    assert f"127.0.0.1:{port}" in scores[0].verifier_scores[0].detail, scores[0]
    await other.start(port)
    (score,) = await client.score([FIVE], ["5"])
    assert score.reward == 1.0

    async def is_scored() -> bool:
        [score] = await client.score([STYLE], ["x"])
        return score.outcome is ScoreOutcome.SCORED

    await eventually(is_scored, "the restarted server scores again")


async def test_a_hanging_server_is_failed_at_its_timeout(client: Client, other: Scripted) -> None:
    other.script = [None]
    await client.configured(num_processes=1, servers=other.table(timeout_s=1.0))
    (score,) = await client.score([STYLE], ["x"])
    (part,) = score.verifier_scores
    assert score.outcome is ScoreOutcome.FAILED and "timeout_s (1 s)" in part.detail, part
    assert part.duration_s >= 1.0, part


async def test_missing_or_duplicate_verifier_names_are_refused_when_configured(client: Client, other: Scripted) -> None:
    refused = await refusal(client, servers=other.table(verifiers=["tone"]))
    assert refused.startswith("reward.servers.other.verifiers: ") and "'tone'" in refused and "style" in refused, (
        refused
    )
    other.names = ["gsm8k", "style"]
    assert "'gsm8k'" in await refusal(client, servers=other.table())
    await client.configured(servers=other.table(verifiers=["Style"]))
    assert "style" in await listed(client)
    other.names = ["style"]
    two = {"one": {"address": other.address}, "two": {"address": other.address}}
    refused = await refusal(client, servers=two)
    assert "reward.servers.two.verifiers: 'style'" in refused and "reward.servers.one" in refused, refused


async def test_a_server_that_is_not_a_reward_server_is_refused_with_its_address(client: Client) -> None:
    empty = grpc.aio.server()
    port = empty.add_insecure_port("127.0.0.1:0")
    await empty.start()
    message = await refusal(client, servers={"other": {"address": f"127.0.0.1:{port}"}})
    assert f"reward.servers.other.address: 127.0.0.1:{port} " in message, message
    await empty.stop(0)


async def test_a_service_waits_for_a_server_that_starts_after_it(client: Client, other: Scripted) -> None:
    other.script = [[{"outcome": SCORED, "reward": 1.0}]]
    port = other.server.port
    await other.server.stop(0)
    await client.configure(num_processes=1, servers={"other": {"address": f"127.0.0.1:{port}"}})
    await sleep(0.5)
    assert (await client.status()).status.state == worker_pb2.WORKER_STATE_LOADING
    await other.start(port)
    await client.until(lambda status: status.status.state == worker_pb2.WORKER_STATE_READY)
    (score,) = await client.score([STYLE], ["x"])
    assert score.reward == 2.0


async def test_the_token_of_the_service_goes_only_to_servers_that_its_operator_names(
    other: Scripted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = Tokens(tmp_path)
    monkeypatch.setattr(auth, "_process", Credentials(tokens=None, token=tokens.client(Role.WORKER)))
    async with serving(other, REWARD, credentials=tokens.server(None)) as address:
        for allowed in ((), (other.address,), (address,)):
            scorer = ServerScorer({"strict": RewardServerConfig(address=address)}, allowed)
            try:
                if address in allowed:
                    await scorer.find({}, 0.0)
                    assert list(scorer.names) == ["style"]
                else:
                    with pytest.raises(FailedPrecondition, match=r"carries no token.*--allow-reward-server HOST:PORT"):
                        await scorer.find({}, 0.0)
            finally:
                await scorer.close()
