"""A generator process with real vLLM. This process publishes weights to it over real gloo groups."""

import asyncio
import copy
import json
import os
import re
import signal
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from services.coordinator.rollout.evaluation.round import evaluation_sampling
from shoal.errors import DeadlineExceeded, FailedPrecondition, InvalidArgument, Unavailable
from shoal.rollout import FinishReason, SamplingParams, WeightVersion
from shoal.rpc.channel import connect
from shoal.token_run import TokenRun, joined
from shoal.v1 import generator_pb2 as pb
from shoal.v1 import worker_pb2
from shoal.v1.generator_pb2_grpc import GeneratorServiceStub
from shoal.weights.manifest import Manifest, hashes_to_wire
from shoal.wire import (
    completion_from_wire,
    float32_from_wire,
    int32_to_wire,
    part_from_wire,
    prefixes_to_wire,
    sampling_to_wire,
)
from tests.support.configs import run_config
from tests.support.loopback import GENERATOR
from tests.support.packages import skip_without
from tests.support.real_generator import (
    CANARY,
    NUM_TRIES,
    PROMPT,
    START_TIMEOUT_S,
    TIMEOUT_S,
    WARM,
    Client,
    Generator,
    Sender,
    configured_client,
    gap,
    logprobs_of,
    random_model,
    weights_of,
)
from tests.support.tiny_model import SPECIAL_TOKENS, make_tiny_model, make_tokenizer
from tests.support.warm_process import WarmProgram

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

torch = pytest.importorskip("torch")
skip_without("vllm")


@dataclass
class Setting:
    generator: Generator
    old: Any
    """Model that the engine was started with."""
    new: Any


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setting]:
    folder = tmp_path_factory.mktemp("weights")
    old, new = random_model(folder / "old", seed=1), random_model(folder / "new", seed=2)
    generator = Generator(folder, folder / "old")
    yield Setting(generator, old, new)
    generator.end()


@pytest.fixture
async def client(setting: Setting) -> AsyncIterator[Client]:
    async with configured_client(setting.generator) as client:
        yield client


async def test_a_generator_answers_while_its_engine_starts_and_then_waits_for_weights(client: Client) -> None:
    slowest_s, loading_s, num_statuses = client.slowest_status_s, client.loading_s, client.num_statuses
    # Workers promise an answer within a second. The machine may stand still for a part of the start.
    assert num_statuses > 20 and slowest_s < max(1.0, loading_s / 2), (
        f"{num_statuses} calls of GetStatus took up to {slowest_s:.2f} s; the engine was up after {loading_s:.2f} s"
    )
    assert (await client.status()).status.state == worker_pb2.WORKER_STATE_STALE
    with pytest.raises(FailedPrecondition, match="STALE"):
        await client.sample(1)


async def test_a_publish_gives_the_engine_the_senders_weights(client: Client, setting: Setting) -> None:
    done, sent = await client.publish(weights_of(setting.new), 3)
    assert list(done.hashes) == hashes_to_wire(sent)
    assert gap(float32_from_wire(done.canary.logprobs, "canary"), logprobs_of(setting.new, CANARY)) < 1e-4
    status = await client.status()
    assert status.status.state == worker_pb2.WORKER_STATE_READY and status.version.policy_version == 3


async def test_an_engine_that_was_started_without_a_tokenizer_refuses_stop_strings(client: Client) -> None:
    with pytest.raises(InvalidArgument, match=r"sampling\.stop_strings.*configuration of the run"):
        await client.sample(1, stop_strings=["</answer>"])


async def test_prompts_of_more_tokens_than_the_engine_computes_at_once_are_sampled_behind(client: Client) -> None:
    """vLLM computes 2048 tokens at once. It rewinds the random numbers of a request whose prompt it divides, which
    ends the engine on a CPU."""
    generator = np.random.default_rng(0)

    async def sample(number: int) -> int:
        request = pb.GenerateGroupRequest(
            request_id=f"long-{number}",
            prompt_token_ids=int32_to_wire(generator.integers(10, 300, 440, dtype=np.int32)),
            sampling=sampling_to_wire(SamplingParams(1.0, 2, ())),
            seeds=[number],
        )
        stream = client.stub.GenerateGroup(request, timeout=TIMEOUT_S)
        return len([completion_from_wire(message.completion) async for message in stream])

    num_completions = await asyncio.gather(*(sample(number) for number in range(16)))
    assert num_completions == [1] * 16, client.generator.log_tail()


async def test_behavior_logprobs_are_the_models(client: Client, setting: Setting) -> None:
    await client.publish(weights_of(setting.new), 4)
    completions = await client.sample(1, 2, 3)
    assert {completion.sample_index for completion in completions} == {0, 1, 2}
    assert len({completion.token_ids.tobytes() for completion in completions}) == 3
    for completion in completions:
        assert completion.finish_reason is FinishReason.LENGTH
        expected = logprobs_of(setting.new, [*PROMPT, *completion.token_ids])[len(PROMPT) - 1 :]
        assert gap(completion.behavior_logprobs, expected) < 1e-4
        assert [(str(span.version), span.start, span.end) for span in completion.version_spans] == [("0.4", 0, 16)]


def evaluation_params(**evaluation: Any) -> SamplingParams:
    """What the coordinator asks for in an evaluation, where training samples otherwise."""
    sources = [{"task": "arithmetic"}]
    settings = {"sources": sources, "max_completion_tokens": 16, "temperature": 1.0, "stop_strings": []} | evaluation
    config = run_config("unused", data={"sources": sources}, evaluation=settings)
    return evaluation_sampling(config, SamplingParams(1.3, 8, (), stop_strings=("training",)))


def kept_logprobs(model: Any, tokens: Sequence[int], sampling: SamplingParams) -> Any:
    """The log-probabilities of all tokens at each place of a completion, -infinity for those that sampling leaves out;
    computed from their definitions."""
    with torch.no_grad():
        logits_TV = model(torch.tensor([[*PROMPT, *tokens]]).long()).logits[0, len(PROMPT) - 1 : -1]
    probabilities_TV, order_TV = torch.softmax(logits_TV / sampling.temperature, -1).sort(descending=True)
    before_TV = probabilities_TV.cumsum(-1) - probabilities_TV
    kept_TV = (before_TV < sampling.top_p) & (probabilities_TV >= sampling.min_p * probabilities_TV[:, :1])
    if sampling.top_k:
        kept_TV[:, sampling.top_k :] = False
    sorted_TV = (probabilities_TV * kept_TV / (probabilities_TV * kept_TV).sum(-1, keepdim=True)).log()
    return torch.empty_like(sorted_TV).scatter(-1, order_TV, sorted_TV)


@pytest.mark.parametrize(
    "settings", [{"temperature": 0.5}, {"top_k": 3}, {"top_p": 0.4}, {"min_p": 0.3, "temperature": 0.7}], ids=str
)
async def test_an_evaluation_samples_by_its_own_settings(
    client: Client, setting: Setting, settings: dict[str, float]
) -> None:
    await client.publish(weights_of(setting.new), 4)
    sampling = evaluation_params(**settings)
    completions = await client.sample(1, 2, 3, sampling=sampling)
    assert len({completion.token_ids.tobytes() for completion in completions}) == 3
    for completion in completions:
        assert completion.num_tokens == 16 and completion.support is None
        expected = kept_logprobs(setting.new, completion.token_ids.tolist(), sampling)
        drawn = expected.gather(-1, torch.from_numpy(completion.token_ids).long()[:, None])[:, 0].numpy()
        assert gap(completion.behavior_logprobs, drawn) < 1e-4, "infinite where a token was left out"


async def test_a_greedy_evaluation_takes_the_likeliest_tokens_whatever_the_seed(
    client: Client, setting: Setting
) -> None:
    await client.publish(weights_of(setting.new), 4)
    sampling = evaluation_params(temperature=0.0)
    one, other = await client.sample(1, 2, sampling=sampling)
    likeliest = kept_logprobs(setting.new, one.token_ids.tolist(), replace(sampling, temperature=1.0)).argmax(-1)
    assert one.token_ids.tolist() == other.token_ids.tolist() == likeliest.tolist()


async def test_a_completion_in_flight_continues_under_the_new_weights_and_reports_where(
    client: Client, setting: Setting
) -> None:
    for _ in range(NUM_TRIES):
        await client.publish(weights_of(setting.old), 5)
        sampling = await client.in_flight(7, max_tokens=400)
        await client.sample(8, max_tokens=1)  # The engine serves in order: the completion in flight has tokens by now.
        await client.publish(weights_of(setting.new), 6)
        [completion] = await sampling
        if [str(span.version) for span in completion.version_spans] != ["0.5"]:
            break  # Else it had ended before, while this test stood still.
    before, after = completion.version_spans
    assert (str(before.version), str(after.version)) == ("0.5", "0.6")
    assert 0 == before.start < before.end == after.start < after.end == 400
    whole = [*PROMPT, *completion.token_ids]
    for span, model in ((before, setting.old), (after, setting.new)):
        expected = logprobs_of(model, whole)[len(PROMPT) - 1 :][span.start : span.end]
        assert gap(completion.behavior_logprobs[span.start : span.end], expected) < 1e-4


async def test_a_lost_completion_goes_on_from_its_report_and_draws_what_the_new_weights_give(
    client: Client, setting: Setting
) -> None:
    """The tokens that were reported are not sampled again, and all log-probabilities are those of their models."""
    await client.publish(weights_of(setting.old), 7)
    params = SamplingParams(1.0, 120, ())
    for _ in range(NUM_TRIES):
        runs: list[TokenRun] = []
        call = client.sampling(7, params=params, report_every_tokens=16, timeout_s=START_TIMEOUT_S)
        async for message in call:
            runs += [run for _, _, run in map(part_from_wire, message.parts)]
            if runs and joined(runs).num_tokens > 32:
                break
        call.cancel()
        await client.until(lambda status: status.load.num_running == 0)
        if sum(run.num_tokens for run in runs) == 33:
            break  # Else the generator's process stood still, and then reported more tokens at once.
    prefix = joined(runs)
    assert prefix.num_tokens == 33, "a report comes each 16 tokens, the first with the first token"
    assert [(str(span.version), span.start, span.end) for span in prefix.version_spans] == [("0.7", 0, 33)]
    await client.publish(weights_of(setting.new), 8)
    num_before = (await client.status()).num_sampled_tokens
    call = client.sampling(
        7, params=params, prefixes=prefixes_to_wire({0: prefix.token_ids}), timeout_s=START_TIMEOUT_S
    )
    (rest,) = [completion_from_wire(message.completion) async for message in call]
    assert rest.num_tokens == 120 - 33 == (await client.status()).num_sampled_tokens - num_before
    whole = [*PROMPT, *prefix.token_ids, *rest.token_ids]
    old, new = (logprobs_of(model, whole)[len(PROMPT) - 1 :] for model in (setting.old, setting.new))
    assert gap(prefix.logprobs, old[:33]) < 1e-4
    assert gap(rest.behavior_logprobs, new[33:]) < 1e-4
    assert [(str(span.version), span.start, span.end) for span in rest.version_spans] == [("0.8", 0, 87)]


async def test_a_generator_answers_while_its_worker_waits_for_the_sender(client: Client, setting: Setting) -> None:
    await client.publish(weights_of(setting.old), 6)
    sender = Sender(setting.generator, weights_of(setting.new))
    await client.join(sender)
    call = client.loading(sender.rendezvous.epoch, WeightVersion(0, 7))
    await call.read()
    for _ in range(20):
        await client.status()  # The sender sends nothing until all are answered.
    await asyncio.to_thread(sender.send)
    assert (await call.read()).stage == pb.LOAD_STAGE_DONE
    sender.group.close()


async def test_a_sender_that_dies_within_a_layer_leaves_a_stale_generator_that_the_next_epoch_fixes(
    client: Client, setting: Setting
) -> None:
    await client.publish(weights_of(setting.old), 8)
    sender = Sender(setting.generator, weights_of(setting.new), timeout_s=START_TIMEOUT_S)
    *_, before_last, last = sender.manifest.buckets()
    assert "k_proj" in before_last.tensors[-1].name and "v_proj" in last.tensors[0].name, "not within a layer"
    arguments = json.dumps(asdict(sender.rendezvous)), setting.new.name_or_path
    process = WarmProgram(WARM, "tests.integration.dying_sender", *arguments, environment=os.environ)
    await client.stub.JoinWeightGroup(sender.join_request(), timeout=START_TIMEOUT_S)
    call = client.loading(sender.rendezvous.epoch, WeightVersion(0, 9))
    assert (await call.read()).stage == pb.LOAD_STAGE_READY
    with pytest.raises(Unavailable, match="lost a member"):
        await call.read()
    assert process.wait(TIMEOUT_S) == -signal.SIGKILL
    assert (await client.status()).status.state == worker_pb2.WORKER_STATE_STALE
    done, sent = await client.publish(weights_of(setting.new), 9)
    assert list(done.hashes) == hashes_to_wire(sent)
    assert gap(float32_from_wire(done.canary.logprobs, "canary"), logprobs_of(setting.new, CANARY)) < 1e-4


async def test_a_manifest_of_another_model_is_refused(client: Client, setting: Setting) -> None:
    sender = Sender(setting.generator, weights_of(setting.new))
    first, *others = sender.manifest.tensors
    for tensors, complaint in (
        ([replace(first, shape=(3, 3)), *others], "has shape"),
        ([replace(first, name="model.other"), *others], "has no tensor 'model.other'"),
        (others, "lacks 1 tensors"),
    ):
        with pytest.raises(InvalidArgument, match=complaint):
            await client.stub.JoinWeightGroup(sender.join_request(Manifest(tuple(tensors))), timeout=TIMEOUT_S)


async def test_a_load_from_a_sender_that_sends_nothing_fails_at_the_deadline(client: Client, setting: Setting) -> None:
    await client.publish(weights_of(setting.old), 11)
    sender, error, duration_s = await client.wait_for_nothing(weights_of(setting.new), 12, timeout_s=3)
    assert isinstance(error, DeadlineExceeded), error
    assert 2 < duration_s < TIMEOUT_S / 2, f"the deadline of the group is 3 s, and the load ended after {duration_s} s"
    assert "2 members" in str(sender.group.board.abort_reason())
    assert (await client.status()).status.state == worker_pb2.WORKER_STATE_STALE
    await client.publish(weights_of(setting.new), 12)


async def test_the_same_seeds_sample_the_same_completions(client: Client, setting: Setting) -> None:
    await client.publish(weights_of(setting.new), 13)
    one, two = [
        {completion.seed: completion.token_ids.tobytes() for completion in await client.sample(5, 6, 7)}
        for _ in range(2)
    ]
    assert one == two


async def test_a_caller_that_disconnects_frees_its_slots(client: Client, setting: Setting) -> None:
    await client.publish(weights_of(setting.new), 14)
    sampling = await client.in_flight(1, 2, max_tokens=448)
    sampling.cancel()
    await asyncio.gather(sampling, return_exceptions=True)
    await client.until(lambda status: status.load.num_running == 0)


async def test_a_killed_engine_ends_the_generator_with_the_reason_in_its_log(client: Client, setting: Setting) -> None:
    await client.publish(weights_of(setting.new), 16)
    children = setting.generator.children()
    engine = max(children, key=lambda process: process.memory_info().rss)
    engine.kill()
    code = await asyncio.to_thread(setting.generator.process.wait, 60)
    assert code == 1, f"exit code {code}"
    assert "engine died" in setting.generator.log_tail()
    _, alive = psutil.wait_procs(children, timeout=60)
    assert not alive, f"left behind: {alive}"


def is_spawned(process: psutil.Process) -> bool:
    """Whether a process is one of multiprocessing's; some others of a start end before they can be asked."""
    try:
        return "spawn_main" in str(process.cmdline())
    except psutil.NoSuchProcess:
        return False


async def test_a_generator_killed_while_its_engine_starts_leaves_no_process(setting: Setting, tmp_path: Path) -> None:
    generator = Generator(tmp_path, Path(setting.old.name_or_path), spawns_engine=True)
    try:
        async with connect(generator.address, GENERATOR) as channel:
            request = pb.GeneratorServiceConfigureRequest(run_id="run", config=generator.config)
            await GeneratorServiceStub(channel).Configure(request, timeout=TIMEOUT_S)
        give_up = time.monotonic() + START_TIMEOUT_S
        # The engine's process has only just begun, and has not imported vLLM yet.
        while not (children := [child for child in generator.children() if is_spawned(child)]):
            assert time.monotonic() < give_up, generator.log_tail()
            await asyncio.sleep(0.05)
    finally:
        generator.process.kill()
    generator.process.wait()
    _, alive = psutil.wait_procs(children, timeout=60)
    assert not alive, f"left behind: {alive}"


@pytest.fixture(scope="module")
def rounding(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setting]:
    """A generator in bfloat16 with a tokenizer."""
    from transformers import LlamaForCausalLM

    folder = tmp_path_factory.mktemp("rounding")
    old = make_tiny_model(folder / "old", seed=1, tie_embeddings=False)
    generator = Generator(folder, old, stop_strings=["</answer>"], dtype="bfloat16")
    new = make_tiny_model(folder / "new", seed=2, tie_embeddings=False)
    yield Setting(generator, *(LlamaForCausalLM.from_pretrained(path, dtype=torch.float32) for path in (old, new)))
    generator.end()


@pytest.fixture
async def rounding_client(rounding: Setting) -> AsyncIterator[Client]:
    async with configured_client(rounding.generator) as client:
        yield client


async def test_weights_are_cast_to_the_engines_type(rounding_client: Client, rounding: Setting) -> None:
    done, sent = await rounding_client.publish(weights_of(rounding.new), 1)
    assert list(done.hashes) == hashes_to_wire(sent)
    rounded = copy.deepcopy(rounding.new).to(torch.bfloat16)
    found = float32_from_wire(done.canary.logprobs, "canary")
    assert gap(found, logprobs_of(rounded, CANARY)) < 0.1


def _end_of(text: str, token_ids: Any) -> int:
    """The number of tokens up to the one that completes a text; that token may contain more than the rest of it."""
    tokenizer = make_tokenizer()
    return next(n for n in range(1, len(token_ids) + 1) if text in tokenizer.decode(token_ids[:n]))


async def test_a_completion_ends_with_the_token_that_completes_a_stop_string(
    rounding_client: Client, rounding: Setting
) -> None:
    client = rounding_client
    await client.publish(weights_of(rounding.new), 2)
    (whole,) = await client.sample(5, max_tokens=448)
    assert whole.finish_reason is FinishReason.LENGTH and whole.num_tokens == 448
    text = make_tokenizer().decode(whole.token_ids)
    # Random bytes: some neighbors are letters, and some token is a special one.
    letters = re.search(r"[ -~]{2}", text[8:])
    special = next(token for token in SPECIAL_TOKENS if token in text)
    assert letters is not None
    for stop in (letters[0], special):
        of_evaluation = evaluation_params(max_completion_tokens=448, stop_strings=["never sampled", stop])
        (stopped,) = await client.sample(5, sampling=of_evaluation)
        end = _end_of(stop, whole.token_ids)
        assert stopped.finish_reason is FinishReason.STOP, f"{stop!r} did not end the completion"
        assert stopped.token_ids.tolist() == whole.token_ids[:end].tolist()
        assert gap(stopped.behavior_logprobs, whole.behavior_logprobs[:end]) < 1e-4
        assert stopped.version_spans[-1].end == end
    (missed,) = await client.sample(5, max_tokens=4, stop_strings=["never sampled"])
    assert missed.finish_reason is FinishReason.LENGTH


async def test_a_killed_generator_leaves_no_process(rounding_client: Client, rounding: Setting) -> None:
    children = rounding.generator.children()
    assert children
    rounding.generator.process.kill()
    rounding.generator.process.wait()
    _, alive = psutil.wait_procs(children, timeout=60)
    assert not alive, f"left behind: {alive}"
