"""A run that is resumed notices that its data or its base model are others than those that it was made from."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from services.coordinator.store.files.manifest import read_manifest
from shoal.error_reasons import ErrorReason
from shoal.errors import FailedPrecondition
from shoal.v1 import coordinator_pb2 as pb
from tests.contract.runs.test_resumes import resume
from tests.support.cluster import Cluster, of_kind
from tests.support.scripted_workers import ScriptedGenerator, arithmetic_config


def write_sums(path: Path, sums: Sequence[tuple[int, int]]) -> str:
    rows = [{"messages": f"What is {a} + {b}?", "ground_truth": str(a + b), "dataset": "gsm8k"} for a, b in sums]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return str(path)


async def finish_two_steps(cluster: Cluster, model: Path, folder: Path) -> dict[str, Any]:
    """Runs "short" to its end, with two files of sums. Returns its record."""
    sections: dict[str, Any] = {
        "run": {"num_steps": 2},
        "data": {"sources": [{"path": write_sums(folder / "train.jsonl", [(a, 1) for a in range(40)])}]},
        "evaluation": {"sources": [{"path": write_sums(folder / "ev.jsonl", [(a, 2) for a in range(8)])}]},
    }
    await cluster.add_all(ScriptedGenerator(cluster.plane, delay_s=0.01))
    await cluster.run_to_end(arithmetic_config(model, **sections), run_id="short")
    record: dict[str, Any] = json.loads((cluster.data_dir / "short" / "run.json").read_text())
    return record


async def test_a_run_and_its_checkpoints_have_digests_of_what_it_is_made_from(
    cluster: Cluster, model: Path, tmp_path: Path
) -> None:
    record = await finish_two_steps(cluster, model, tmp_path)
    assert sorted(record["inputs"]) == ["data.sources", "evaluation.sources", "model.path"]
    assert [*record["inputs"]["data.sources"]] == [str(tmp_path / "train.jsonl")]
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= record["inputs"]["model.path"].keys()
    assert read_manifest(cluster.data_dir / "short/checkpoints/step-00000002").inputs == record["inputs"]


async def test_other_held_out_questions_are_told_of_and_not_compared_with(
    cluster: Cluster, model: Path, tmp_path: Path
) -> None:
    await finish_two_steps(cluster, model, tmp_path)
    write_sums(tmp_path / "ev.jsonl", [(a, 3) for a in range(6)])
    await resume(cluster, "short", {"run": {"num_steps": 4}})
    _, events = await cluster.finish(4)
    [told] = of_kind(events, "inputs_changed")
    assert "evaluation.sources: " in told.message and "ev.jsonl" in told.message, told.message
    evaluations = [event.attributes for event in events if event.kind == "evaluation"]
    assert [values["policy_version"] for values in evaluations] == [0, 2, 4]
    assert ["change" in values for values in evaluations] == [False, True, False], "questions of two files are compared"


async def test_other_data_are_refused_until_they_are_accepted(cluster: Cluster, model: Path, tmp_path: Path) -> None:
    await finish_two_steps(cluster, model, tmp_path)
    write_sums(tmp_path / "train.jsonl", [(a, 1) for a in reversed(range(40))])
    with pytest.raises(FailedPrecondition, match=r"data\.sources: \S*train\.jsonl") as refused:
        await resume(cluster, "short", {"run": {"num_steps": 4}})
    assert refused.value.reason == ErrorReason.INPUTS_CHANGED
    await resume(cluster, "short", {"run": {"num_steps": 4, "changed_data": "accept"}})
    run, events = await cluster.finish(4)
    assert [event.kind for event in events].count("inputs_changed") == 1
    await resume(cluster, "short", {"run": {"num_steps": 5, "changed_data": "refuse"}})
    run, _ = await cluster.end()
    assert run.policy_version == 5, f"the accepted data are those that count: {run.message}"


async def test_a_run_that_its_coordinator_takes_up_again_does_not_go_on_with_other_data(
    cluster: Cluster, model: Path, tmp_path: Path
) -> None:
    data = {"sources": [{"path": write_sums(tmp_path / "train.jsonl", [(a, 1) for a in range(40)])}]}
    await cluster.add_all(ScriptedGenerator(cluster.plane, delay_s=0.02))
    sections = {"run": {"num_steps": 60}, "data": data, "checkpoint": {"every_steps": 1}}
    await cluster.start(arithmetic_config(model, **sections), run_id="lasting")
    await cluster.until("checkpoint")
    await cluster.runs.close(grace_s=60)
    write_sums(tmp_path / "train.jsonl", [(a, 2) for a in range(40)])
    async with Cluster.running(cluster.data_dir) as again:
        again.runs.take_up()
        run, _ = await again.end()
        assert run.state == pb.RUN_STATE_FAILED and "data.sources: " in run.message, run
        assert run.policy_version > 0


async def test_another_base_model_is_refused(cluster: Cluster, model: Path, tmp_path: Path) -> None:
    copied = tmp_path / "model"
    shutil.copytree(model, copied)
    await finish_two_steps(cluster, copied, tmp_path)
    weights = bytearray((copied / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (copied / "model.safetensors").write_bytes(weights)
    with pytest.raises(FailedPrecondition, match=r"model\.path: model\.safetensors") as refused:
        await resume(cluster, "short", {"run": {"num_steps": 4, "changed_data": "accept"}})
    assert refused.value.reason == ErrorReason.INPUTS_CHANGED


async def test_a_run_of_an_earlier_version_goes_on_with_a_note(cluster: Cluster, model: Path, tmp_path: Path) -> None:
    record = await finish_two_steps(cluster, model, tmp_path)
    folder = cluster.data_dir / "short"
    del record["inputs"]
    (folder / "run.json").write_text(json.dumps(record))
    for path in folder.glob("checkpoints/*/manifest.json"):
        manifest = json.loads(path.read_text())
        del manifest["inputs"]
        path.write_text(json.dumps(manifest))
    lines = [json.loads(line) for line in (folder / "evaluations.jsonl").read_text().splitlines()]
    (folder / "evaluations.jsonl").write_text(
        "".join(f"{json.dumps({name: line[name] for name in ('step', 'correct_rates')})}\n" for line in lines)
    )
    write_sums(tmp_path / "train.jsonl", [(a, 1) for a in reversed(range(40))])
    await resume(cluster, "short", {"run": {"num_steps": 3}})
    _, events = await cluster.finish(3)
    assert [event.message for event in events if event.kind == "notice" and "digests" in event.message], "no note"
    assert "change" in [event.attributes for event in events if event.kind == "evaluation"][-1]
    assert json.loads((folder / "run.json").read_text())["inputs"]


async def test_a_resumed_run_has_the_prompts_of_its_start_though_the_template_writes_the_time(
    cluster: Cluster, model: Path, tmp_path: Path
) -> None:
    template = "{{ strftime_now('%H:%M:%S.%f') }} {{ messages[0].content }}<|im_end|>"
    sections: dict[str, Any] = {
        "run": {"num_steps": 1},
        "data": {"sources": [{"path": write_sums(tmp_path / "train.jsonl", [(1, 1)])}]},
    }
    config = arithmetic_config(model, **sections)
    config["model"]["chat_template"] = template
    await cluster.add_all(ScriptedGenerator(cluster.plane, delay_s=0.01))
    await cluster.start(config, run_id="short")
    _, events = await cluster.end()
    assert [event.message for event in events if event.kind == "notice" and "strftime_now" in event.message], "no note"
    before = {group.prompt_text for group in await cluster.groups()}
    await resume(cluster, "short", {"run": {"num_steps": 3}})
    await cluster.finish(3)
    now = [group.prompt_text for group in await cluster.groups()]
    assert len(now) > 4 and {*now} == before and len(before) == 1, (before, now)
