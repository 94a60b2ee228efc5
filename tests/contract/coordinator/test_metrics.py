"""A run reports exactly the metrics of docs/metrics.md."""

import asyncio
import time
from pathlib import Path

from shoal.config import parse_config
from shoal.telemetry.run_metric_table import COORDINATOR, EVALUATION, TABLE
from shoal.telemetry.run_metrics import missing, undocumented
from tests.support.cluster import Cluster
from tests.support.scripted_workers import HELD_OUT, ScriptedGenerator, arithmetic_config

PAUSE_S = 3.0


async def test_metrics_jsonl_holds_the_names_of_the_table(cluster: Cluster, model: Path) -> None:
    await cluster.add_all(ScriptedGenerator(cluster.plane, delay_s=0.02))
    evaluation = HELD_OUT | {"every_steps": 2, "samples_per_prompt": 3, "temperature": 1.0}
    settings = arithmetic_config(model, evaluation=evaluation)
    config = parse_config(settings)
    run, _ = await cluster.run_to_end(settings)
    rows = cluster.metrics(run.run_id)
    assert [row.pop("step") for row in rows if "time/step" in row] == [1, 2, 3, 4, 5]
    for row in rows:
        row.pop("step", None)
        sections = (EVALUATION,) if "eval/num_prompts" in row else COORDINATOR
        assert undocumented(row, TABLE) == [], "add to shoal/telemetry/run_metric_table.py"
        assert missing(row, config, sections) == [], row
        assert all(0 <= row[name] <= 1 for name in row if name.startswith(("waiting/", "usage/"))), row
    steps = [row for row in rows if "time/step" in row]
    # A step's groups may all have been sampled before the step began.
    for name in ("generator_tokens_per_second_step", "reward_tokens_per_second_step"):
        assert sum(row[name] for row in steps) > 0, f"{name}: {[row[name] for row in steps]}"
    assert undocumented(run.metrics, TABLE) == []
    assert {"eval/pass_at_1", "eval/pass_at_2", "eval/pass_at_3"} <= rows[0].keys()


async def test_a_pause_counts_for_no_time(cluster: Cluster, model: Path) -> None:
    await cluster.add_all(ScriptedGenerator(cluster.plane, delay_s=0.02))
    began = time.monotonic()
    await cluster.start(arithmetic_config(model, run={"num_steps": 6}))
    await cluster.until("step", step=2)
    await cluster.pause()
    paused_at = time.monotonic()
    await asyncio.sleep(PAUSE_S)
    paused_s = time.monotonic() - paused_at
    await cluster.resume()
    run, _ = await cluster.finish()
    running_s = time.monotonic() - began - paused_s
    rows = cluster.metrics(run.run_id)
    assert sum(row["time/step"] for row in rows) <= running_s, f"steps took more than the {running_s:.1f} s of the run"
    assert rows[-1]["time/from_scratch"] <= running_s, f"{rows[-1]['time/from_scratch']:.1f} s of {running_s:.1f} s"
