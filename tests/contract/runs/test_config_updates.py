"""Changes of the configuration of an active run."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format
from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.struct_pb2 import Struct

from services.coordinator.workers import registry
from shoal.errors import Aborted, FailedPrecondition, InvalidArgument
from shoal.v1 import coordinator_pb2 as pb
from tests.contract.coordinator.test_algorithm import query
from tests.support.cluster import Cluster, kinds, of_kind
from tests.support.scripted_workers import ScriptedGenerator, ScriptedLearner, ScriptedReward, arithmetic_config
from tests.support.waiting import eventually


async def start_slowly(cluster: Cluster, model: Path, num_steps: int = 6) -> None:
    await cluster.add_all(ScriptedGenerator(cluster.plane, delay_s=0.05))
    await cluster.start(arithmetic_config(model, run={"num_steps": num_steps}), run_id="updated")
    await cluster.until("step", step=2)


async def update(cluster: Cluster, changes: dict[str, Any], *, mask: tuple[str, ...] = (), etag: str = "") -> pb.Run:
    request = pb.UpdateRunConfigRequest(
        config=json_format.ParseDict(changes, Struct()), update_mask=FieldMask(paths=mask), etag=etag
    )
    return (await cluster.stub.UpdateRunConfig(request, timeout=60)).run


def learning_rate(run: pb.Run) -> float:
    return float(json_format.MessageToDict(run.config)["learner"]["learning_rate"])


async def test_a_new_learning_rate_trains_from_the_next_step_on_and_no_restore_goes_back_before_it(
    cluster: Cluster, model: Path
) -> None:
    await start_slowly(cluster, model)
    run = await update(cluster, {"learner": {"learning_rate": 3e-4}})
    assert learning_rate(run) == 3e-4
    _, events = await cluster.finish()
    ((version, config),) = cluster.learner.configs
    assert config.learner.learning_rate == 3e-4
    (applied,) = of_kind(events, "config_applied")
    assert applied.attributes["policy_version"] == version >= 2
    saved = [
        event.attributes["policy_version"] for event in events[: events.index(applied)] if event.kind == "checkpoint"
    ]
    assert saved[-1] == version, f"the change came at step {version}, the checkpoints before it are of {saved}"
    rows = query(cluster, "SELECT policy_version, fields FROM config_changes")
    assert rows == [(version, '{"learner.learning_rate": "1e-06 -> 0.0003"}')], rows


async def test_a_run_whose_last_step_is_under_way_can_be_extended_and_ends_with_the_new_number(
    cluster: Cluster, model: Path
) -> None:
    await start_slowly(cluster, model, num_steps=4)
    run = await update(cluster, {"run": {"num_steps": 9}})
    assert run.num_steps == 9, "the answer has the run as it was before"
    run, events = await cluster.finish(9)
    assert run.num_steps == 9
    assert [event.attributes["step"] for event in events if event.kind == "step"] == list(range(1, 10))
    assert cluster.learner.configs[-1][1].run.num_steps == 9


async def test_what_does_not_alter_training_changes_at_once_and_without_the_learner(
    cluster: Cluster, model: Path
) -> None:
    await start_slowly(cluster, model)
    await update(cluster, {"checkpoint": {"every_steps": 1, "keep_last": 3}})
    run, events = await cluster.end()
    saved = [event.attributes["policy_version"] for event in events if event.kind == "checkpoint"]
    assert saved[-3:] == [4, 5, 6], f"checkpoints of steps {saved}"
    kept = sorted(path.name for path in (Path(run.path) / "checkpoints").iterdir())
    assert kept == [f"step-{step:08d}" for step in (4, 5, 6)], kept
    assert not cluster.learner.configs and "config_applied" not in kinds(events)


async def test_a_change_at_once_is_kept_while_the_learner_takes_another_one(
    cluster: Cluster, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take = ScriptedLearner.SetHyperparameters

    async def take_slowly(self: ScriptedLearner, request: Any, context: Any) -> Any:
        await update(cluster, {"checkpoint": {"every_steps": 1}})
        return await take(self, request, context)

    monkeypatch.setattr(ScriptedLearner, "SetHyperparameters", take_slowly)
    await start_slowly(cluster, model)
    await update(cluster, {"learner": {"learning_rate": 3e-4}})
    _, events = await cluster.end()
    (applied,) = of_kind(events, "config_applied")
    assert list(applied.attributes["fields"]) == ["learner.learning_rate"], applied.message


async def test_an_update_after_the_last_step_is_refused_and_changes_nothing(
    cluster: Cluster, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    export, refusals = ScriptedLearner.ExportModel, []

    async def export_late(self: ScriptedLearner, request: Any, context: Any) -> Any:
        with pytest.raises(FailedPrecondition, match="resume the run") as caught:
            await update(cluster, {"run": {"num_steps": 9}})
        refusals.append(caught.value)
        return await export(self, request, context)

    monkeypatch.setattr(ScriptedLearner, "ExportModel", export_late)
    await start_slowly(cluster, model, num_steps=4)
    run, _ = await cluster.finish(4)
    assert refusals
    config = json_format.MessageToDict(run.config)
    assert (run.num_steps, config["run"]["num_steps"]) == (4, 4)


async def test_an_update_says_which_fields_need_a_resume_and_changes_nothing(cluster: Cluster, model: Path) -> None:
    await start_slowly(cluster, model)
    before = await cluster.run()
    with pytest.raises(InvalidArgument) as caught:
        await update(cluster, {"sampling": {"temperature": 0.5}, "learner": {"learning_rate": 1e-3}})
    assert [violation.field for violation in caught.value.violations] == ["sampling.temperature"]
    assert "resume" in caught.value.message and "learner.learning_rate" in caught.value.message
    with pytest.raises(InvalidArgument, match="num_steps"):
        await update(cluster, {"run": {"num_steps": 1}})
    assert (await cluster.run()).etag == before.etag


async def test_an_update_of_another_configuration_than_the_one_read_is_aborted_and_a_repeat_is_not(
    cluster: Cluster, model: Path
) -> None:
    await start_slowly(cluster, model, num_steps=40)
    read = (await cluster.run()).etag
    run = await update(cluster, {"learner": {"learning_rate": 3e-4}}, etag=read)
    assert run.etag != read
    assert (await update(cluster, {"learner": {"learning_rate": 3e-4}}, etag=read)).etag == run.etag
    with pytest.raises(Aborted, match="read the run again"):
        await update(cluster, {"learner": {"learning_rate": 5e-4}}, etag=read)


async def test_a_mask_names_the_fields_to_change_and_resets_those_that_are_not_given(
    cluster: Cluster, model: Path
) -> None:
    await start_slowly(cluster, model, num_steps=40)
    mask = ("learner.learning_rate", "grpo.max_skipped_steps")
    await update(cluster, {"learner": {"learning_rate": 3e-4}, "grpo": {"max_skipped_steps": 7}}, mask=mask)
    run = await update(cluster, {}, mask=mask)
    config = json_format.MessageToDict(run.config)
    assert config["learner"]["learning_rate"] == 1e-6 and "max_skipped_steps" not in config["grpo"]
    with pytest.raises(InvalidArgument, match=r"learner\.learning_rate is given"):
        await update(cluster, {"learner": {"learning_rate": 3e-4}}, mask=("grpo.max_skipped_steps",))


async def test_a_run_that_has_ended_is_not_updated(cluster: Cluster, model: Path) -> None:
    await start_slowly(cluster, model, num_steps=3)
    await cluster.end()
    request = pb.UpdateRunConfigRequest(
        run_id="updated", config=json_format.ParseDict({"run": {"num_steps": 9}}, Struct())
    )
    with pytest.raises(FailedPrecondition, match="has ended"):
        await cluster.stub.UpdateRunConfig(request, timeout=60)


def right_samples(batch: list[Any]) -> list[tuple[str, int, bool]]:
    """Each completion of a batch: its group, its index, and whether it is right."""
    group_id, samples = "", []
    for message in batch:
        if message.HasField("group"):
            group_id = message.group.group_id
        elif message.HasField("rollout"):
            samples.append((group_id, message.rollout.completion.sample_index, message.rollout.reward == 1))
    return samples


async def test_groups_that_wait_for_a_step_are_judged_by_its_settings_as_after_a_restore_from_its_checkpoint(
    cluster: Cluster, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "LEASE_S", 4.0)
    await cluster.add(cluster.learner, "learner-0")
    generator = ScriptedGenerator(cluster.plane, holds_from=9)
    await cluster.add(generator, "generator-0")
    await cluster.add(ScriptedReward(), "reward-0")
    grpo = {"groups_per_step": 5, "max_staleness": 0, "keep_zero_signal": True}
    await cluster.start(arithmetic_config(model, run={"num_steps": 4}, grpo=grpo), run_id="judged")

    async def all_but_one() -> set[str]:
        scored = {group.group_id for group in await cluster.groups() if group.state == "SCORED"}
        return scored if len(scored) == 4 else set()

    await cluster.until("step")
    judged = await eventually(all_but_one, "the groups of step 2 are judged")
    await update(cluster, {"grpo": {"max_wrong_completion_tokens": 1}})
    generator.may_sample.set()
    await cluster.until("step", step=2)
    first = right_samples(cluster.learner.batches[1])
    assert judged & {group_id for group_id, *_ in first}, "no group was judged before the change"
    assert all(is_right for *_, is_right in first), f"wrong completions are trained on: {first}"

    await cluster.kill("learner-0")
    await cluster.until("restarting")
    cluster.learner = ScriptedLearner(cluster.plane)
    await cluster.add(cluster.learner, "learner-1")
    _, events = await cluster.finish(4, attempt=1)
    assert [event.attributes["policy_version"] for event in events if event.kind == "restored"] == [1]
    assert right_samples(cluster.learner.batches[0]) == first, "the step is another one after a restore"
    assert kinds(events).count("config_applied") == 1
    rows = query(cluster, "SELECT policy_version, fields FROM config_changes")
    assert rows == [(1, '{"grpo.max_wrong_completion_tokens": "unset -> 1"}')], rows


async def test_a_change_whose_learner_dies_between_its_checkpoint_and_its_application_is_applied_once(
    cluster: Cluster, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "LEASE_S", 4.0)
    asked = asyncio.Event()

    class Dying(ScriptedLearner):
        async def SetHyperparameters(self, request: Any, context: Any) -> Any:
            asked.set()
            await asyncio.Event().wait()

    cluster.learner = Dying(cluster.plane)
    await cluster.add_all(ScriptedGenerator(cluster.plane, delay_s=0.05))
    await cluster.start(arithmetic_config(model, run={"num_steps": 12}), run_id="between")
    await cluster.until("step", step=2)
    await update(cluster, {"learner": {"learning_rate": 3e-4}})
    await asked.wait()
    await update(cluster, {"run": {"num_steps": 14}})  # Another one, while the first is under way.
    await cluster.kill("learner-0")
    await cluster.until("restarting")
    cluster.learner = ScriptedLearner(cluster.plane)
    await cluster.add(cluster.learner, "learner-1")
    _, events = await cluster.finish(14, attempt=1)
    (applied,) = of_kind(events, "config_applied")
    version = applied.attributes["policy_version"]
    assert [event.attributes["policy_version"] for event in events if event.kind == "restored"] == [version]
    rows = query(cluster, "SELECT policy_version, fields FROM config_changes")
    fields = {"learner.learning_rate": "1e-06 -> 0.0003", "run.num_steps": "12 -> 14"}
    assert [(version, json.loads(text)) for version, text in rows] == [(version, fields)], rows
