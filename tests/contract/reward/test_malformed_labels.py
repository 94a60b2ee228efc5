"""Runs over data with labels that their verifier cannot use."""

import json
from pathlib import Path
from typing import Any

from shoal.v1 import coordinator_pb2 as pb
from shoal.v1 import reward_pb2
from tests.support.cluster import Cluster, kinds, of_kind
from tests.support.scripted_workers import ScriptedGenerator, ScriptedReward, arithmetic_config


def config(model: Path, tmp_path: Path, labels: list[str], held_out: list[str], what: str) -> dict[str, Any]:
    """Configures a run over files with these labels, one question each."""
    for name, given in (("train", labels), ("test", held_out)):
        rows = [
            {"messages": f"{name} {number}?", "ground_truth": label, "dataset": "gsm8k"}
            for number, label in enumerate(given)
        ]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return arithmetic_config(
        model,
        data={"sources": [{"path": str(tmp_path / "train.jsonl")}], "malformed_labels": what},
        evaluation={"sources": [{"path": str(tmp_path / "test.jsonl")}]},
        run={"num_steps": 3},
    )


class CountingReward(ScriptedReward):
    def __init__(self) -> None:
        super().__init__()
        self.batches: list[int] = []

    async def CheckLabels(self, request: Any, context: Any) -> reward_pb2.CheckLabelsResponse:
        self.batches.append(len(request.ground_truths))
        return await super().CheckLabels(request, context)


async def run_with(
    cluster: Cluster, model: Path, tmp_path: Path, what: str, labels: list[str], held_out: list[str]
) -> tuple[pb.Run, list[pb.RunEvent]]:
    reward = ScriptedReward()
    reward.malformed = {"many"}
    await cluster.add_all(ScriptedGenerator(cluster.plane), rewards=(reward,))
    await cluster.start(config(model, tmp_path, labels, held_out, what))
    return await cluster.end()


async def test_malformed_labels_refuse_the_run_with_their_number_and_rows(
    cluster: Cluster, model: Path, tmp_path: Path
) -> None:
    labels = ["1", "many", "2", "many", "3", "many", "many", "4"]
    run, _ = await run_with(cluster, model, tmp_path, "refuse", labels, ["5"])
    assert run.state == pb.RUN_STATE_FAILED
    for part in ("4 of 8 prompts", "train.jsonl row 2 (gsm8k): bad", "row 6 ", 'data.malformed_labels = "drop"'):
        assert part in run.message, run.message
    assert "row 8" not in run.message, run.message


async def test_each_label_is_checked_once_in_messages_of_a_bounded_size(
    cluster: Cluster, model: Path, tmp_path: Path
) -> None:
    labels = [str(number % 1100) for number in range(1200)]
    labels[1050] = "many"
    reward = CountingReward()
    reward.malformed = {"many"}
    await cluster.add_all(ScriptedGenerator(cluster.plane), rewards=(reward,))
    await cluster.start(config(model, tmp_path, labels, ["x" * (1 << 20), "y" * (1 << 20)], "refuse"))
    run, _ = await cluster.end()
    assert "1 of 1200 prompts" in run.message and "train.jsonl row 1051" in run.message, run.message
    # 1100 distinct labels of prompts, 512 a message, and two long ones.
    assert sorted(reward.batches, reverse=True) == [512, 512, 76, 1, 1], reward.batches


async def test_prompts_with_malformed_labels_are_left_out_and_counted_with_drop(
    cluster: Cluster, model: Path, tmp_path: Path
) -> None:
    run, events = await run_with(cluster, model, tmp_path, "drop", ["1", "many", "2", "3", "4"], ["many", "5", "6"])
    assert run.state == pb.RUN_STATE_FINISHED, run.message
    left_out = of_kind(events, "prompts_left_out")
    assert [event.attributes["num_left_out"] for event in left_out] == [1, 1]
    assert "1 of 5 prompts" in left_out[0].message and "1 of 3 " in left_out[1].message
    asked = {group.prompt_id.rpartition(":")[2] for group in await cluster.groups()}
    assert asked == {"0", "2", "3", "4"}, f"rows asked: {asked}"
    evaluation = next(event for event in events if event.kind == "evaluation")
    assert evaluation.attributes["num_prompts"] == 2


async def test_data_without_a_usable_label_is_refused(cluster: Cluster, model: Path, tmp_path: Path) -> None:
    run, _ = await run_with(cluster, model, tmp_path, "drop", ["many", "many"], ["5"])
    assert run.state == pb.RUN_STATE_FAILED and "No row is left" in run.message, run.message


async def test_prompts_with_malformed_labels_are_kept_with_keep(cluster: Cluster, model: Path, tmp_path: Path) -> None:
    run, events = await run_with(cluster, model, tmp_path, "keep", ["1", "many", "2", "3"], ["5"])
    assert run.state == pb.RUN_STATE_FINISHED, run.message
    assert "prompts_left_out" not in kinds(events)


async def test_a_reward_service_that_checks_no_labels_serves_and_the_run_reports_it(
    cluster: Cluster, model: Path, tmp_path: Path
) -> None:
    reward = ScriptedReward()
    reward.checks_no_labels = True
    await cluster.add_all(ScriptedGenerator(cluster.plane), rewards=(reward,))
    _, events = await cluster.run_to_end(config(model, tmp_path, ["1", "many", "2", "3"], ["5"], "refuse"))
    assert kinds(events).count("labels_not_checked") == 1
