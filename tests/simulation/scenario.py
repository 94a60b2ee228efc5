"""Plays a schedule: its run, its faults, then a calm, in which the run must finish."""

import asyncio
import json
import re
from collections import Counter
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from google.protobuf import json_format
from google.protobuf.struct_pb2 import Struct

from services.coordinator.store.run_record import RunRecord, RunState
from shoal.config import dump_config, parse_config
from shoal.errors import ShoalError
from shoal.v1 import coordinator_pb2 as pb
from tests.simulation.schedule import Schedule
from tests.simulation.world import RUN, Slot, World
from tests.support.scripted_workers import arithmetic_config

MAX_RESUMES = 40
"""Of a run that ended before its last step, by the operator."""
_POLL_S = 0.05
_NEEDS_A_PERSON = re.compile(
    "steps in a row|no generator had current weights|registered and loaded within|no reward service was available"
    "|no checkpoint can be restored|cannot serve this run|^the disk is full"
)
"""Ends of a run that are right where a fault lasts: the rest are not."""


class Scenario:
    def __init__(self, world: World, model: Path, schedule: Schedule) -> None:
        self.world = world
        self.schedule = schedule
        self.num_steps = schedule.num_steps
        self.max_staleness = schedule.max_staleness
        self.defects: list[str] = []
        sections = {name: dict(values) for name, values in schedule.sections.items()}
        self.config = arithmetic_config(model, **sections | {"run": sections["run"] | {"name": RUN}})
        self.updates: dict[str, set[float]] = {}
        """The values that each field may have at the end, of those that were changed: the last one, if all is known."""
        self._updating: Counter[str] = Counter()
        """Calls that are under way, by their field."""
        self._num_updates: Counter[str] = Counter()
        """Calls that began, by their field."""
        self._num_resumes = 0
        self._is_calm = False
        self._verbs: set[asyncio.Task[Any]] = set()

    def describe(self) -> str:
        record = self.record()
        return f"{record.state} at step {record.policy_version} of {self.num_steps}: {record.message}"

    def record(self) -> RunRecord:
        return RunRecord.load_as_left(self.world.data_dir / RUN)

    async def play(self) -> None:
        world = self.world
        world.start_coordinator()
        world.add("learner", 0)
        for kind, count in self.schedule.num_workers.items():
            for number in range(count):
                world.add(kind, number)
        await asyncio.sleep(1)
        await world.start_run(self.config)
        share = self.schedule.weather
        self.weather(break_share=share, slow_share=share)
        self.faults(endless_share=share / 4, internal_share=share / 4)
        keeping = world.operator.create_task(self._keep_going())
        for fault in self.schedule.faults:
            await self._until(fault.after)
            await asyncio.sleep(fault.in_s)
            if self._has_finished:
                break
            world.trace(f"{fault.what} {json.dumps(dict(fault.values))}")
            working = getattr(self, fault.what)(**fault.values)
            if working is not None:
                self._begin(working)
        self._calm()
        await keeping
        await asyncio.sleep(30)  # Whatever is left has time to end.

    async def _until(self, event: str) -> None:
        """Waits for an event of a schedule, or for the end of the run; for nothing if it is empty."""
        path = self.world.data_dir / RUN / "events.jsonl"
        kind, _, number = event.partition(" ")
        while event:
            happened = path.read_text().count(f'"kind": "{kind}"') if path.exists() else 0
            if happened >= int(number) or self._has_finished:
                return
            await asyncio.sleep(_POLL_S)

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

    # What can happen, by the names of schedules. What takes time returns its work.

    def _slot(self, worker: int) -> Slot:
        return self.world.slots[worker % len(self.world.slots)]

    def kill_coordinator(self, back_s: float) -> None:
        self.world.kill_coordinator(back_s)

    async def end_coordinator(self) -> None:
        await self.world.end_coordinator()

    def kill_worker(self, worker: int, back_s: float) -> None:
        self._slot(worker).kill(back_s)

    def kill_learner(self, back_s: float) -> None:
        self.world.of_kind("learner")[0].kill(back_s)

    def kill_rank(self, noticed_s: float) -> None:
        slot = self.world.of_kind("learner")[0]
        if slot.servicer is not None:
            slot.servicer.has_lost_a_rank = True
        process = slot.process
        self.world.later(noticed_s, lambda: slot.kill(3.0) if slot.process is process else None)

    def stop_worker(self, worker: int, for_s: float) -> None:
        self._stop(self._slot(worker).process, for_s)

    def stop_coordinator(self, for_s: float) -> None:
        self._stop(self.world.coordinator, for_s)

    def _stop(self, process: Any, for_s: float) -> None:
        process.stop()
        self.world.later(for_s, process.go_on)

    def part_worker(self, worker: int, for_s: float) -> None:
        until = self.world.loop.time() + for_s
        self.world.weather.part(self.world.coordinator, self._slot(worker).process, until)

    def cut_off_worker(self, worker: int) -> None:
        self.world.network.cut(self.world.coordinator, self._slot(worker).process)

    def weather(self, **values: float) -> None:
        for name, value in values.items():
            setattr(self.world.weather, name, value)

    def faults(self, **values: Any) -> None:
        for name, value in values.items():
            setattr(self.world.plane.faults, name, value)

    async def verifier_outage(self, for_s: float) -> None:
        self.faults(verifier_fails=True)
        await asyncio.sleep(for_s)
        self.faults(verifier_fails=False)

    def damage(self, files: bool, place: int) -> None:
        """Deletes the learner's files of the newest checkpoint, or flips a bit of it, unless it is the only one."""
        folders = sorted(path.parent for path in (self.world.data_dir / RUN / "checkpoints").glob("*/manifest.json"))
        if len(folders) < 2:
            return
        disk, name = self.world.plane.disk, folders[-1].name
        if files and name in disk:
            del disk[name]
            return
        for path in sorted(folders[-1].glob("ledger*.sqlite")):
            content = bytearray(path.read_bytes())
            content[place % len(content)] ^= 1
            path.write_bytes(content)

    def join(self) -> None:
        self.world.add("generator", len(self.world.slots))

    async def pause(self, for_s: float, timeout_s: float = 600) -> None:
        await self.verb("PauseRun", timeout_s)
        await asyncio.sleep(for_s)
        await self.verb("ResumeRun", timeout_s)

    async def update(self, field: str, value: float, timeout_s: float = 600) -> None:
        section, name = field.split(".")
        struct = json_format.ParseDict({section: {name: value}}, Struct())
        possible = self.updates.setdefault(field, {dump_config(parse_config(self.config))[section].get(name)})
        possible.add(value)  # A call that fails may have been heard.
        is_first = not self._updating[field]
        self._updating[field] += 1
        self._num_updates[field] = number = self._num_updates[field] + 1
        try:
            await self.world.call("UpdateRunConfig", pb.UpdateRunConfigRequest(config=struct), timeout_s=timeout_s)
            # Of two calls at once, the one that is answered last may have been heard first.
            if is_first and self._num_updates[field] == number:
                self.updates[field] = {value}
        finally:
            self._updating[field] -= 1

    async def verb(self, method: str, timeout_s: float = 600, **fields: Any) -> None:
        request = json_format.ParseDict(fields, getattr(pb, f"{method}Request")(), ignore_unknown_fields=False)
        await self.world.call(method, request, timeout_s=timeout_s)

    async def resume(self) -> None:
        await self.world.start_run(None)

    # The end.

    def _calm(self) -> None:
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
                self._begin(self.verb("ResumeRun"))
            elif record.state.has_ended:
                self._num_resumes += 1
                if self._num_resumes > MAX_RESUMES:
                    self.defects.append(f"it ends again and again: {record.message}")
                    return
                self.world.trace(f"resumed after: {record.message}")
                self._begin(self.resume())

    def _restart_quarantined(self) -> None:
        """Starts generators again that get no weights any more, as the event asks for."""
        active = self.world.runs._active if self.world.runs is not None else None
        if active is None or not self.world.coordinator.is_alive:
            return
        for member in active.parts.fleet.generators:
            if member.standing.is_quarantined:
                name = member.record.address.partition(":")[0]
                next(slot for slot in self.world.slots if slot.name == name).kill(1.0)
