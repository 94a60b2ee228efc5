"""What a seed does to a run: settings; then kills, delays, faults and verbs; then a calm, in which it must finish."""

import asyncio
import random
import re
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from google.protobuf import json_format
from google.protobuf.struct_pb2 import Struct

from services.coordinator.store.run_record import RunRecord, RunState
from shoal.errors import ShoalError
from shoal.v1 import coordinator_pb2 as pb
from tests.simulation.world import RUN, World
from tests.support.scripted_workers import arithmetic_config

MAX_RESUMES = 40
"""Of a run that ended before its last step, by the operator."""


_NEEDS_A_PERSON = re.compile(
    "steps in a row|no generator had current weights|registered and loaded within|no reward service for"
    "|no checkpoint can be restored|cannot serve this run"
)
"""Ends of a run that are right where a fault lasts: the rest are not."""


class Scenario:
    """One run and everything that happens to it."""

    def __init__(self, world: World, model: Path, rng: random.Random) -> None:
        self.world = world
        self.rng = rng
        self.num_steps = rng.randint(4, 10)
        self.max_staleness = rng.choice((0, 1, 2))
        self.defects: list[str] = []
        self.config = self._config(model)
        self._num_resumes = 0
        self._is_calm = False
        self._verbs: set[asyncio.Task[Any]] = set()

    def _config(self, model: Path) -> dict[str, Any]:
        rng = self.rng
        groups_per_step = rng.randint(1, 4)
        grpo: dict[str, Any] = {
            "group_size": rng.randint(2, 3),
            "groups_per_step": groups_per_step,
            "max_staleness": self.max_staleness,
        }
        if rng.random() < 0.5:
            grpo |= {"active_sampling": True, "max_refills": rng.randint(1, 3)}
        sections: dict[str, dict[str, Any]] = {
            "data": {"sources": [{"task": "arithmetic", "task_size": rng.choice((5, 40))}], "max_prompt_tokens": 200},
            "grpo": grpo,
            "generator": {"max_num_seqs": rng.choice((2, 6, 256)), "report_every_tokens": 1},
            "run": {"name": RUN, "num_steps": self.num_steps, "seed": rng.randrange(3)},
            "reward": {"outage_window": 6},
            "coordinator": {"worker_timeout_s": 120, "sampling_timeout_s": 60, "max_restarts": 1000},
            "weights": {"timeout_s": 30, "inflight_updates": rng.random() < 0.7},
            "checkpoint": {"every_steps": rng.randint(1, 4), "keep_last": rng.randint(1, 3)},
        }
        if rng.random() < 0.4:
            sections["evaluation"] = {
                "sources": [{"task": "arithmetic", "task_size": 50, "task_seed": 7}],
                "num_prompts": 3,
                "every_steps": rng.randint(1, 3),
            }
        if rng.random() < 0.3:
            sections["checkpoint"]["export_every_steps"] = 2
        return arithmetic_config(model, **sections)

    def describe(self) -> str:
        """Describes how far the run is."""
        record = self.record()
        return f"{record.state} at step {record.policy_version} of {self.num_steps}: {record.message}"

    def record(self) -> RunRecord:
        """Reads the run's record as its coordinator left it."""
        return RunRecord.load_as_left(self.world.data_dir / RUN)

    async def play(self) -> None:
        """Plays the schedule to the end of the run."""
        world, rng = self.world, self.rng
        world.start_coordinator()
        world.add("learner", 0)
        for kind, at_most in (("generator", 3), ("reward", 2)):
            for number in range(rng.randint(1, at_most)):
                world.add(kind, number)
        await asyncio.sleep(1)
        await world.start_run(self.config)
        if rng.random() < 0.5:
            share = rng.choice((0.02, 0.1))
            world.weather.break_share = world.weather.slow_share = share
            world.plane.faults.endless_share = world.plane.faults.internal_share = share / 4
        keeping = world.operator.create_task(self._keep_going())
        pace_s = rng.choice((0.5, 2.0, 6.0))
        for _ in range(rng.randint(1, 25)):
            await asyncio.sleep(rng.expovariate(1 / pace_s))
            if self._has_finished:
                break
            name, act = rng.choice(self._actions())
            world.trace(name)
            working = act()
            if working is not None:
                self._begin(working)
        self._calm()
        await keeping
        await asyncio.sleep(30)  # Whatever is left has time to end.

    @property
    def _has_finished(self) -> bool:
        return self.record().state is RunState.FINISHED

    def _begin(self, work: Coroutine[Any, Any, Any]) -> None:
        task = self.world.operator.create_task(self._unless_refused(work))
        self._verbs.add(task)
        task.add_done_callback(self._verbs.discard)

    async def _unless_refused(self, work: Coroutine[Any, Any, Any]) -> None:
        try:
            await work
        except ShoalError as error:
            self.world.trace(f"refused: {type(error).__name__} {error.message}")
            if "defect" in error.message:
                self.defects.append(error.message)

    # What can happen.

    def _actions(self) -> list[tuple[str, Callable[[], Coroutine[Any, Any, Any] | None]]]:
        rng, world = self.rng, self.world
        faults, weather = world.plane.faults, world.weather
        slot = rng.choice(world.slots)
        back_s = rng.choice((0.1, 2.0, 20.0)) * rng.random()
        share = rng.choice((0.02, 0.1, 0.3))

        def change(**values: Any) -> Callable[[], None]:
            return lambda: [setattr(faults, name, value) for name, value in values.items()] and None

        def weathered(**values: Any) -> Callable[[], None]:
            return lambda: [setattr(weather, name, value) for name, value in values.items()] and None

        return [
            ("kill the coordinator", lambda: world.kill_coordinator(back_s)),
            ("kill the coordinator", lambda: world.kill_coordinator(back_s)),
            ("end the coordinator", world.end_coordinator),
            ("kill a worker", lambda: slot.kill(back_s)),
            ("kill a worker", lambda: slot.kill(back_s)),
            ("kill the learner", lambda: world.of_kind("learner")[0].kill(back_s)),
            ("kill a rank of the learner", self._kill_rank),
            ("stop a worker", lambda: self._stop(slot.process)),
            ("stop the coordinator", lambda: self._stop(world.coordinator)),
            ("part a worker", lambda: self._part(slot.process)),
            ("cut a worker off", lambda: world.network.cut(world.coordinator, slot.process)),
            ("storm", weathered(break_share=share, slow_share=share, slow_s=rng.choice((0.5, 5.0, 40.0)))),
            ("calm", weathered(break_share=0.0, slow_share=0.0)),
            ("bad workers", change(endless_share=share / 10, internal_share=share, slow_ready_share=share)),
            ("bad loads", change(flipped_share=share, stalled_join_share=share)),
            ("verifier outage", lambda: self._outage(rng.random() * 30)),
            ("refused steps", change(num_refusals=rng.randint(1, 2))),
            ("slow steps", change(step_s=rng.choice((0.5, 5.0, 40.0)))),
            ("damage a checkpoint", self._damage),
            ("a generator joins", lambda: world.add("generator", len(world.slots)) and None),
            ("pause", lambda: self._pause(rng.random() * 40)),
            ("checkpoint", lambda: self._verb("SaveCheckpoint", pb.SaveCheckpointRequest())),
            ("evaluate", lambda: self._verb("Evaluate", pb.EvaluateRequest())),
            ("update", self._update),
            ("stop now", lambda: self._verb("StopRun", pb.StopRunRequest(mode=pb.STOP_MODE_NOW))),
            ("drain", lambda: self._verb("StopRun", pb.StopRunRequest(mode=pb.STOP_MODE_DRAIN))),
            ("resume the run", lambda: self._resume()),
            ("look", lambda: self._verb("ListRollouts", pb.ListRolloutsRequest(page_size=5))),
        ]

    async def _verb(self, method: str, request: Any) -> None:
        await self.world.call(method, request, timeout_s=self.rng.choice((5, 600)))

    def _stop(self, process: Any) -> None:
        process.stop()
        self.world.later(self.rng.random() * self.rng.choice((5, 40)), process.go_on)

    def _part(self, process: Any) -> None:
        until = self.world.loop.time() + self.rng.random() * 40
        self.world.weather.part(self.world.coordinator, process, until)

    def _kill_rank(self) -> None:
        slot = self.world.of_kind("learner")[0]
        if slot.servicer is not None:
            slot.servicer.has_lost_a_rank = True
        process = slot.process
        self.world.later(self.rng.random() * 10, lambda: slot.kill(3.0) if slot.process is process else None)

    async def _outage(self, duration_s: float) -> None:
        self.world.plane.faults.verifier_fails = True
        await asyncio.sleep(duration_s)
        self.world.plane.faults.verifier_fails = False

    def _damage(self) -> None:
        """Flips a bit of the newest checkpoint, unless it is the only one."""
        folders = sorted(path.parent for path in (self.world.data_dir / RUN / "checkpoints").glob("*/manifest.json"))
        if len(folders) < 2:
            return
        disk, name = self.world.plane.disk, folders[-1].name
        if self.rng.random() < 0.5 and name in disk:
            del disk[name]
            return
        for path in sorted(folders[-1].glob("ledger*.sqlite")):
            content = bytearray(path.read_bytes())
            content[self.rng.randrange(len(content))] ^= 1
            path.write_bytes(content)

    async def _pause(self, duration_s: float) -> None:
        await self._verb("PauseRun", pb.PauseRunRequest())
        await asyncio.sleep(duration_s)
        await self._verb("ResumeRun", pb.ResumeRunRequest())

    async def _update(self) -> None:
        field, value = self.rng.choice(
            [
                ("learner.learning_rate", self.rng.random() * 1e-5),
                ("checkpoint.every_steps", self.rng.randint(1, 4)),
                ("coordinator.sampling_timeout_s", self.rng.choice((40.0, 90.0))),
                ("run.num_steps", self.num_steps + self.rng.randint(0, 2)),
            ]
        )
        section, name = field.split(".")
        struct = json_format.ParseDict({section: {name: value}}, Struct())
        await self._verb("UpdateRunConfig", pb.UpdateRunConfigRequest(config=struct))

    async def _resume(self) -> None:
        await self.world.start_run(None)

    # The end.

    def _calm(self) -> None:
        """Ends all faults."""
        world = self.world
        world.trace("the calm")
        self._is_calm = True
        faults, fresh = world.plane.faults, type(world.plane.faults)()
        for name in vars(fresh):
            setattr(faults, name, getattr(fresh, name))
        world.weather.break_share = world.weather.slow_share = 0.0
        for process in (world.coordinator, *(slot.process for slot in world.slots)):
            process.go_on()

    async def _keep_going(self) -> None:
        """Does what a person does until the last step: resumes the run, and restarts what is quarantined."""
        while True:
            await asyncio.sleep(5)
            self._restart_quarantined()
            if not self.world.coordinator.is_alive:
                continue
            record = self.record()
            if record.state is RunState.FAILED and not _NEEDS_A_PERSON.search(record.message):
                self.defects.append(f"it failed: {record.message}")
                return
            if record.state is RunState.FINISHED:
                self.num_steps = record.num_steps
                return
            if record.state is RunState.PAUSED and self._is_calm:
                self._begin(self._verb("ResumeRun", pb.ResumeRunRequest()))
            elif record.state.has_ended:
                self._num_resumes += 1
                if self._num_resumes > MAX_RESUMES:
                    self.defects.append(f"it ends again and again: {record.message}")
                    return
                self.world.trace(f"resumed after: {record.message}")
                self._begin(self._resume())

    def _restart_quarantined(self) -> None:
        """Starts generators again that get no weights any more, as the event asks for."""
        active = self.world.runs._active if self.world.runs is not None else None
        if active is None or not self.world.coordinator.is_alive:
            return
        for member in active._fleet.generators:
            if member.standing.is_quarantined:
                name = member.record.address.partition(":")[0]
                next(slot for slot in self.world.slots if slot.name == name).kill(1.0)
