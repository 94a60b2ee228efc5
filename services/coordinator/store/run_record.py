"""The record of a run, active or not: `run.json` and `config.json` in its folder."""

import contextlib
import errno
import json
import logging
import shlex
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Annotated, ClassVar

from google.protobuf.timestamp_pb2 import Timestamp
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from services.coordinator.store.files.atomic_write import write_atomically
from services.coordinator.store.run_lock import DISK_LOCK, is_driven, is_held
from shoal.config import RunConfig, dump_config, parse_config
from shoal.config.load import config_digest, config_struct
from shoal.config.tables.run import MAX_RUN_NAME_CHARS
from shoal.error_reasons import ErrorReason
from shoal.errors import DataLoss, InvalidArgument, ResourceExhausted, ShoalError
from shoal.parsing import parse_json
from shoal.paths import why_unread
from shoal.v1 import coordinator_pb2

_log = logging.getLogger(__name__)

RECORD = "run.json"
TRAIN_NAME = "shoal-train-"
"""The prefix of the name of each coordinator of `shoal train`. No two of these coordinators ever have the same name."""
_MAX_TIME_S = 253_402_300_799  # The end of the year 9999, which a timestamp can say.


def holds_run(folder: Path) -> bool:
    """Whether a folder is the folder of a run, even if the run has lost files or this user may not read them."""
    try:
        has_file = any((folder / name).exists() for name in (RECORD, "ledger.sqlite"))
        return has_file or any(folder.glob("checkpoints/*/manifest.json"))
    except OSError as error:
        return error.errno != errno.ENAMETOOLONG  # A name that no folder can have.


def data_dir_option(data_dir: Path) -> str:
    """Returns the command-line option for a folder of runs; empty for the default, `runs` in the current folder."""
    return "" if data_dir == Path("runs").absolute() else f" --data-dir {shlex.quote(str(data_dir))}"


def new_run_id(name: str) -> str:
    """Makes a run id from `run.name` and the time. Cuts the name if the id would be too long."""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    return f"{name[: MAX_RUN_NAME_CHARS - 1 - len(stamp)]}-{stamp}"


class RunState(StrEnum):
    """The state of a run."""

    QUEUED = "QUEUED"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    STOPPING = "STOPPING"
    FINISHED = "FINISHED"
    STOPPED = "STOPPED"
    FAILED = "FAILED"

    @property
    def has_ended(self) -> bool:
        """Whether the run is over, with success or without."""
        return self in (RunState.FINISHED, RunState.STOPPED, RunState.FAILED)


_Count = Annotated[int, Field(ge=0, lt=2**31)]


@dataclass
class RunRecord:
    """A run as its folder describes it. Only its own methods change it."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    run_id: str
    folder: Path
    state: RunState = RunState.STARTING
    message: str = ""
    pauses_itself: bool = False
    """Whether the run PAUSED itself. The next start of such a run does not begin paused."""
    attempt: _Count = 0
    policy_version: _Count = 0
    num_steps: _Count = 0
    create_time_s: Annotated[float, Field(ge=0, le=_MAX_TIME_S)] = field(default_factory=time.time)
    last_checkpoint_id: str = ""
    exported_steps: list[int] = field(default_factory=list)
    """The steps whose models are in the run's exports, in order."""
    coordinator: str = ""
    """Name of the coordinator that drives the run. After a kill, the restarted coordinator continues the run."""
    address: str = ""
    """The coordinator's address on its own machine, as host:port; empty if unknown."""
    furthest_step: _Count = 0
    """The last step that any attempt has trained. Steps up to this one may be repeated after a restore."""
    restart_reasons: list[str] = field(default_factory=list)
    """The reason of each restart since `furthest_step` was trained."""
    weight_epoch: _Count = 0
    """The epoch of the last broadcast group of this run."""
    inputs: dict[str, dict[str, str]] = field(default_factory=dict)
    """SHA-256 of the run's inputs, by field of the configuration, then by name of a file, data set or task."""
    metrics: dict[str, float] = field(default_factory=dict)
    """The metrics of the last step."""

    def save(self) -> None:
        """Writes `run.json`, from which a later coordinator loads the run."""
        values = asdict(self)
        del values["folder"]
        write_atomically(self.folder / RECORD, json.dumps(values, indent=2) + "\n")

    def try_to_save(self) -> None:
        """Writes `run.json` if possible. Without it, the events still show how the run ended."""
        with contextlib.suppress(ShoalError):
            self.save()

    def _save_soon(self) -> None:
        """Writes `run.json`, on a full disk later. Raises `FailedPrecondition` for a lost or read-only folder."""
        try:
            self.save()
        except ResourceExhausted as error:
            _log.error("run.json was not written; the run tries again after the next step: %s", error.message)

    def enter(self, state: RunState, message: str, *, pauses_itself: bool = False) -> None:
        """Sets the state of the run; the caller saves the record."""
        self.state, self.message, self.pauses_itself = state, message, pauses_itself

    def opened(self, coordinator: str, address: str, num_steps: int) -> None:
        """Sets the coordinator that drives the run; the coordinator saves the record."""
        self.coordinator, self.address, self.num_steps = coordinator, address, num_steps

    def resumed(self) -> None:
        """Records that a person resumes the run; the caller saves the record."""
        self.attempt += 1
        self.restart_reasons = []
        self.enter(RunState.STARTING, "")

    def restart_counted(self, reason: str) -> None:
        """Adds the reason of a restart to `restart_reasons`."""
        self.restart_reasons.append(f"attempt {self.attempt} at step {self.policy_version}: {reason}")

    def attempt_begins(self) -> None:
        """Counts an attempt. The attempt saves the count, and waits for room if the disk is full."""
        self.attempt += 1

    def inputs_read(self, digests: Mapping[str, Mapping[str, str]]) -> None:
        """Sets the digests of the run's inputs; the attempt saves the record."""
        self.inputs = {field: dict(each) for field, each in digests.items()}

    def interrupted(self) -> None:
        """Saves, if possible, that the coordinator ends, and that the run continues at the coordinator's next start."""
        self.message = (
            f"the coordinator ended after step {self.policy_version}; the run continues at the coordinator's next start"
        )
        self.try_to_save()

    def restored(self, step: int, checkpoint_id: str) -> None:
        """Sets the step and the checkpoint from which an attempt begins."""
        self.policy_version, self.last_checkpoint_id = step, checkpoint_id
        self.exported_steps = [exported for exported in self.exported_steps if exported <= step]

    def step_taken(self, step: int) -> None:
        """Records a step that the learner has taken and that is not yet reported."""
        self.policy_version = step

    def step_trained(self, step: int, metrics: dict[str, float]) -> None:
        """Saves a trained step. If no attempt has trained this step before, restarts count from zero again."""
        self.policy_version, self.metrics = step, metrics
        if step > self.furthest_step:
            self.furthest_step, self.restart_reasons = step, []
        self._save_soon()

    def checkpoint_written(self, checkpoint_id: str) -> None:
        """Saves the name of a checkpoint that was committed."""
        self.last_checkpoint_id = checkpoint_id
        self._save_soon()

    def exports_kept(self, steps: list[int]) -> None:
        """Saves the steps whose models are in the run's exports."""
        self.exported_steps = steps
        self._save_soon()

    def num_steps_changed(self, num_steps: int) -> None:
        """Saves a changed number of steps."""
        self.num_steps = num_steps
        self.save()

    def renamed(self, run_id: str) -> None:
        """Renames the run and its folder, and saves the record."""
        self.run_id, self.folder = run_id, self.folder.rename(self.folder.parent / run_id)
        self.save()

    def command(self, words: str) -> str:
        """Returns a command that asks the coordinator about the run: "shoal run pause RUN --coordinator HOST:PORT"."""
        return f"shoal {words} {self.run_id}" + (f" --coordinator {self.address}" if self.address else "")

    def folder_command(self, words: str) -> str:
        """Returns a command that reads the run's folder: "shoal run rollouts RUN --data-dir FOLDER"."""
        return f"shoal {words} {self.run_id}{data_dir_option(self.folder.parent)}"

    def resume_command(self) -> str:
        """Returns the command that resumes an ended run, on the coordinator or in the folder where it ran before."""
        is_of_train = self.coordinator.startswith(TRAIN_NAME) or not self.address
        return self.folder_command("train --resume") if is_of_train else self.command("run resume")

    def next_weight_epoch(self) -> int:
        """Returns an unused epoch for a broadcast group. Saves it first, since workers may outlive a coordinator."""
        self.weight_epoch += 1
        self.save()
        return self.weight_epoch

    @classmethod
    def load(cls, folder: Path) -> "RunRecord":
        """Reads `run.json`. Shows a run that has not ended but has no coordinator as FAILED, and a run that waits for
        room on a disk as PAUSED. Raises `DataLoss` if the file cannot be read."""
        record = cls.load_as_left(folder)
        is_left = not record.state.has_ended and not is_driven(folder)
        if not is_left and record.state in (RunState.STARTING, RunState.RUNNING) and is_held(folder / DISK_LOCK):
            record.state = RunState.PAUSED
            record.message = (
                "a disk that the run writes to is full: the run is paused, and continues once there is room"
            )
        if is_left:
            record.state = RunState.FAILED
            is_of_train = record.coordinator.startswith(TRAIN_NAME)
            returns = "" if is_of_train else "the run continues at the next start of that coordinator, or "
            record.message = (
                f"the coordinator ended at step {record.policy_version}; {returns}resume with: "
                f"{record.folder_command('train --resume')}"
            )
        return record

    @classmethod
    def load_as_left(cls, folder: Path) -> "RunRecord":
        """Reads `run.json` with the state that its coordinator left. Raises `DataLoss` when it cannot be read."""
        path = folder / RECORD
        try:
            values = parse_json(path.read_text(encoding="utf-8"))
            json.dumps(values, ensure_ascii=False).encode()  # No lone surrogates, which a message cannot hold.
            return _ADAPTER.validate_python({**values, "folder": folder})
        except (OSError, ValueError, TypeError) as error:  # Truncated, edited, or of another version.
            why = why_unread(error) if isinstance(error, (OSError, UnicodeDecodeError)) else _first_line(error)
            raise DataLoss(
                f"{path} does not describe a run: {why}; {_cure(folder)}", reason=ErrorReason.RUN_DAMAGED
            ) from None

    def save_config(self, config: RunConfig) -> None:
        """Writes the resolved configuration to `config.json`."""
        write_atomically(self.folder / "config.json", json.dumps(dump_config(config), indent=2) + "\n")

    def load_config(self) -> RunConfig:
        """Reads the configuration that the run was started with. Raises `DataLoss` when it cannot be read."""
        path = self.folder / "config.json"
        try:
            return parse_config(parse_json(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, InvalidArgument) as error:
            why = error.message if isinstance(error, InvalidArgument) else why_unread(error)
            raise DataLoss(
                f"run {self.run_id} has lost its configuration: {path} cannot be read ({why}); {_cure(self.folder)}",
                reason=ErrorReason.RUN_DAMAGED,
            ) from None

    def to_wire(self, num_groups: Mapping[str, int], config: RunConfig | None) -> coordinator_pb2.Run:
        """Returns the run as a message, without a configuration if `config` is None."""
        create_time = Timestamp()
        create_time.FromNanoseconds(int(self.create_time_s * 1e9))
        return coordinator_pb2.Run(
            run_id=self.run_id,
            state=coordinator_pb2.RunState.Value(f"RUN_STATE_{self.state.value}"),
            message=self.message,
            attempt=self.attempt,
            policy_version=self.policy_version,
            num_steps=self.num_steps,
            create_time=create_time,
            path=str(self.folder),
            last_checkpoint_id=self.last_checkpoint_id,
            num_groups=dict(num_groups),
            metrics=self.metrics,
            config=config_struct(config) if config else None,
            etag=config_digest(config) if config else "",
        )


_ADAPTER = TypeAdapter(RunRecord)


def _first_line(error: ValueError | TypeError) -> str:
    """Describes an error in one line. For an invalid value, names the field and the fault."""
    if isinstance(error, ValidationError):
        details = error.errors()[0]
        return f"{'.'.join(map(str, details['loc']))}: {details['msg']}"
    return str(error)


def _cure(folder: Path) -> str:
    """Describes how to restore a file that cannot be derived from other files in the run's folder."""
    return (
        f"restore the file from a copy, or, if the run has a mirror, rename {folder} and fetch the run from the "
        f"mirror: shoal train --resume {folder.name} --set checkpoint.mirror=URL{data_dir_option(folder.parent)}"
    )
