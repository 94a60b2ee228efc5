"""Exports during training: when the model of a step is written, and which exports are kept."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from services.coordinator.run.controls import StopMode
from services.coordinator.run.evaluation import Evaluations
from services.coordinator.run.full_disk import FullDisk
from services.coordinator.run.run_parts import RunParts
from services.coordinator.store.retention import best_of, kept_of
from services.coordinator.workers.learner_client import LearnerClient
from shoal.paths import step_name


@dataclass(frozen=True)
class Exports:
    """Writes the model of a step before the next step begins. Keeps the last exports and the best export."""

    run: RunParts
    learner: LearnerClient
    evaluations: Evaluations
    full_disk: FullDisk

    async def write_if_due(self) -> None:
        """Writes the model of the last step if an export is due and not yet written, and deletes older exports.

        If the run must stop now, writes nothing. After a resume, the run writes the export.
        """
        settings, step = self.run.config().checkpoint, self.run.record.policy_version
        every = settings.export_every_steps
        is_due = every > 0 and step > 0 and step % every == 0 and step not in self.run.record.exported_steps
        if not is_due or self.run.controls.stop is StopMode.NOW:
            return
        values = await self._values()
        steps = [*self.run.record.exported_steps, step]
        best_step = best_of(steps, values, is_lowest=settings.export_best == "lowest")
        kept = kept_of(steps, settings.export_keep_last, {best_step})
        kept_names = [step_name(other) for other in kept]
        path = await self.full_disk.written(lambda: self.learner.export_model(step_name(step), kept_names))
        self.run.record.exports_kept(kept)
        self.run.report.export_kept(path, kept, best_step, metric=settings.export_best_metric)

    async def _values(self) -> Mapping[int, float]:
        """Reads the metric that chooses the best export, once earlier evaluations are scored."""
        metric = self.run.config().checkpoint.export_best_metric
        if not metric:
            return {}
        if metric.startswith("eval/"):
            await self.run.controls.unless_stopped(self.evaluations.finish())
        return await asyncio.to_thread(self.run.report.values_of, metric)
