"""The Weights & Biases tracker, online or as files for `wandb sync`."""

from collections.abc import Mapping, Sequence
from typing import Any

from services.coordinator.store.run_record import RunRecord
from shoal.config import RunConfig, dump_config

LOGIN_TIMEOUT_S = 30.0
_TRIAL_TIMEOUT_S = 10


def wandb_login_problem() -> str:
    """Tries the key that a run would use.

    Returns why Weights & Biases refuses the key; empty if the key is accepted.
    """
    import wandb

    try:
        if wandb.login(prompt=False, verify=True, timeout=_TRIAL_TIMEOUT_S):
            return ""
    except wandb.Error as error:
        return str(error).strip().replace("\n", " ")
    return "there is no API key: set WANDB_API_KEY, or run `wandb login`"


class WandbTracker:
    """Logs one run of Shoal as one run of Weights & Biases.

    Both are resumed together. Weights & Biases accepts no row for a step before the last one, and a restored run goes
    back. So `step` is an ordinary column with the run's own step numbers, and the axis of all other columns.
    """

    def __init__(self, config: RunConfig, record: RunRecord) -> None:
        import wandb

        tracking = config.tracking
        self._run = wandb.init(
            mode=tracking.wandb,
            project=tracking.wandb_project,
            entity=tracking.wandb_entity,
            group=tracking.wandb_group or config.run.name,
            name=record.run_id,
            # Run ids may repeat. With the creation time in the id, a resumed run finds itself and no other.
            id=f"{record.run_id}-{int(record.create_time_s)}",
            resume="allow",
            dir=str(record.folder),
            config=dump_config(config),
            # Upload only the metrics: not this process's output, the machine's load or the code.
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

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log({"step": step, **metrics})

    def log_table(self, step: int, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        import wandb

        # A column of rewards may hold None.
        table = wandb.Table(columns=list(rows[0]), data=[list(row.values()) for row in rows], allow_mixed_types=True)
        self._run.log({"step": step, name: table})

    def restored(self, step: int) -> None:
        # Rows of discarded steps stay. Of two rows for the same step, the later one counts.
        self._run.summary["restored_to_step"] = step

    def close(self, *, failed: bool) -> None:
        self._run.finish(exit_code=int(failed))
