"""Which generators the calls outside of a publish go to. For publishes see tests/contract."""

from types import SimpleNamespace
from typing import Any

import numpy as np

from services.coordinator.workers.weights.publisher import Publisher
from shoal.errors import FailedPrecondition, ShoalError
from shoal.v1 import generator_pb2
from shoal.v1.rollout_pb2 import WeightVersion as WeightVersionMessage
from shoal.wire import float32_to_wire
from tests.support.configs import run_config


def _generator(calls: list[str], name: str, *, serving: bool) -> Any:
    def recorded(method: str) -> Any:
        async def call(request: object, timeout: float) -> None:
            calls.append(f"{method} {name}")

        return call

    stub = {method: recorded(method) for method in ("Sleep", "Wake", "PauseGeneration", "ResumeGeneration")}
    return SimpleNamespace(name=name, serving=serving, is_out_of_reach=False, stub=SimpleNamespace(**stub))


async def test_a_generator_without_weights_sleeps_too_and_only_one_that_serves_is_paused() -> None:
    calls: list[str] = []
    generators = [_generator(calls, "serving", serving=True), _generator(calls, "stale", serving=False)]
    fleet: Any = SimpleNamespace(generators=generators)
    nothing: Any = None
    publisher = Publisher(run_config(), fleet, nothing, nothing, nothing, np.arange(2, dtype=np.int32))
    for call in (publisher.sleep, publisher.wake, publisher.pause, publisher.resume):
        await call()
    assert calls == [
        "Sleep serving", "Sleep stale", "Wake serving", "Wake stale", "PauseGeneration serving",
        "ResumeGeneration serving",
    ]  # fmt: skip


async def test_what_an_engine_computes_with_its_files_is_asked_once_before_its_first_load_and_missed_by_nobody() -> (
    None
):
    asked: list[str] = []
    logprobs = np.array([-1.5], dtype=np.float32)

    def member(name: str, answer: generator_pb2.ScoreTokensResponse | ShoalError) -> Any:
        async def score(request: Any, timeout: float) -> generator_pb2.ScoreTokensResponse:
            asked.append(name)
            if isinstance(answer, ShoalError):
                raise answer
            return answer

        return SimpleNamespace(record=SimpleNamespace(worker_id=name), stub=SimpleNamespace(ScoreTokens=score))

    fresh = member("fresh", generator_pb2.ScoreTokensResponse(logprobs=float32_to_wire(logprobs)))
    loaded = generator_pb2.ScoreTokensResponse(logprobs=float32_to_wire(logprobs), version=WeightVersionMessage())
    members = [fresh, member("loaded", loaded), member("earlier", FailedPrecondition("no such rpc"))]
    nothing: Any = None
    publisher = Publisher(run_config(), nothing, nothing, nothing, nothing, np.arange(2, dtype=np.int32))
    for one in (*members, fresh):
        await publisher._read_first(one)
    assert asked == ["fresh", "loaded", "earlier"]
    assert {name: found.tolist() for name, found in publisher._first.items()} == {"fresh": [-1.5]}
