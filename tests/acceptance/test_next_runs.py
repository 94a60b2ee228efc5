"""Several runs, one after another, on the same services: real coordinator, vLLM and DeepSpeed."""

import asyncio
import contextlib
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from shoal.config.load import config_struct
from shoal.errors import Unavailable
from shoal.rpc.channel import connect
from shoal.v1 import generator_pb2, worker_pb2
from shoal.v1.generator_pb2_grpc import GeneratorServiceStub
from tests.acceptance.test_reexec import learner, refusal
from tests.support.configs import run_config
from tests.support.local_stack import free_port, guessing_config, write_config
from tests.support.loopback import GENERATOR
from tests.support.standing import PATIENCE_S, Standing
from tests.support.tiny_model import make_tiny_model
from tests.support.waiting import block_until


@pytest.mark.timeout(2400)
def test_runs_with_other_engines_and_stages_follow_each_other_on_the_same_services(standing: Standing) -> None:
    port = free_port()
    common = {"weights": {"timeout_s": 60.0, "store_port": port}, "run": {"num_steps": 500}}
    a = guessing_config(standing.folder, **common)
    b = guessing_config(
        standing.folder, **common | {"run": {"num_steps": 3}, "learner": {"zero_stage": 3}},
        generator={"dtype": "bfloat16", "max_num_seqs": 16},
    )  # fmt: skip
    files = {name: str(write_config(standing.folder / f"{name}.toml", values)) for name, values in (("a", a), ("b", b))}
    pids = {name: process.pid for name, process in standing.processes.items()}

    def trained(run: str, *arguments: str) -> tuple[list[str], float, dict[str, Any]]:
        """Starts a run; returns the kinds of workers that restarted, the seconds until its first step, that step."""
        after, began = standing.last(run), time.monotonic()
        standing.shoal("run", "start", *arguments)
        standing.until(run, after, "state", state="RUNNING")
        waited_s = time.monotonic() - began
        step = standing.until(run, after, "step")
        restarted = [e for e in standing.events(run) if e["kind"] == "worker_restarting" and e["sequence"] > after]
        return sorted(event["attributes"]["worker_kind"] for event in restarted), waited_s, step

    def stopped(run: str) -> int:
        after = standing.last(run)
        standing.shoal("run", "stop")
        return int(standing.until(run, after, "state", state="STOPPED")["attributes"]["policy_version"])

    restarted, fresh_s, _ = trained("a", files["a"], "--name", "a")
    assert restarted == [], "idle services need no restart"
    first_stop = stopped("a")
    restarted, resumed_s, step = trained("a", "--resume", "a")
    assert restarted == [] and step["attributes"]["step"] == first_stop + 1, (restarted, step, first_stop)
    second_stop = stopped("a")
    before = [process for process in standing.family() if process.pid not in pids.values()]

    restarted, other_s, _ = trained("b", files["b"], "--name", "b")
    assert restarted == ["generator", "learner"], restarted
    standing.until("b", -1, "state", state="FINISHED")
    kept = {process.pid for process in before if process.is_running() and "reward" not in " ".join(process.cmdline())}
    engines = {p.pid for name in ("generator", "learner") for p in standing.processes[name].children(recursive=True)}
    assert not kept & engines, f"processes of run a are still there: {kept & engines}"

    restarted, back_s, step = trained("a", "--resume", "a")
    assert restarted == ["generator", "learner"], restarted
    assert step["attributes"]["step"] == second_stop + 1, (step, second_stop)
    stopped("a")
    assert {name: process.pid for name, process in standing.processes.items()} == pids
    assert all(process.is_running() for process in standing.processes.values())
    zombies = [p for p in standing.family() if p.status() == psutil.STATUS_ZOMBIE]
    assert not zombies, zombies
    for run in ("a", "b"):
        faults = [e for e in standing.events(run) if e["kind"] in ("worker_lost", "worker_failed", "publish_failed")]
        assert not faults, faults
    print(
        f"until training: {fresh_s:.1f} s on idle services, {resumed_s:.1f} s resumed on the same, {other_s:.1f} s for "
        f"another engine and stage, {back_s:.1f} s back and resumed"
    )


@pytest.mark.timeout(600)
async def test_torchrun_restarts_all_ranks_at_most_max_restarts_times(tmp_path: Path) -> None:
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "1")
    async with learner(tmp_path, *torchrun, "-m", "services.learner") as process:
        first = await process.load("run-a", 2)
        error = await refusal(process, "run-b", 3)
        assert error.reason == "STARTING_OVER", error
        assert not set(await process.load("run-b", 3)) & set(first)
        error = await refusal(process, "run-c", 3)
        assert error.reason == "OTHER_CONFIGURATION" and "--max-restarts" in error.message, error


@pytest.mark.timeout(600)
async def test_the_torchruns_of_two_machines_restart_all_ranks_together(tmp_path: Path) -> None:
    def torchrun(address: str) -> tuple[str, ...]:
        meeting = ("--rdzv-backend", "c10d", "--rdzv-id", "learner", "--rdzv-endpoint", f"127.0.0.1:{port}")
        size = ("--nnodes", "2", "--nproc-per-node", "1", "--max-restarts", "2")
        return ("-m", "torch.distributed.run", *size, *meeting, "--local-addr", address, "-m", "services.learner")

    port = free_port()
    folders = [tmp_path / "first", tmp_path / "second"]
    for folder in folders:
        folder.mkdir()
    async with (
        learner(folders[0], *torchrun("127.0.0.1")) as first,
        learner(folders[1], *torchrun("127.0.0.2")) as second,
    ):
        before = await first.load("run-a", 2)
        assert second.mine.children() and psutil.Process(before[0]).ppid() == first.mine.pid
        # Twice: a torchrun whose ranks had ended well would be gone by the second time.
        for run_id, zero_stage in (("run-b", 3), ("run-c", 0)):
            assert (await refusal(first, run_id, zero_stage)).reason == "STARTING_OVER"
            after = await first.load(run_id, zero_stage)
            assert not set(after) & set(before)
            before = after
        assert first.mine.is_running() and second.mine.is_running()


async def load(address: str, model: Path, max_num_seqs: int, until: worker_pb2.WorkerState.ValueType) -> None:
    """Configures a generator as soon as it takes the run, and waits until it is in a state."""
    config = run_config(
        model,
        data={"sources": [{"task": "arithmetic"}], "max_prompt_tokens": 64},
        sampling={"max_completion_tokens": 32},
        generator={"dtype": "float32", "cpu_kv_cache_gib": 0.25, "max_num_seqs": max_num_seqs},
    )
    run_id, struct = f"run-{max_num_seqs}", config_struct(config)
    request = generator_pb2.GeneratorServiceConfigureRequest(run_id=run_id, config=struct)
    async with asyncio.timeout(PATIENCE_S):
        while True:
            with contextlib.suppress(Unavailable):
                async with connect(address, GENERATOR) as channel:
                    stub = GeneratorServiceStub(channel)
                    status = (await stub.Configure(request, timeout=10)).status
                    while status.state == worker_pb2.WORKER_STATE_LOADING != until:
                        await asyncio.sleep(0.3)
                        status = (
                            await stub.GetStatus(generator_pb2.GeneratorServiceGetStatusRequest(), timeout=10)
                        ).status
                assert status.state == until, status
                return
            await asyncio.sleep(0.3)


@pytest.mark.timeout(1200)
def test_a_generator_that_restarts_while_its_engine_starts_leaves_no_process_of_it(standing: Standing) -> None:
    model = make_tiny_model(standing.folder / "model")
    process, address = standing.processes["generator"], standing.addresses["generator"]

    def engines() -> set[psutil.Process]:
        found = set()
        for child in process.children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                # As Python starts it, and as vLLM calls it once it runs.
                if any(name in " ".join(child.cmdline()) for name in ("spawn_main", "VLLM")):
                    found.add(child)
        return found

    asyncio.run(load(address, model, 32, worker_pb2.WORKER_STATE_LOADING))
    early = block_until(engines, "a process of the engine is started", timeout_s=PATIENCE_S)
    asyncio.run(load(address, model, 16, worker_pb2.WORKER_STATE_STALE))
    first = engines()
    # A process that has ended is a zombie until the new program reads its exit code.
    assert len(first) == 1 and not first & early and not psutil.wait_procs(early, 10)[1], (first, early)
    asyncio.run(load(address, model, 8, worker_pb2.WORKER_STATE_STALE))
    second = engines()
    assert len(second) == 1 and not first & second and not psutil.wait_procs(first, 10)[1], (first, second)
