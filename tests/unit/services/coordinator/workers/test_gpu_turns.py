import asyncio

import pytest

from services.coordinator.workers.gpu_turns import GpuTurns
from shoal.concurrency import Signal
from shoal.errors import DeadlineExceeded
from shoal.v1.worker_pb2 import WORKER_KIND_GENERATOR, WORKER_KIND_LEARNER
from tests.support.configs import run_config
from tests.support.waiting import settled


class Machine:
    """A GPU, a learner that may have loaded, and the order in which things happen on it."""

    def __init__(self, *, is_shared: bool = True, worker_timeout_s: float = 60.0) -> None:
        self.is_loaded = False
        self.changed = Signal()
        self.order: list[str] = []
        config = run_config(
            generator={"gpu_memory_utilization": 0.4},
            coordinator={"worker_timeout_s": worker_timeout_s},
            launch={"single_gpu": is_shared},
        )
        self.turns = GpuTurns(config, learner_is_loaded=lambda: self.is_loaded, changed=self.changed)

    async def load(self, kind: int, name: str) -> None:
        async with self.turns.to_load(kind):
            self.order.append(name)


async def test_a_generator_that_shares_the_gpu_loads_after_the_learner() -> None:
    machine = Machine()
    generator = asyncio.create_task(machine.load(WORKER_KIND_GENERATOR, "generator"))
    await machine.load(WORKER_KIND_LEARNER, "learner")
    assert machine.order == ["learner"]
    machine.is_loaded = True
    machine.changed.notify()
    await generator
    assert machine.order == ["learner", "generator"]


async def test_a_generator_that_restarts_waits_for_the_end_of_a_step_and_no_step_begins_while_it_loads() -> None:
    machine = Machine()
    machine.is_loaded = True
    await machine.turns.learner_lock.acquire()
    generator = asyncio.create_task(machine.load(WORKER_KIND_GENERATOR, "generator"))
    await settled()
    assert machine.order == [] and machine.turns.began > 0, "its deadlines count from now while it waits"
    machine.turns.learner_lock.release()
    await generator
    async with machine.turns.to_load(WORKER_KIND_GENERATOR):
        began = machine.turns.began
        assert machine.turns.learner_lock.locked()
        await asyncio.sleep(0.001)
        assert machine.turns.began == began, "its deadlines count from the beginning of its turn"
    assert not machine.turns.learner_lock.locked()


async def test_a_generator_that_does_not_load_in_time_gives_the_gpu_back() -> None:
    machine = Machine(worker_timeout_s=0.01)
    machine.is_loaded = True
    with pytest.raises(DeadlineExceeded, match=r"coordinator\.worker_timeout_s \(0 s\).*same GPU"):
        async with machine.turns.to_load(WORKER_KIND_GENERATOR):
            await asyncio.Event().wait()
    assert not machine.turns.learner_lock.locked()


async def test_with_a_gpu_each_nobody_waits() -> None:
    machine = Machine(is_shared=False)
    async with machine.turns.learner_lock:
        await machine.load(WORKER_KIND_GENERATOR, "generator")
    assert machine.order == ["generator"]
