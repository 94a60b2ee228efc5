"""Weights & Biases, online or written down for `wandb sync`."""

from collections.abc import Mapping

from services.coordinator.record import RunRecord
from shoal.config import RunConfig, dump_config

LOGIN_TIMEOUT_S = 30.0


class WandbTracker:
    """One run there for one run here, resumed with it. A step's figures stand at the run's own step numbers.

    Weights & Biases takes no row for a step before the last one, and a restored run goes back; so `step` is an
    ordinary column, and the axis of all others.
    """

    def __init__(self, config: RunConfig, record: RunRecord) -> None:
        import wandb

        tracking = config.tracking
        self._run = wandb.init(
            mode=tracking.wandb,
            project=tracking.wandb_project,
            entity=tracking.wandb_entity,
            group=tracking.wandb_group,
            name=record.run_id,
            # Names of runs come again; with the time of its start a run finds itself when it is resumed, and no other.
            id=f"{record.run_id}-{int(record.create_time_s)}",
            resume="allow",
            dir=str(record.folder),
            config=dump_config(config),
            # Nothing of this process but the metrics: neither its output, nor its machine's load, nor its code.
            settings=wandb.Settings(
                console="off",
                silent=True,
                x_disable_stats=True,
                disable_code=True,
                disable_git=True,
                login_timeout=LOGIN_TIMEOUT_S,
            ),
        )
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        self._run.log({"step": step, **figures})

    def restored(self, step: int) -> None:
        # Its rows stay. The later one of two for the same step is the one that counts.
        self._run.summary["restored_to_step"] = step

    def close(self, *, failed: bool) -> None:
        self._run.finish(exit_code=int(failed))
