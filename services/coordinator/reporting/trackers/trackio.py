"""The trackio tracker: a database on this machine that `trackio show` draws."""

from collections.abc import Mapping, Sequence
from typing import Any

from services.coordinator.store.run_record import RunRecord
from shoal.config import RunConfig, dump_config


class TrackioTracker:
    """Logs one run of Shoal as one run of trackio, which is resumed together with the run of Shoal.

    trackio cannot delete rows. Rows of discarded steps stay next to the later rows of the same steps.
    """

    def __init__(self, config: RunConfig, record: RunRecord) -> None:
        import trackio

        self._run = trackio.init(
            project=config.tracking.trackio_project,
            name=record.run_id,
            group=config.run.name,
            # A name may repeat in a project: only a resumed run continues the last one of its name.
            resume="allow" if record.attempt else "never",
            config=dump_config(config),
            # Log only the metrics, not the machine's load, and show no dashboard in a notebook.
            auto_log_cpu=False,
            auto_log_gpu=False,
            embed=False,
        )

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=step)

    def log_table(self, step: int, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        import trackio

        self._run.log({name: trackio.Table(data=[dict(row) for row in rows])}, step=step)

    def restored(self, step: int) -> None:
        self._run.log({"restored_to_step": step}, step=step)

    def close(self, *, failed: bool) -> None:
        self._run.finish()
