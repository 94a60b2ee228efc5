"""An engine with a mixture of experts, before and after it loads other weights."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.arrays import Float32Array
from shoal.wire import float32_from_wire
from tests.support.real_generator import CANARY, Client, Generator, configured_client, logprobs_of
from tests.support.tiny_experts import move, published


async def engine_canary(client: Client, model: Any, version: int) -> tuple[Float32Array, str]:
    """Publishes a model; returns the canary's log-probabilities in the engine, and the type in which it computes."""
    done, _ = await client.publish(published(model), version)
    return float32_from_wire(done.canary.logprobs, "canary"), done.canary.dtype


@dataclass(frozen=True)
class Publishes:
    """The canary's log-probabilities: those of the engine, and those of the model."""

    as_loaded: Float32Array
    """From the files."""
    first: Float32Array
    """After a publish of the same weights."""
    moved: Float32Array
    """After a publish of others."""
    before: Float32Array
    after: Float32Array

    @property
    def pairs(self) -> tuple[tuple[Float32Array, Float32Array], ...]:
        return (self.as_loaded, self.before), (self.first, self.before), (self.moved, self.after)


async def publish_moved(folder: Path, model: Any, **generator: Any) -> Publishes:
    """Starts an engine with the model in `folder / "model"`, publishes that, moves it, and publishes it again.

    `generator` are settings of `[generator]`.
    """
    process = Generator(folder, folder / "model", spoil_first_weights=False, **generator)
    try:
        async with configured_client(process) as client:
            as_loaded, before = await client.score(), logprobs_of(model, CANARY)
            first, _ = await engine_canary(client, model, 0)
            move(model)
            moved, _ = await engine_canary(client, model, 1)
            return Publishes(as_loaded, first, moved, before, logprobs_of(model, CANARY))
    finally:
        process.end()
