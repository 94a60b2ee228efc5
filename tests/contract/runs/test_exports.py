"""Exports of a run while it goes on, with scripted workers."""

from pathlib import Path

import pytest

from shoal.errors import InvalidArgument
from tests.support.cluster import Cluster, kinds
from tests.support.scripted_workers import ScriptedGenerator, arithmetic_config

METRIC = "objective/scores"


async def test_a_run_keeps_its_last_exports_and_the_best_over_a_resume(cluster: Cluster, model: Path) -> None:
    await cluster.add_all(ScriptedGenerator(cluster.plane))
    settings = {
        "every_steps": 4, "export_every_steps": 2, "export_keep_last": 1, "export_best_metric": METRIC,
    }  # fmt: skip
    await cluster.start(arithmetic_config(model, run={"num_steps": 40}, checkpoint=settings), run_id="kept")
    await cluster.until("step", step=7)
    await cluster.stop()
    stopped, _ = await cluster.end()
    run, events = await cluster.run_to_end({}, run_id="kept", resume=True)
    assert run.attempt == 1, run.message
    exported = [int(event.attributes["policy_version"]) for event in events if event.kind == "step_exported"]
    assert exported == list(range(2, 41, 2)), f"stopped at step {stopped.policy_version}"
    rows = cluster.metrics("kept")
    values = {row["step"]: row[METRIC] for row in rows if row["step"] % 2 == 0}
    best = max(values, key=lambda step: (values[step], -step))
    expected = [f"step-{step:08d}" for step in sorted({best, 40})]
    assert cluster.learner.exports == expected, f"the best of {values}"
    assert "exported" in kinds(events)


async def test_a_run_that_ends_before_its_first_export_says_so_at_its_start(cluster: Cluster, model: Path) -> None:
    await cluster.add_all(ScriptedGenerator(cluster.plane))
    await cluster.start(arithmetic_config(model, run={"num_steps": 1}, checkpoint={"export_every_steps": 2}))
    _, events = await cluster.end()
    assert kinds(events)[0] == "notice" and "checkpoint.export_every_steps: 2 " in events[0].message


async def test_a_metric_that_no_run_has_is_refused_with_similar_ones(cluster: Cluster, model: Path) -> None:
    settings = {"export_every_steps": 2, "export_best_metric": "objective/score"}
    with pytest.raises(InvalidArgument, match=r"export_best_metric: .*objective/scores"):
        await cluster.start(arithmetic_config(model, checkpoint=settings))
