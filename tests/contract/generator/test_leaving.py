"""SIGTERM to a generator process."""

import asyncio
import signal

import pytest

from shoal.errors import Aborted
from shoal.rollout import SamplingParams
from shoal.rpc.channel import connect
from shoal.token_run import TokenRun, joined
from shoal.v1 import worker_pb2
from shoal.v1.generator_pb2_grpc import GeneratorServiceStub
from shoal.wire import part_from_wire, sampling_to_wire
from tests.support.generator_client import TIMEOUT_S, Generator
from tests.support.loopback import GENERATOR
from tests.support.processes import serving_process


async def test_a_generator_that_gets_sigterm_hands_every_token_back_and_ends_in_order() -> None:
    async with serving_process("tests.support.scripted_generator") as (process, address):
        async with connect(address, GENERATOR) as channel:
            client = Generator(GeneratorServiceStub(channel), None, [], [], asyncio.Event())
            await client.configure()
            await client.reach(worker_pb2.WORKER_STATE_STALE)
            await client.join()
            await client.load(0)
            call = client.sampling(sampling=sampling_to_wire(SamplingParams(1.0, 12, ())), report_every_tokens=3)
            runs: dict[int, list[TokenRun]] = {0: [], 1: []}
            was_told = False
            with pytest.raises(Aborted) as error:
                async for message in call:
                    for index, _, run in map(part_from_wire, message.parts):
                        runs[index].append(run)
                    if not was_told:  # A second signal would end it at once.
                        was_told = True
                        process.send_signal(signal.SIGTERM)
            assert error.value.reason == "SHUTTING_DOWN"
        tokens = {index: joined(parts).token_ids.tolist() for index, parts in runs.items()}
        assert tokens == {0: list(range(10, 17)), 1: list(range(20, 27))}, "a token was not handed back"
        assert await asyncio.wait_for(process.wait(), TIMEOUT_S) == 0
