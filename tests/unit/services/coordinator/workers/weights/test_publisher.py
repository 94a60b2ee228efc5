"""Which generators the calls outside of a publish go to. For publishes see tests/contract."""

from types import SimpleNamespace
from typing import Any

import numpy as np

from services.coordinator.workers.weights.publisher import Publisher
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
