"""A worker process that restarts for another run: in place, as another worker, with nothing left of before."""

import asyncio
import json
import signal

import psutil
import pytest

from shoal import errors
from shoal.rpc.channel import connect
from shoal.v1 import reward_pb2, reward_pb2_grpc
from tests.contract.rpc.test_membership import Registry, next_of
from tests.contract.rpc.test_worker import NOBODY, TIMEOUT_S, worker
from tests.support.local_stack import free_port
from tests.support.loopback import COORDINATOR, REWARD, serving


async def configure_another_run(channel):
    stub = reward_pb2_grpc.RewardServiceStub(channel)
    with pytest.raises(errors.Unavailable) as raised:
        await stub.Configure(reward_pb2.RewardServiceConfigureRequest(run_id="OTHER_RUN"), timeout=TIMEOUT_S)
    assert raised.value.reason == "STARTING_OVER", raised.value


async def test_a_worker_restarts_in_its_process_at_its_port_and_registers_as_another(tmp_path):
    registry, log, port = Registry(), tmp_path / "worker.log", free_port()
    async with serving(registry, COORDINATOR) as coordinator:
        options = ("--coordinator", coordinator, "--log-file", str(log), "--listen", f"127.0.0.1:{port}")
        async with worker(*options) as running:
            first = await next_of(registry.registrations)
            process = psutil.Process(running.process.pid)
            began = process.create_time()
            (child,) = process.children()
            async with connect(running.address, REWARD) as channel:
                call = await running.begin_call(channel)
                await configure_another_run(channel)
                # The coordinator removes a worker that restarts; it must not register under its former id.
                registry.workers.clear()
                running.process.stdin.write(b"go on\n")
                await call
            assert await running.line() == "closed"
            again = json.loads(await running.line())
            second = await next_of(registry.registrations)
            assert again["address"] == running.address == second.address == f"127.0.0.1:{port}"
            assert second.worker_id != first.worker_id
            assert process.is_running() and process.create_time() == began, "another process runs at the port"
            # Ended with its input, and reaped: psutil counts a zombie as alive.
            assert await asyncio.to_thread(psutil.wait_procs, [child], TIMEOUT_S) == ([child], [])
            assert len(process.children()) == 1, process.children()
            async with connect(running.address, REWARD) as channel:
                stub = reward_pb2_grpc.RewardServiceStub(channel)
                await stub.Configure(reward_pb2.RewardServiceConfigureRequest(run_id="READY"), timeout=TIMEOUT_S)
            running.process.send_signal(signal.SIGTERM)
            code, err = await running.end()
    assert code == 0, err
    assert [line for line in err.splitlines() if line.startswith("mark")] == ["mark: None"] * 2, err
    events = [json.loads(line)["event"] for line in log.read_text().splitlines()]
    assert events.count("registered") == 2 and events.count("restarting") == 1, events


async def test_a_signal_ends_a_worker_that_is_about_to_restart():
    async with worker("--coordinator", NOBODY) as running, connect(running.address, REWARD) as channel:
        call = await running.begin_call(channel)
        await configure_another_run(channel)
        running.process.send_signal(signal.SIGTERM)
        code, err = await running.end()
        with pytest.raises(errors.Unavailable):
            await call
    assert code == 128 + signal.SIGTERM, err
