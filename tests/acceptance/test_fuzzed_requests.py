"""Arbitrary requests to every rpc of every service, over sockets: each gets a status that names what is wrong.

`SHOAL_FUZZ_S` sets the seconds for each service, `SHOAL_FUZZ_SEED` the first seed.
"""

import asyncio
import os
import random
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.struct_pb2 import Struct

from services.coordinator.run.runs import Runs
from services.coordinator.service import CoordinatorService
from services.coordinator.workers.registry import WorkerRegistry
from services.generator.service import GeneratorService
from services.learner.commands import LearnerCommands
from services.learner.ranks.process_group import ProcessGroup
from services.learner.service import LearnerService
from services.reward.environments.environment_service import EnvironmentService
from services.reward.environments.environments import Environments
from services.reward.service import RewardService
from shoal.v1 import environment_pb2
from shoal.worker.lifecycle import Lifecycle
from shoal.worker.reexec import Reexec
from tests.support.configs import run_config
from tests.support.loopback import COORDINATOR, ENVIRONMENT, GENERATOR, LEARNER, REWARD, NoProgram, serving
from tests.support.reward_client import ALLOWED
from tests.support.scripted_engine import ScriptedEngine

SECONDS = float(os.environ.get("SHOAL_FUZZ_S", "60"))
SEED = int(os.environ.get("SHOAL_FUZZ_SEED", "1"))
CALL_TIMEOUT_S = 3.0
LEAKS = re.compile(r'Traceback|File "|site-packages|/services/|/shoal/|\.py\b')
GAMES = ("calculator", "counter", "guess_number", "wordle")
"""The environments that arbitrary episodes begin in."""
BAD = (grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL)
MAX_DEPTH = 4
_TEXTS = (
    "", "a", "..", "../../etc/passwd", "/", "x" * 5000, "é\u202e\u0000\ud7ff", "%s%n", "{0}", "None", "nan", "run-1",
    "-1", "'; DROP TABLE groups;--",
    "127.0.0.1:1", "[::1]:2", "localhost:99999", "http://127.0.0.1:1/v1", "step-00000001",
)  # fmt: skip
_WHOLE = (0, 1, -1, 2, 7, 2**31 - 1, -(2**31), 2**32 - 1, 2**53, 2**63 - 1, -(2**63))
_NUMBERS = (0.0, 1.0, -1.0, 0.5, 1e-300, 1e300, float("inf"), float("-inf"), float("nan"))
_BYTES = (b"", b"\x00", b"\x01\x00\x00\x00", b"\x01\x00\x00\x00\x02\x00\x00\x00", b"\xff" * 7, b"\xff\xff\xff\x7f" * 3)
_KEYS = (
    "run", "model", "data", "learner", "grpo", "reward", "sampling", "kl", "name", "path", "sources", "task", "custom",
    "num_steps", "learning_rate", "group_size", "x", "", "__class__", "max_completion_tokens",
)  # fmt: skip
_REPEATED = FieldDescriptor.LABEL_REPEATED if hasattr(FieldDescriptor, "LABEL_REPEATED") else 3


async def generator(stack: AsyncExitStack, _: Path) -> Any:
    async def start(_: Any) -> ScriptedEngine:
        return ScriptedEngine()

    servicer = GeneratorService(start, Reexec(NoProgram(), end=lambda: None))
    stack.push_async_callback(servicer.close)
    return servicer


async def reward(stack: AsyncExitStack, _: Path) -> Any:
    service = RewardService(ALLOWED)
    stack.push_async_callback(service.close)
    return service


async def environments(stack: AsyncExitStack, _: Path) -> Any:
    tables = [{"name": name, "source": name, "max_episodes": 64} for name in GAMES]
    config = run_config(data={"sources": [{"path": "d"}]}, environments=tables)
    lifecycle, loaded = Lifecycle("the reward service"), asyncio.Event()
    service = EnvironmentService(lifecycle)
    stack.push_async_callback(service.close)

    async def load() -> None:
        await service.use(Environments(config.environments))
        loaded.set()

    lifecycle.load("fuzzed", config, load, message="loading environments")
    async with asyncio.timeout(120):
        await loaded.wait()
    return service


async def learner(stack: AsyncExitStack, folder: Path) -> Any:
    service = LearnerService(lambda: LearnerCommands(ProcessGroup.connect(), folder), lambda: "127.0.0.1")
    stack.push_async_callback(service.close)
    return service


async def coordinator(stack: AsyncExitStack, folder: Path) -> Any:
    registry = WorkerRegistry()
    runs = Runs(folder / "runs", registry)
    stack.push_async_callback(runs.close, 5.0)
    return CoordinatorService(runs, registry)


MAKE = {
    GENERATOR: generator, REWARD: reward, ENVIRONMENT: environments, LEARNER: learner, COORDINATOR: coordinator,
}  # fmt: skip


@asynccontextmanager
async def fuzzed(service: str, folder: Path) -> AsyncIterator[grpc.aio.Channel]:
    async with AsyncExitStack() as stack:
        servicer = await MAKE[service](stack, folder)
        address = await stack.enter_async_context(serving(servicer, service))
        yield await stack.enter_async_context(grpc.aio.insecure_channel(address))


def arbitrary_message(descriptor: Descriptor, rng: random.Random, depth: int = 0) -> Message:
    message: Any = message_factory.GetMessageClass(descriptor)()
    if isinstance(message, Struct):
        for key in rng.sample(_KEYS, rng.randint(0, 4)):
            message[key] = _json_value(rng, depth)
        return message
    for field in descriptor.fields:
        if rng.random() < 0.35:
            continue
        values = [value for value in _values(field, rng, depth) if value is not None]
        _put(message, field, values)
    return message


def _values(field: FieldDescriptor, rng: random.Random, depth: int) -> Iterator[Any]:
    for _ in range(rng.randint(0, 3) if field.is_repeated else 1):
        yield _value(field, rng, depth)


def _put(message: Any, field: FieldDescriptor, values: list[Any]) -> None:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return
    if field.is_repeated:
        for value in values:
            target = getattr(message, field.name)
            target.add().CopyFrom(value) if field.message_type else target.append(value)
    elif values and field.message_type:
        getattr(message, field.name).CopyFrom(values[0])
    elif values:
        setattr(message, field.name, values[0])


def _value(field: FieldDescriptor, rng: random.Random, depth: int) -> Any:
    kind = field.cpp_type
    if kind == FieldDescriptor.CPPTYPE_MESSAGE:
        return arbitrary_message(field.message_type, rng, depth + 1) if depth < MAX_DEPTH else None
    if kind == FieldDescriptor.CPPTYPE_STRING:
        return rng.choice(_BYTES) if field.type == FieldDescriptor.TYPE_BYTES else rng.choice(_TEXTS)
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        return rng.random() < 0.5
    if kind == FieldDescriptor.CPPTYPE_ENUM:
        return rng.choice([value.number for value in field.enum_type.values] + [99])
    if kind in (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT):
        return rng.choice(_NUMBERS)
    low, high = {
        FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
        FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
        FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
        FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
    }[kind]
    return rng.choice([number for number in _WHOLE if low <= number <= high])


def _json_value(rng: random.Random, depth: int) -> Any:
    kind = rng.randrange(6 if depth < MAX_DEPTH else 4)
    if kind == 0:
        return rng.choice(_TEXTS)
    if kind == 1:
        return rng.choice(_NUMBERS)
    if kind == 2:
        return rng.random() < 0.5
    if kind == 3:
        return None
    if kind == 4:
        return [_json_value(rng, depth + 1) for _ in range(rng.randint(0, 2))]
    return {key: _json_value(rng, depth + 1) for key in rng.sample(_KEYS, rng.randint(0, 3))}


async def call(channel: grpc.aio.Channel, service: str, method: Any, rng: random.Random) -> tuple[grpc.StatusCode, str]:
    name = f"/{service}/{method.name}"
    codec = {
        "request_serializer": lambda message: message.SerializeToString(),
        "response_deserializer": message_factory.GetMessageClass(method.output_type).FromString,
    }
    num_messages = rng.randint(0, 4) if method.client_streaming else 1
    requests = [arbitrary_message(method.input_type, rng) for _ in range(num_messages)]
    if method.name == "RunEpisode" and requests and rng.random() < 0.9:
        requests[0] = _beginning(rng)  # Else hardly any would get beyond the name of its environment.
    kind = f"{'stream' if method.client_streaming else 'unary'}_{'stream' if method.server_streaming else 'unary'}"
    invoke = getattr(channel, kind)(name, **codec)
    answer = invoke(iter(requests) if method.client_streaming else requests[0], timeout=CALL_TIMEOUT_S)
    try:
        if method.server_streaming:
            async for _ in answer:
                pass
        else:
            await answer
    except grpc.aio.AioRpcError as error:
        if error.details() == "Internal error from Core":  # This client's, where the server ends a stream of requests.
            return grpc.StatusCode.CANCELLED, ""
        return error.code(), error.details() or ""
    return grpc.StatusCode.OK, ""


def _beginning(rng: random.Random) -> environment_pb2.RunEpisodeRequest:
    start: Any = arbitrary_message(environment_pb2.EpisodeStart.DESCRIPTOR, rng)
    start.environment = rng.choice(GAMES)
    if rng.random() < 0.8:
        start.call_timeout_s, start.seed = 1.0, rng.randrange(100)
        start.task.Clear()
        del start.replay[:]
    return environment_pb2.RunEpisodeRequest(start=start)


@pytest.mark.parametrize("service", list(MAKE))
async def test_no_request_crashes_a_service_or_gets_an_answer_that_explains_nothing(
    service: str, tmp_path: Path
) -> None:
    counts: Counter[str] = Counter()
    seed, end = SEED, time.monotonic() + SECONDS
    async with fuzzed(service, tmp_path) as channel:
        while time.monotonic() < end:
            for method in descriptor_pool.Default().FindServiceByName(service).methods:
                code, details = await call(channel, service, method, random.Random(f"{service}.{method.name}.{seed}"))
                counts[code.name] += 1
                where = f"{method.name} with seed {seed}: {code.name}: {details}"
                assert code not in BAD, where
                assert not LEAKS.search(details), where
            seed += 1
            await asyncio.sleep(0)
    print(f"\n{service}: {counts.total()} requests from seed {SEED}: {dict(counts)}")
