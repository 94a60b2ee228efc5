from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from services.coordinator.run.controls import RunControls
from services.coordinator.run.exports import Exports
from services.coordinator.store.run_record import RunRecord
from shoal.config.live import LiveConfig
from tests.support.configs import run_config

SCORES = {10: 0.1, 20: 0.7, 30: 0.2, 40: 0.7, 50: 0.3}


class Recorder:
    """What a run asks of its learner and reports, with the metric of each step."""

    def __init__(self, folder: Path, values: dict[int, float], **settings: Any) -> None:
        self.record = RunRecord("run", folder)
        self.asked: list[tuple[str, list[str]]] = []
        self.reported: list[tuple[list[int], int | None]] = []
        self.values = values
        self.controls = RunControls()
        self.num_waits = 0
        evaluation = {"sources": [{"path": "e.jsonl"}], "every_steps": 1}
        config = LiveConfig(run_config(checkpoint=settings, evaluation=evaluation))
        run: Any = SimpleNamespace(config=config, record=self.record, controls=self.controls, report=self)
        this: Any = self
        self.exports = Exports(run, learner=this, evaluations=this, full_disk=this)

    async def after_step(self, step: int) -> None:
        self.record.policy_version = step
        await self.exports.write_if_due()

    async def export_model(self, name: str, keep: list[str]) -> str:
        self.asked.append((name, keep))
        return f"exports/{name}"

    async def written(self, write: Callable[[], Awaitable[str]]) -> str:
        return await write()

    async def finish(self) -> None:
        self.num_waits += 1

    def values_of(self, metric: str) -> dict[int, float]:
        return {step: value for step, value in self.values.items() if step <= self.record.policy_version}

    def export_kept(self, path: str, kept_steps: list[int], best_step: int | None, *, metric: str) -> None:
        self.reported.append((kept_steps, best_step))


async def test_a_run_exports_each_nth_step_and_keeps_the_best_besides_the_last(tmp_path: Path) -> None:
    run = Recorder(
        tmp_path, SCORES, export_every_steps=10, export_keep_last=1, export_best_metric="eval/verifiable_correct_rate"
    )
    for step in range(51):
        await run.after_step(step)
    assert [name for name, _ in run.asked] == [f"step-000000{step}" for step in (10, 20, 30, 40, 50)]
    assert run.reported == [([10], 10), ([20], 20), ([20, 30], 20), ([20, 40], 20), ([20, 50], 20)]
    assert run.asked[-1] == ("step-00000050", ["step-00000020", "step-00000050"])
    assert run.num_waits == 5, "the evaluations before are scored first"


async def test_a_step_is_exported_once(tmp_path: Path) -> None:
    run = Recorder(tmp_path, {}, export_every_steps=10)
    for step in (10, 10, 11, 20):
        await run.after_step(step)
    assert [name for name, _ in run.asked] == ["step-00000010", "step-00000020"], "a skipped step repeats its boundary"


@pytest.mark.parametrize(("settings", "step"), [({}, 10), ({"export_every_steps": 10}, 0)])
async def test_nothing_is_exported_unasked_nor_before_training(
    tmp_path: Path, settings: dict[str, Any], step: int
) -> None:
    run = Recorder(tmp_path, {}, **settings)
    await run.after_step(step)
    assert run.asked == []
