"""The policy of an attempt: the learner trains the policy, and the publisher sends its weights to the generators."""

import asyncio
from dataclasses import dataclass
from typing import Self

from services.coordinator.rollout.current_version import CurrentVersion
from services.coordinator.rollout.sampling_gate import SamplingGate
from services.coordinator.run.full_disk import FullDisk
from services.coordinator.run.run_parts import RunParts
from services.coordinator.workers.learner_client import LearnerClient, StepResult
from services.coordinator.workers.weights.publisher import Publisher, PublishReport
from shoal.arrays import Int32Array
from shoal.rollout import TrainBatch, WeightVersion


@dataclass(frozen=True)
class Policy:
    """Trains and publishes the policy, and keeps the version that the learner has."""

    version: CurrentVersion
    learner: LearnerClient
    publisher: Publisher
    gate: SamplingGate
    """Keeps groups from being sampled during a publish, unless weights are updated in flight."""
    lock: asyncio.Lock
    """A lock that keeps steps and catch-ups apart: in the middle of a step, the learner would broadcast weights that
    are newer than their version."""

    @classmethod
    def of_attempt(cls, run: RunParts, full_disk: FullDisk, canary: Int32Array) -> Self:
        """Makes the policy of the record's attempt, at version 0. `canary` is the parameter of `Publisher`."""
        learner = LearnerClient(run.fleet, run.config, run.events)

        async def reserve_epoch() -> int:
            return run.record.next_weight_epoch()

        return cls(
            CurrentVersion(WeightVersion(run.record.attempt, 0)),
            learner,
            Publisher(run.config(), run.fleet, learner, run.events, lambda: full_disk.written(reserve_epoch), canary),
            SamplingGate(inflight_updates=run.config().weights.inflight_updates),
            run.fleet.gpu_turns.learner_lock,
        )

    @property
    def step(self) -> int:
        """The number of train steps in the learner's weights."""
        return self.version.policy_version

    async def train(self, batch: TrainBatch, *, generators_sleep: bool) -> StepResult:
        """Takes a train step. With `generators_sleep`, the generators sleep meanwhile."""
        async with self.lock:
            if generators_sleep:
                await self.publisher.sleep()
            result = await self.learner.train_step(batch)
            self.version.weights = result.version
            if generators_sleep:
                await self.publisher.wake()
        return result

    async def publish(self) -> PublishReport:
        """Publishes the learner's weights to the generators."""
        return await self.publisher.publish(self.version.weights)

    async def catch_up(self) -> None:
        """Publishes to the generators that missed the version."""
        async with self.lock:
            await self.publisher.catch_up(self.version.weights)
