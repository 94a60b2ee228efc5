"""Contract tests of the reward service over real gRPC, with a real pool of processes."""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from services.reward.service import RewardService
from services.reward.verifiers import code
from services.reward.verifiers.registry import VERIFIERS
from shoal.config.tables.verifiers import JUDGE_VERIFIERS, MODEL_VERIFIERS
from shoal.conversation import ChatMessage
from shoal.errors import FailedPrecondition, InvalidArgument, ResourceExhausted, Unavailable
from shoal.rollout import GroundTruth, Prompt
from shoal.rpc.channel import connect
from shoal.scores import ScoreOutcome
from shoal.v1 import reward_pb2, worker_pb2
from shoal.v1.reward_pb2_grpc import RewardServiceStub
from shoal.wire import ground_truth_to_wire, prompt_to_wire, score_from_wire
from tests.support.processes import serving_process
from tests.support.reward_client import (
    ALLOWED,
    FIVE,
    HANG,
    TIMEOUT_S,
    Client,
    completion_request,
    config,
    prompt_request,
)
from tests.support.waiting import eventually
from tests.unit.services.reward.judge.judge_server import judge_server


async def test_a_thousand_streamed_completions_are_each_scored_once(client: Client) -> None:
    await client.configured(num_processes=2)
    scores = await client.score([FIVE], [f"it is {number % 10}" for number in range(1000)])
    assert sorted(score.sample_index for score in scores) == list(range(1000))
    wrong = [score for score in scores if score.reward != float(score.sample_index % 10 == 5)]
    assert not wrong, f"{len(wrong)} of 1000 scores are wrong, first: {wrong[0]}"
    assert (await client.status()).num_scored == {"scored": 1000, "unscorable": 0, "failed": 0}


async def test_a_completion_is_scored_before_the_next_one_arrives(client: Client) -> None:
    await client.configured(num_processes=1)
    first_scored = asyncio.Event()

    async def stream() -> AsyncIterator[reward_pb2.ScoreGroupRequest]:
        yield prompt_request([FIVE])
        yield completion_request(0, "5")
        await first_scored.wait()
        yield completion_request(1, "6")

    rewards = []
    async for response in client.stub.ScoreGroup(stream(), timeout=TIMEOUT_S):
        rewards.append(response.score.reward)
        first_scored.set()
    assert rewards == [1.0, 0.0]


async def test_a_weight_that_could_overflow_a_double_is_refused_with_its_field(client: Client) -> None:
    await client.configured(num_processes=1)
    for weight in (1e308, -1e31, float("inf"), float("nan")):
        with pytest.raises(InvalidArgument, match=r"ground_truths\[1\].weight"):
            await client.score([FIVE, GroundTruth("gsm8k", "5", weight)], ["5"])


async def test_verifiers_use_the_options_of_the_configuration(client: Client) -> None:
    await client.configured(num_processes=1, verifiers={"gsm8k": {"equality": "text"}})
    assert [score.reward for score in await client.score([FIVE], ["5.0"])] == [0.0]
    await client.configured(num_processes=1, verifiers={"gsm8k": {"equality": "number"}})
    await client.until(lambda status: status.status.state == worker_pb2.WORKER_STATE_READY)
    assert [score.reward for score in await client.score([FIVE], ["5.0"])] == [1.0]


async def test_length_verifiers_receive_the_token_ids_and_are_unscorable_without_them(client: Client) -> None:
    await client.configured(num_processes=1, verifiers={"max_length": {"max_length_tokens": 10}})
    truths = [GroundTruth("max_length", "4"), GroundTruth("repetition_penalty", "")]
    requests = [completion_request(0, "a b", [7] * 6), completion_request(1, "a b")]
    scores = sorted(await client.send([prompt_request(truths), *requests]), key=lambda score: score.sample_index)
    assert [part.value for part in scores[0].verifier_scores] == pytest.approx([0.8, -0.75]), scores[0]
    assert scores[1].outcome is ScoreOutcome.UNSCORABLE, scores[1]


async def test_labels_are_checked_without_a_completion(client: Client) -> None:
    truths = [GroundTruth("gsm8k", "5"), GroundTruth("regex", "("), GroundTruth("x", 1.0)]
    request = reward_pb2.CheckLabelsRequest(ground_truths=map(ground_truth_to_wire, truths))
    with pytest.raises(FailedPrecondition, match="not READY"):
        await client.stub.CheckLabels(request, timeout=TIMEOUT_S)
    await client.configured(num_processes=1)
    problems = (await client.stub.CheckLabels(request, timeout=TIMEOUT_S)).problems
    assert [problem.index for problem in problems] == [1, 2], problems
    assert "regular expression" in problems[0].reason and "'x'" in problems[1].reason, problems


async def test_scores_arrive_in_the_order_of_completion(client: Client, custom: dict[str, Any], tmp_path: Path) -> None:
    await client.configured(num_processes=2, timeout_s=60.0, custom=custom)
    scoring = asyncio.create_task(client.score([HANG], [str(tmp_path / "go on"), "5", "6"]))
    await client.until(lambda status: status.num_scored["scored"] == 2)
    (tmp_path / "go on").touch()
    assert [score.sample_index for score in await scoring] == [1, 2, 0]


async def test_a_canceled_call_leaves_no_work_behind(client: Client, custom: dict[str, Any]) -> None:
    await client.configured(num_processes=1, timeout_s=2.0, custom=custom)
    scoring = asyncio.create_task(client.score([HANG], ["hang"] * 50))
    await client.until_running(1)
    scoring.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await scoring
    [score] = await client.score([FIVE], ["5"])
    assert score.reward == 1.0
    load = (await client.status()).status.load
    assert (load.num_running, load.num_waiting) == (0, 0)


async def test_the_same_configuration_again_changes_nothing(client: Client) -> None:
    await client.configured(num_processes=1)
    before = (await client.status()).pool_pids
    assert (await client.configure(num_processes=1)).state == worker_pb2.WORKER_STATE_READY
    assert (await client.status()).pool_pids == before


async def test_another_configuration_replaces_the_pool(client: Client) -> None:
    await client.configured(num_processes=1)
    before = (await client.status()).pool_pids
    await client.configured(num_processes=2)
    after = (await client.status()).pool_pids
    assert len(after) == 2 and not set(before) & set(after)


async def test_a_configuration_that_does_not_validate_is_an_invalid_argument(client: Client) -> None:
    request = reward_pb2.RewardServiceConfigureRequest(run_id="r", config=config())
    request.config.fields["reward"].struct_value.fields["num_processes"].number_value = 0
    with pytest.raises(InvalidArgument, match=r"reward\.num_processes"):
        await client.stub.Configure(request, timeout=60)


async def test_another_run_is_refused_while_completions_are_being_scored(
    client: Client, custom: dict[str, Any], tmp_path: Path
) -> None:
    await client.configured(num_processes=1, timeout_s=60.0, custom=custom)
    scoring = asyncio.create_task(client.score([HANG], [str(tmp_path / "go on")]))
    await client.until_running(1)
    with pytest.raises(FailedPrecondition, match="run-1"):
        await client.configure("run-2")
    (tmp_path / "go on").touch()
    await scoring
    assert (await client.configure("run-2")).run_id == "run-2"


async def test_scoring_before_configuring_is_a_failed_precondition(client: Client) -> None:
    with pytest.raises(FailedPrecondition, match="IDLE"):
        await client.score([FIVE], ["5"])


async def test_an_unknown_verifier_is_an_invalid_argument_that_lists_the_known_ones(client: Client) -> None:
    await client.configured(num_processes=1)
    with pytest.raises(InvalidArgument, match=r"'gsm9k'.*gsm8k") as error:
        await client.score([FIVE, GroundTruth("gsm9k", "5")], ["5"])
    assert error.value.violations[0].field == "prompt.ground_truths[1].verifier"


async def test_a_stream_in_the_wrong_order_is_an_invalid_argument(client: Client) -> None:
    await client.configured(num_processes=1)
    two_prompts = [prompt_request([FIVE]), prompt_request([FIVE])]
    for requests, message in (
        ([], "prompt"),
        ([completion_request(0, "5")], "prompt"),
        ([prompt_request([])], "no verifier"),
        (two_prompts, "completion"),
    ):
        with pytest.raises(InvalidArgument, match=message):
            await client.send(requests)


async def test_a_full_queue_is_resource_exhausted_with_a_retry_delay_after_admitted_completions_are_scored(
    client: Client, custom: dict[str, Any]
) -> None:
    await client.configured(num_processes=1, max_queued=1, timeout_s=3.0, custom=custom)
    texts = ["hang", "5", "5", "5"]
    requests = [prompt_request([HANG]), *(completion_request(*pair) for pair in enumerate(texts))]

    async def stream() -> AsyncIterator[reward_pb2.ScoreGroupRequest]:
        for request in requests:
            yield request

    scores = []
    with pytest.raises(ResourceExhausted, match="max_queued: 1") as error:
        async for response in client.stub.ScoreGroup(stream(), timeout=TIMEOUT_S):
            scores.append(score_from_wire(response.score))
    assert [(score.sample_index, score.outcome) for score in scores] == [
        (0, ScoreOutcome.FAILED),
        (1, ScoreOutcome.SCORED),
    ]
    assert error.value.retry_after_s is not None and 0 < error.value.retry_after_s <= 10
    load = (await client.status()).status.load
    assert (load.num_running, load.num_waiting) == (0, 0)


async def test_every_verifier_is_listed_with_its_label_and_value(client: Client) -> None:
    listed = (await client.stub.ListVerifiers(reward_pb2.ListVerifiersRequest(), timeout=60)).verifiers
    assert {info.name for info in listed} == set(VERIFIERS) | JUDGE_VERIFIERS | MODEL_VERIFIERS
    for info in listed:
        assert "Label:" in info.description and "Value:" in info.description, info


async def test_without_a_sandbox_programs_are_failed_and_the_list_of_verifiers_gives_the_reason(
    client: Client, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    code._AVAILABLE.clear()
    await client.configured(num_processes=1)
    [score] = await client.score([GroundTruth("code", ["assert f() == 1"])], ["def f(): return 1"])
    assert score.outcome is ScoreOutcome.FAILED
    assert "bubblewrap is not installed" in score.verifier_scores[0].detail
    listed = (await client.stub.ListVerifiers(reward_pb2.ListVerifiersRequest(), timeout=60)).verifiers
    unavailable = {info.name for info in listed if info.unavailable.startswith("bubblewrap is not")}
    assert unavailable == {"code", "code_stdio"}


async def test_status_answers_while_the_pool_hangs(client: Client, custom: dict[str, Any]) -> None:
    await client.configured(num_processes=1, timeout_s=60.0, custom=custom)
    scoring = asyncio.create_task(client.score([HANG], ["hang", "hang"]))
    await client.until_running(1)
    load = (await client.status()).status.load
    assert (load.num_running, load.num_waiting, load.capacity) == (1, 1, 1)
    scoring.cancel()
    with contextlib.suppress(asyncio.CancelledError, Unavailable):
        await scoring


async def test_the_process_serves_stops_on_sigterm_and_leaves_no_pool_process_even_when_killed() -> None:
    for number, expected in ((signal.SIGTERM, 0), (signal.SIGKILL, -signal.SIGKILL)):
        async with (
            serving_process("services.reward") as (process, address),
            connect(address, RewardService.full_name) as channel,
        ):
            client = await Client(RewardService(ALLOWED), RewardServiceStub(channel)).configured(num_processes=2)
            assert [score.reward for score in await client.score([FIVE], ["5"])] == [1.0]
            pool = [psutil.Process(pid) for pid in (await client.status()).pool_pids]
            process.send_signal(number)
            assert await asyncio.wait_for(process.wait(), TIMEOUT_S) == expected
        _, alive = await asyncio.to_thread(psutil.wait_procs, pool, 60)
        assert not alive, f"pool processes outlived the service after signal {number}: {alive}"


async def test_a_judge_scores_beside_the_pool_and_sees_the_question(client: Client) -> None:
    async with judge_server() as server:
        await client.configured(num_processes=1, judge={"base_url": server.url, "model": "judge"})
        truths = (FIVE, GroundTruth("general-quality_ref", "it is five", 2.0))
        messages = (ChatMessage("user", "How many?"),)
        prompt = Prompt("test:0", np.zeros(0, np.int32), "<|im_start|>user\nHow many?", truths, messages)
        request = reward_pb2.ScoreGroupRequest(prompt=prompt_to_wire(prompt))
        scores = await client.send([request, completion_request(0, "5"), completion_request(1, "6")])
        await client.score(truths, ["5"])
    assert sorted((score.sample_index, score.reward) for score in scores) == [(0, 1 + 2 * 0.7), (1, 2 * 0.7)]
    sent, *_, without_messages = (request["messages"][1]["content"] for request in server.requests)
    assert "How many?" in sent and "it is five" in sent, sent
    assert "im_start" not in sent, f"the judge sees marks of the policy's chat template: {sent}"
    assert "a question" in without_messages, without_messages


async def test_a_label_that_needs_a_judge_is_refused_without_one(client: Client) -> None:
    await client.configured(num_processes=1)
    with pytest.raises(InvalidArgument, match=r"reward\.judge\.base_url"):
        await client.score([GroundTruth("general-quality", None)], ["5"])


async def test_a_key_that_is_not_in_the_environment_fails_the_configuration(client: Client) -> None:
    await client.configure(judge={"base_url": "http://127.0.0.1:9/v1", "model": "judge", "api_key_env": "NO_SUCH_KEY"})
    await client.until(lambda status: status.status.state == worker_pb2.WORKER_STATE_FAILED)
    assert "NO_SUCH_KEY" in (await client.status()).status.message


async def test_completions_wait_for_the_judge_concurrently_while_the_pool_goes_on(client: Client) -> None:
    async with judge_server() as server:
        server.may_answer.clear()
        await client.configured(num_processes=1, judge={"base_url": server.url, "model": "judge"})
        texts = [f"answer {number}" for number in range(16)]
        judged = asyncio.create_task(client.score([GroundTruth("general-quality", None)], texts))
        await eventually(lambda: server.num_open == 16, "16 questions are open at once")
        (quick,) = await client.score([FIVE], ["5"])
        assert quick.reward == 1.0 and not judged.done()
        server.may_answer.set()
        assert {score.reward for score in await judged} == {0.7}
