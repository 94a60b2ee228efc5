"""A generator process with real vLLM, its client, and the sender of its weights: this process."""

import asyncio
import json
import os
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from shoal.arrays import Float32Array
from shoal.config.load import config_struct
from shoal.errors import Aborted, DeadlineExceeded, ShoalError, Unavailable
from shoal.rollout import Completion, SamplingParams, WeightVersion
from shoal.rpc.channel import connect
from shoal.v1 import generator_pb2 as pb
from shoal.v1 import weights_pb2, worker_pb2
from shoal.v1.generator_pb2_grpc import GeneratorServiceStub
from shoal.weights.board import serve_store
from shoal.weights.group import BroadcastGroup
from shoal.weights.manifest import Manifest, TensorHash, TensorSpec
from shoal.weights.rendezvous import Rendezvous
from shoal.weights.transfer import send_weights
from shoal.wire import completion_from_wire, float32_from_wire, int32_to_wire, sampling_to_wire, version_to_wire
from tests.support.configs import run_config
from tests.support.loopback import GENERATOR
from tests.support.warm_process import WarmProgram

WARM = "tests.support.warm_generator"
PROMPT = np.arange(40, 80, dtype=np.int32)
CANARY = np.arange(100, 132, dtype=np.int32)
START_TIMEOUT_S = 300.0
TIMEOUT_S = 60.0
NUM_TRIES = 5
"""Of what a machine that stands still for seconds may spoil."""


class Generator:
    def __init__(
        self,
        folder: Path,
        model: Path,
        *,
        stop_strings: Sequence[str] = (),
        lora: dict[str, Any] | None = None,
        lora_way: str = "merged",
        spawns_engine: bool = False,
        **generator: Any,
    ) -> None:
        """`generator` and `lora` are settings of `[generator]` and `[learner.lora]`, `lora_way` is generator.lora.

        The process forks from one that has imported vLLM, and so does its engine's, unless it `spawns_engine`.
        """
        self.log_file = folder / "generator.log"
        self.config = config_struct(
            run_config(
                str(model),
                data={"sources": [{"path": "unused.jsonl"}], "max_prompt_tokens": 64},
                sampling={"max_completion_tokens": 448, "stop_strings": list(stop_strings)},
                generator={"cpu_kv_cache_gib": 0.25, "max_num_seqs": 16, "lora": lora_way} | generator,
                learner={"lora": lora or {}},
            )
        )
        options = ["--coordinator", "127.0.0.1:1", "--listen", "127.0.0.1:0"]
        options += ["--log-file", str(self.log_file), "--data-dir", str(folder)]
        # The engine's files are found in the test's folder. It is too long for sockets, as on some clusters.
        self.temporary = folder / "-".join(["temporary"] * 9)
        self.temporary.mkdir(exist_ok=True)
        environment = os.environ | {"TMPDIR": str(self.temporary)}
        read_end, write_end = os.pipe()
        with open(read_end) as reader, open(write_end, "w") as output:
            program = "services.generator.__main__" if spawns_engine else WARM
            self.process = WarmProgram(WARM, program, *options, environment=environment, output=output)
            output.close()
            self.address = json.loads(reader.readline())["address"]
        self.next_epoch = 0
        self.store = serve_store("127.0.0.1", 0, timeout_s=30)

    def children(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def adapter_folders(self) -> list[Path]:
        return sorted(self.temporary.glob("shoal-engine-*/adapter-*"))

    def log_tail(self) -> str:
        return self.log_file.read_text()[-3000:]

    def end(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise


@dataclass
class Client:
    stub: Any
    generator: Generator
    slowest_status_s: float = 0.0
    num_statuses: int = 0
    loading_s: float = 0.0

    async def status(self) -> pb.GeneratorServiceGetStatusResponse:
        started = time.monotonic()
        response = await self.stub.GetStatus(pb.GeneratorServiceGetStatusRequest(), timeout=TIMEOUT_S)
        self.slowest_status_s = max(self.slowest_status_s, time.monotonic() - started)
        self.num_statuses += 1
        return response

    async def until(self, is_so: Callable[[worker_pb2.WorkerStatus], bool]) -> worker_pb2.WorkerStatus:
        give_up = time.monotonic() + START_TIMEOUT_S
        while not is_so(status := (await self.status()).status):
            assert time.monotonic() < give_up, f"still {status}\n{self.generator.log_tail()}"
            await asyncio.sleep(0.01)
        return status

    async def configure(self) -> None:
        request = pb.GeneratorServiceConfigureRequest(run_id="run", config=self.generator.config)
        await self.stub.Configure(request, timeout=TIMEOUT_S)
        began = time.monotonic()
        status = await self.until(lambda status: status.state != worker_pb2.WORKER_STATE_LOADING)
        self.loading_s = time.monotonic() - began
        assert status.state != worker_pb2.WORKER_STATE_FAILED, status.message

    async def sample(
        self,
        *seeds: int,
        max_tokens: int = 16,
        request_id: str = "",
        stop_strings: Sequence[str] = (),
        sampling: SamplingParams | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> list[Completion]:
        params = sampling or SamplingParams(1.0, max_tokens, (), stop_strings=tuple(stop_strings))
        stream = self.sampling(*seeds, params=params, request_id=request_id, timeout_s=timeout_s)
        return [completion_from_wire(message.completion) async for message in stream]

    def sampling(
        self, *seeds: int, params: SamplingParams, request_id: str = "", timeout_s: float = TIMEOUT_S, **fields: Any
    ) -> Any:
        """A call of `GenerateGroup`; `fields` are others of the request."""
        request = pb.GenerateGroupRequest(
            request_id=request_id or f"request-{time.monotonic_ns()}",
            prompt_token_ids=int32_to_wire(PROMPT),
            sampling=sampling_to_wire(params),
            seeds=seeds,
            **fields,
        )
        return self.stub.GenerateGroup(request, timeout=timeout_s)

    async def in_flight(self, *seeds: int, max_tokens: int) -> "asyncio.Task[list[Completion]]":
        """Begins completions, and returns while they are sampled; begins anew those that end before this is seen."""
        while True:
            sampling = asyncio.create_task(self.sample(*seeds, max_tokens=max_tokens))
            while not sampling.done():
                if (await self.status()).status.load.num_running:
                    return sampling
                await asyncio.sleep(0.02)
            await sampling

    async def score(self) -> Float32Array:
        request = pb.ScoreTokensRequest(token_ids=int32_to_wire(CANARY))
        response = await self.stub.ScoreTokens(request, timeout=TIMEOUT_S)
        return float32_from_wire(response.logprobs, "logprobs")

    async def pause(self) -> None:
        await self.stub.PauseGeneration(pb.PauseGenerationRequest(), timeout=TIMEOUT_S)

    async def resume(self) -> None:
        await self.stub.ResumeGeneration(pb.ResumeGenerationRequest(), timeout=TIMEOUT_S)

    async def join(self, sender: "Sender") -> None:
        joining = self.stub.JoinWeightGroup(sender.join_request(), timeout=TIMEOUT_S)
        await asyncio.gather(joining, asyncio.to_thread(sender.group.connect))

    def loading(self, epoch: int, version: WeightVersion) -> Any:
        request = pb.LoadWeightsRequest(
            epoch=epoch,
            version=version_to_wire(version),
            canary=weights_pb2.Canary(token_ids=int32_to_wire(CANARY)),
        )
        return self.stub.LoadWeights(request, timeout=TIMEOUT_S)

    async def wait_for_nothing(
        self, tensors: Mapping[str, Any], policy_version: int, timeout_s: float
    ) -> tuple["Sender", ShoalError, float]:
        """Begins a load whose sender sends nothing. Returns the sender, the error of the load, and its duration in
        seconds."""
        for _ in range(NUM_TRIES):
            sender = Sender(self.generator, tensors, timeout_s=timeout_s)
            began = time.monotonic()
            try:
                await self.join(sender)
                began = time.monotonic()
                async for _ in self.loading(sender.rendezvous.epoch, WeightVersion(0, policy_version)):
                    pass
            except (Aborted, DeadlineExceeded, Unavailable) as error:
                if "with 2 members: a broadcast did not end by its deadline" in error.message:
                    return sender, error, time.monotonic() - began
                last = error
            else:
                raise AssertionError("the load did not fail")
        raise AssertionError(f"no load ended at the deadline of its broadcast; the last one: {last}")

    async def publish(
        self, tensors: Mapping[str, Any], policy_version: int
    ) -> tuple[pb.LoadWeightsResponse, tuple[TensorHash, ...]]:
        """Runs one whole publish in a new epoch; returns the generator's last response and the sender's hashes."""
        sender = Sender(self.generator, tensors)
        await self.join(sender)
        call = self.loading(sender.rendezvous.epoch, WeightVersion(0, policy_version))
        assert (await call.read()).stage == pb.LOAD_STAGE_READY
        hashes = await asyncio.to_thread(sender.send)
        done = await call.read()
        sender.group.close()
        return done, hashes


@dataclass
class Sender:
    generator: Generator
    tensors: Mapping[str, Any]
    timeout_s: float = 30.0
    group: BroadcastGroup = field(init=False)

    def __post_init__(self) -> None:
        self.generator.next_epoch += 1
        store = self.generator.store
        epoch = self.generator.next_epoch
        self.rendezvous = Rendezvous("run", epoch, "127.0.0.1", store.port, 2, "gloo", self.timeout_s)
        self.group = BroadcastGroup(self.rendezvous, rank=0, store=store)
        self.manifest = manifest_of(self.tensors)

    def join_request(self, manifest: Manifest | None = None) -> pb.JoinWeightGroupRequest:
        """Returns what the generator is called with to join, with the sender's manifest or another one."""
        wire = (manifest or self.manifest).to_wire()
        return pb.JoinWeightGroupRequest(rendezvous=self.rendezvous.to_wire(), rank_offset=1, manifest=wire)

    def send(self) -> tuple[TensorHash, ...]:
        return send_weights(self.group, self.manifest, self.tensors.items())


def manifest_of(tensors: Mapping[str, Any]) -> Manifest:
    return Manifest(tuple(TensorSpec(name, "float32", tuple(tensor.shape)) for name, tensor in tensors.items()))


def random_model(folder: Path, seed: int) -> Any:
    """Creates a random Llama of 9 MB in `folder`: two broadcasts, divided inside a layer that vLLM fuses."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=320,
        hidden_size=256,
        intermediate_size=832,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        initializer_range=0.1,
    )
    torch.manual_seed(seed)
    LlamaForCausalLM(config).save_pretrained(folder)
    return LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)


def weights_of(model: Any) -> dict[str, Any]:
    return dict(model.named_parameters())


def logprobs_of(model: Any, token_ids: Any) -> Float32Array:
    """Returns the [T - 1] log-probabilities of transformers for the tokens but the first."""
    import torch

    tokens = torch.tensor(np.asarray(token_ids)).long()
    with torch.no_grad():
        table = torch.log_softmax(model(tokens[None]).logits[0].float(), dim=-1)
    return np.asarray(table[:-1].gather(1, tokens[1:, None])[:, 0], dtype=np.float32)


def gap(ours: Float32Array, theirs: Float32Array) -> float:
    return float(np.abs(ours - theirs).max())


@asynccontextmanager
async def configured_client(generator: Generator) -> AsyncIterator[Client]:
    async with connect(generator.address, GENERATOR) as channel:
        client = Client(GeneratorServiceStub(channel), generator)
        await client.configure()
        yield client
