"""Worker processes from their start to their exit code."""

import asyncio
import json
import os
import signal
import socket
import sys
from contextlib import asynccontextmanager

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from shoal import errors
from shoal.rpc.channel import connect
from shoal.v1 import reward_pb2, reward_pb2_grpc
from tests.contract.rpc.test_membership import Registry, next_of
from tests.support.loopback import COORDINATOR, REWARD, serving

TIMEOUT_S = 120
NOBODY = "127.0.0.1:1"


class Running:
    def __init__(self, process, serving):
        self.process = process
        self.address = serving["address"]

    async def line(self):
        async with asyncio.timeout(TIMEOUT_S):
            return (await self.process.stdout.readline()).decode().strip()

    async def begin_call(self, channel):
        """Begins a call that waits for a line of standard input."""
        stub = reward_pb2_grpc.RewardServiceStub(channel)
        call = stub.ListVerifiers(reward_pb2.ListVerifiersRequest(), timeout=TIMEOUT_S)
        assert await self.line() == "waiting"
        return call

    async def end(self):
        async with asyncio.timeout(TIMEOUT_S):
            _, err = await self.process.communicate()
        return self.process.returncode, err.decode()


async def spawn(*arguments):
    pipe = asyncio.subprocess.PIPE
    command = (sys.executable, "-m", "tests.support.worker_process", *arguments)
    return await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=pipe)


@asynccontextmanager
async def worker(*arguments):
    process = await spawn("--listen", "127.0.0.1:0", *arguments)
    try:
        async with asyncio.timeout(TIMEOUT_S):
            first = await process.stdout.readline()
        if not first:
            pytest.fail((await process.stderr.read()).decode())
        yield Running(process, json.loads(first))
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_a_worker_starts_registers_and_shows_its_state_as_health():
    registry = Registry()
    async with serving(registry, COORDINATOR) as coordinator, worker("--coordinator", coordinator) as running:
        registration = await next_of(registry.registrations)
        assert registration.address == running.address
        async with (
            grpc.aio.insecure_channel(running.address) as plain,
            connect(running.address, REWARD) as channel,
        ):
            watch = health_pb2_grpc.HealthStub(plain).Watch(
                health_pb2.HealthCheckRequest(service=REWARD), timeout=TIMEOUT_S
            )
            assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
            reward = reward_pb2_grpc.RewardServiceStub(channel)
            await reward.Configure(reward_pb2.RewardServiceConfigureRequest(run_id="READY"), timeout=TIMEOUT_S)
            assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
            watch.cancel()
        running.process.send_signal(signal.SIGTERM)
        code, err = await running.end()
    assert code == 0, err


async def test_sigterm_lets_a_call_finish_and_closes_the_service():
    async with worker("--coordinator", NOBODY) as running, connect(running.address, REWARD) as channel:
        call = await running.begin_call(channel)
        running.process.send_signal(signal.SIGTERM)
        # Draining has begun when the worker refuses calls.
        with pytest.raises(errors.Unavailable):
            async with asyncio.timeout(TIMEOUT_S):
                while True:
                    async with connect(running.address, REWARD) as late:
                        await reward_pb2_grpc.RewardServiceStub(late).GetStatus(
                            reward_pb2.RewardServiceGetStatusRequest(), timeout=TIMEOUT_S
                        )
        running.process.stdin.write(b"go on\n")
        await call
        assert await running.line() == "closed"
        code, err = await running.end()
    assert code == 0, err


async def test_a_second_signal_ends_a_worker_at_once():
    async with worker("--coordinator", NOBODY) as running, connect(running.address, REWARD) as channel:
        call = await running.begin_call(channel)
        running.process.send_signal(signal.SIGTERM)
        while b"draining" not in await running.process.stderr.readline():
            pass
        running.process.send_signal(signal.SIGINT)
        code, err = await running.end()
        with pytest.raises(errors.Unavailable):
            await call
    assert code == 128 + signal.SIGINT, err


async def test_a_worker_that_fails_for_good_exits_with_1():
    async with worker("--coordinator", NOBODY) as running, connect(running.address, REWARD) as channel:
        await reward_pb2_grpc.RewardServiceStub(channel).Configure(
            reward_pb2.RewardServiceConfigureRequest(run_id="FAILED"), timeout=TIMEOUT_S
        )
        code, err = await running.end()
    assert code == 1, err


async def test_the_error_for_a_port_in_use_names_the_port():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        process = await spawn("--coordinator", NOBODY, "--listen", f"127.0.0.1:{port}")
        out, err = await process.communicate()
    assert process.returncode == 1
    assert "\nreward: " in err.decode() and f"port {port} is in use" in err.decode(), err
    assert out.decode() == "closed\n", "it never served"


async def test_the_error_for_a_metrics_port_in_use_names_the_port():
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        process = await spawn("--coordinator", NOBODY, "--listen", "127.0.0.1:0", "--metrics-port", f"{port}")
        _, err = await process.communicate()
    assert process.returncode == 1
    assert f"port {port}" in err.decode() and "Prometheus" in err.decode(), err


async def test_a_worker_that_the_coordinator_refuses_prints_the_reason():
    registry = Registry(refusal=errors.InvalidArgument("kind: must be set"))
    async with serving(registry, COORDINATOR) as coordinator, worker("--coordinator", coordinator) as running:
        code, err = await running.end()
    assert code == 1
    assert "reward: kind: " in err, err


async def test_a_worker_dies_with_the_process_that_started_it(tmp_path):
    start = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-m", "tests.support.worker_process", "--die-with-parent",
                          "--coordinator", "{NOBODY}", "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
sys.stdin.read()
"""
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", start, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    child = int(await parent.stdout.readline())
    watch = os.pidfd_open(child)
    parent.kill()
    await parent.wait()
    gone = asyncio.Event()
    asyncio.get_running_loop().add_reader(watch, gone.set)
    try:
        async with asyncio.timeout(TIMEOUT_S):
            await gone.wait()
    finally:
        asyncio.get_running_loop().remove_reader(watch)
        os.close(watch)


async def test_prometheus_and_the_log_file_contain_calls(tmp_path):
    log = tmp_path / "logs" / "worker.log"
    options = ("--coordinator", NOBODY, "--metrics-port", "0", "--log-file", str(log))
    async with worker(*options) as running, connect(running.address, REWARD) as channel:
        reward = reward_pb2_grpc.RewardServiceStub(channel)
        await reward.GetStatus(reward_pb2.RewardServiceGetStatusRequest(), timeout=TIMEOUT_S)
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        (metrics,) = (line for line in lines if line["event"] == "metrics")
        reader, writer = await asyncio.open_connection("127.0.0.1", metrics["port"])
        writer.write(b"GET /metrics HTTP/1.0\r\n\r\n")
        page = (await reader.read()).decode()
        writer.close()
        running.process.send_signal(signal.SIGTERM)
        await running.end()
    (count,) = (
        line
        for line in page.splitlines()
        if line.startswith("rpc_server_call_duration_seconds_count") and 'rpc_method="GetStatus"' in line
    )
    assert count.endswith(" 1.0"), count
    assert all(line["service"] == "shoal-reward" and line["time"].endswith("Z") for line in lines)
