"""What must hold after each schedule, whatever happened in it."""

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from typing import Any

from services.coordinator.store.rollouts import whole_ledger
from services.coordinator.store.run_record import RunRecord
from shoal.config import dump_config, parse_config
from shoal.config.changes import changed_values
from shoal.config.live import when_live, without_at_once
from shoal.config.tables.section import NEXT_STEP
from tests.simulation.scenario import Scenario
from tests.simulation.workers.plane import History
from tests.simulation.world import RUN, World


async def violations(world: World, scenario: Scenario) -> list[str]:
    if scenario.defects:
        return scenario.defects
    return [
        *world.plane.reports,
        *_of_lineage(world.plane.exported or (), scenario),
        *_of_ledger(world, world.plane.exported or ()),
        *_of_config(world, scenario),
        *_of_reports(world, scenario),
        *_of_slots(world),
        *_of_tasks(world),
    ]


def _of_lineage(history: History, scenario: Scenario) -> Iterator[str]:
    """Checks the steps that made the model: all of them, in order, nothing twice, nothing too old."""
    if len(history) != scenario.num_steps:
        yield f"the model was made by {len(history)} steps, not {scenario.num_steps}"
    attempt = 0
    for number, step in enumerate(history):
        if step.before.policy_version != number or step.before.attempt < attempt:
            yield f"step {number + 1} changed version {step.before}, after one of attempt {attempt}"
        attempt = step.before.attempt
        for group in step.groups:
            staleness = step.before.policy_version - group.oldest.policy_version
            if group.oldest.attempt != step.before.attempt or staleness > scenario.max_staleness:
                yield f"step {number + 1} trained {step.before} on {group.group_id} with tokens of {group.oldest}"
    counts = Counter(group.group_id for step in history for group in step.groups)
    if twice := [name for name, count in counts.items() if count > 1]:
        yield f"trained on twice: {', '.join(twice)}"


def _of_ledger(world: World, history: History) -> Iterator[str]:
    """Checks that each prompt is in the ledger once, and that the ledger and the model's lineage say the same."""
    with closing(whole_ledger(world.data_dir / RUN)) as ledger:
        groups = ledger.execute(
            "SELECT order_number, position, group_id, state, drop_reason, train_step FROM groups ORDER BY order_number"
        ).fetchall()
        states = ledger.execute("SELECT order_number, state, attempt FROM transitions ORDER BY sequence").fetchall()
    if [(order, position) for order, position, *_ in groups] != [(n, n) for n in range(len(groups))]:
        yield f"prompts were skipped or repeated: {[(order, position) for order, position, *_ in groups]}"
    last_attempt = max((attempt for *_, attempt in states), default=0)
    is_tail = True
    for order_number, _, group_id, state, reason, _ in reversed(groups):
        # One that an abandoned attempt replaced another with, and the last one did not need: an extended run begins
        # with it.
        is_tail &= all(attempt < last_attempt for number, _, attempt in states if number == order_number)
        if state != "TRAINED" and not (state == "DROPPED" and reason) and not is_tail:
            yield f"{group_id} was left {state}"
        last = [state for number, state, _ in states if number == order_number]
        if last.count("TRAINED") > 1:
            yield f"{group_id} was TRAINED {last.count('TRAINED')} times in one lineage"
    trained = {(group_id, step) for _, _, group_id, state, _, step in groups if state == "TRAINED"}
    learned = {(group.group_id, number) for number, step in enumerate(history, 1) for group in step.groups}
    if trained != learned:
        yield f"the ledger alone has {sorted(trained - learned)}, the model alone {sorted(learned - trained)}"


def _of_config(world: World, scenario: Scenario) -> Iterator[str]:
    """Checks that each change of the configuration is in the ledger once, and that those that were answered last."""
    config = dump_config(RunRecord.load_as_left(world.data_dir / RUN).load_config())
    with closing(whole_ledger(world.data_dir / RUN)) as ledger:
        ((trained,),) = ledger.execute("SELECT fields FROM config").fetchall()
        changes = ledger.execute("SELECT policy_version, fields FROM config_changes ORDER BY sequence").fetchall()
    if differing := changed_values(json.loads(trained), dump_config(without_at_once(parse_config(config)))):
        yield f"the ledger's configuration is not the run's: {differing}"
    now: dict[str, str] = {}
    last_version = 0
    for version, fields in changes:
        for name, change in json.loads(fields).items():
            before, _, after = change.partition(" -> ")
            if now.get(name, before) != before or version < last_version:
                yield f"{name} changes {change} at step {version}, where it is {now.get(name)} since {last_version}"
            now[name] = after
        last_version = version
    applied = _applied(world)
    for field in [name for name, count in applied.items() if count == 1 and name not in now]:
        yield f"a change of {field} was applied, and the ledger has none"
    for field, possible in scenario.updates.items():
        section, name = field.split(".")
        if (value := config.get(section, {}).get(name)) not in possible:
            yield f"{field} is {value}, and was changed to {possible}"
        if when_live(field) == NEXT_STEP and field in now and now[field] != json.dumps(value):
            yield f"{field} is {value}, and its last change in the ledger is to {now[field]}"


def _applied(world: World) -> Counter[str]:
    """Counts by field the changes that were applied since the run began, or began again without a checkpoint."""
    applied: Counter[str] = Counter()
    for event in events_of(world):
        if event["kind"] == "restored" and "there was no checkpoint" in event["message"]:
            applied.clear()
        elif event["kind"] == "config_applied":
            applied.update(event["attributes"]["fields"])
    return applied


def _of_reports(world: World, scenario: Scenario) -> Iterator[str]:
    """Checks that metrics and events have each step of the final lineage once, and versions that only rise."""
    folder = world.data_dir / RUN
    steps = []
    for line in (folder / "metrics.jsonl").read_text().splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if "eval/num_prompts" not in row:  # Evaluations have lines of their own.
            steps.append(row["step"])
    if steps != list(range(1, scenario.num_steps + 1)):
        yield f"metrics.jsonl has the steps {steps}"
    version = 0
    for event in events_of(world):
        values = event.get("attributes", {})
        if event["kind"] == "restored":
            version = int(values["policy_version"])
        elif event["kind"] == "step":
            if values["step"] != version + 1:
                yield f"an event tells of step {values['step']:g} after version {version}"
            version = int(values["step"])


def _of_slots(world: World) -> Iterator[str]:
    """Checks that whatever was taken is given back: slots, room on generators, the way through the gate."""
    assert world.runs is not None
    active = world.runs._active
    if active is None or active._attempt is None or not world.buffers:
        return
    buffer, attempt = world.buffers[-1], active._attempt
    if buffer.num_charged:
        yield f"{buffer.num_charged} slots are charged at the end"
    if attempt._policy.gate.num_inside:
        yield f"{attempt._policy.gate.num_inside} groups are inside the gate at the end"
    for member in (*active.parts.fleet.generators, *active.parts.fleet.rewards):
        if member.outstanding:
            yield f"{member.name} has {member.outstanding} outstanding at the end"
    if claims := attempt._rollout.generators._claims:
        yield f"{len(claims)} groups wait for room at the end"


def _of_tasks(world: World) -> Iterator[str]:
    for task in world.coordinator.tasks:
        name = task.get_coro().__qualname__  # type: ignore[union-attr]
        if name not in ("World._serve", "Server._handle"):
            yield f"the task {name} is left at the end"


def events_of(world: World) -> Iterator[dict[str, Any]]:
    """Reads the run's events, without the lines that a kill left half done."""
    for line in (world.data_dir / RUN / "events.jsonl").read_text().splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            continue
