"""A run of `shoal train`: the checks before a process starts, and the command that resumes the run."""

import contextlib
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from services.coordinator.launcher.checks import check_folder, check_ports
from services.coordinator.launcher.devices import share_out, usable_gpus
from services.coordinator.remote.fetching import take_from_mirror
from services.coordinator.run.checkpoints import Checkpoints, check_num_steps
from services.coordinator.run.checks.extras import check_extras, extras_for
from services.coordinator.run.checks.preflight import check_adapted_layers, check_mirror, check_weights
from services.coordinator.store.events import EVENTS, read_events
from services.coordinator.store.run_folders import RunFolders
from services.coordinator.store.run_lock import TRAIN_LOCK, RunLock, is_driven
from services.coordinator.store.run_record import RunRecord, RunState, data_dir_option, holds_run, new_run_id
from shoal.config import RunConfig, parse_config
from shoal.config.changes import changed_config
from shoal.config.load import config_struct
from shoal.config.tables.run import RUN_NAME
from shoal.error_reasons import ErrorReason
from shoal.errors import AlreadyExists, FailedPrecondition, InvalidArgument, NotFound
from shoal.v1 import coordinator_pb2 as pb


@dataclass(frozen=True)
class LocalRun:
    """A new or resumed run on this machine."""

    config: RunConfig
    request: pb.StartRunRequest
    data_dir: Path
    model_folder: Path
    gpus: Sequence[str]
    notes: Sequence[str] = ()
    """Notes about facts that could not be checked."""
    last_past_event: int = 0
    """Sequence number of the last event before a resume. Progress shows only later events."""

    @property
    def folder(self) -> Path:
        return self.data_dir / self.request.run_id

    def how_to_resume(self) -> str:
        """Names the command that resumes the run, and the checkpoint from which the run resumes."""
        committed = Checkpoints(self.folder).committed()
        start = f"from checkpoint {committed[-1]}" if committed else "from its beginning (there is no checkpoint yet)"
        return f"resume {start} with: shoal train --resume {self.request.run_id}{data_dir_option(self.data_dir)}"

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Locks the run's folder against another `shoal train`. Raises `FailedPrecondition` if it is locked."""
        self.folder.mkdir(parents=True, exist_ok=True)
        cure = "stop it there" if self.request.resume else "stop that process, or choose another name with --name"
        lock = RunLock(self.folder, TRAIN_LOCK, holder="another `shoal train`", cure=cure)
        try:
            yield
        finally:
            lock.release()

    def remove_unless_accepted(self) -> None:
        """Removes the folder of a run that the coordinator refused, so that the next attempt can use its name."""
        if not (self.folder / "run.json").exists():
            shutil.rmtree(self.folder, ignore_errors=True)


def prepare_local_run(
    request: pb.StartRunRequest, data_dir: Path, check_code: Callable[[RunConfig], object]
) -> LocalRun:
    """Checks everything that can be checked before a process starts. Names a new run.

    `check_code` checks custom verifiers and environments. Raises a `ShoalError`, which names the field, option, or
    package at fault.
    """
    if request.resume:
        _check_not_driven(data_dir, request.run_id)
        take_from_mirror(data_dir, request.run_id, request.config)
        before = _config_of_run(data_dir, request.run_id)
        config = changed_config(before, request.config)
        check_num_steps(before, config, Checkpoints(data_dir / request.run_id))
        if not request.config.fields:
            _check_unfinished(data_dir / request.run_id)
    else:
        config = _reloading(parse_config(request.config))
        request.config.CopyFrom(config_struct(config))
        request.run_id = _new_name(request.run_id, config, data_dir)
    check_extras(extras_for(config))
    check_mirror(config)
    check_ports(config)
    gpus = usable_gpus()
    share_out(config, gpus)
    check_code(config)
    model_folder = check_weights(config)
    notes = [note] if (note := check_adapted_layers(config, model_folder)) else []
    check_folder(data_dir)
    past_events = read_events(data_dir / request.run_id / EVENTS)
    last_past_event = past_events[-1].sequence if past_events else 0
    return LocalRun(config, request, data_dir, model_folder, gpus, notes, last_past_event)


def _reloading(config: RunConfig) -> RunConfig:
    """Turns on an unset `reload` for files of custom verifiers, which can be edited on this machine."""
    custom = {
        name: table.model_copy(update={"reload": True}) if table.file and table.reload is None else table
        for name, table in config.reward.custom.items()
    }
    return config.model_copy(update={"reward": config.reward.model_copy(update={"custom": custom})})


def _config_of_run(data_dir: Path, run_id: str) -> RunConfig:
    if RUN_NAME.fullmatch(run_id) and holds_run(data_dir / run_id):
        return RunRecord.load(data_dir / run_id).load_config()
    known = sorted((path.parent for path in data_dir.glob("*/run.json")), key=lambda path: path.stat().st_mtime)
    newest = f"; the newest run there is {known[-1].name}" if known else ""
    raise NotFound(
        f"--resume: there is no run {run_id!r} in {data_dir}{newest}; a run that has a mirror can be fetched from "
        "the mirror with --set checkpoint.mirror=URL"
    )


def _check_not_driven(data_dir: Path, run_id: str) -> None:
    """Raises `FailedPrecondition` if a coordinator drives the run: its folder must then not be changed."""
    if RUN_NAME.fullmatch(run_id) and is_driven(data_dir / run_id):
        raise FailedPrecondition(
            f"--resume: run {run_id} is active: a coordinator drives it; watch it with shoal run watch {run_id}"
            f"{data_dir_option(data_dir)}, or stop it first",
            reason=ErrorReason.RUN_ACTIVE,
        )


def _check_unfinished(folder: Path) -> None:
    """Raises `FailedPrecondition` for a complete run, since its resume would train nothing."""
    record = RunRecord.load(folder)
    if record.state == RunState.FINISHED:
        raise FailedPrecondition(
            f"--resume: run {record.run_id} {record.message}, so nothing is left to train; to extend it, add "
            f"--set run.num_steps=N with N above {record.policy_version}"
        )


def _new_name(name: str, config: RunConfig, data_dir: Path) -> str:
    if not name:
        return new_run_id(config.run.name)
    if not RUN_NAME.fullmatch(name):
        raise InvalidArgument(
            f"--name: use 1 to 63 characters of a-z, 0-9, '.', '_' and '-', starting with a letter or a "
            f"digit (given: {name!r})"
        )
    if holds_run(data_dir / name) and not RunFolders(data_dir).make_way(name):
        raise AlreadyExists(
            f"--name: there is a run {name} in {data_dir}; choose another name, or resume that run: "
            f"shoal train --resume {name}{data_dir_option(data_dir)}"
        )
    return name
