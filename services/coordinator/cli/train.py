"""`shoal train`: the four services on this machine, from their start to their end."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from services.coordinator.cli.control import start_request
from services.coordinator.cli.progress import ProgressView
from services.coordinator.cli.session import LocalRun, TrainSession
from services.coordinator.launcher.checks import check_disk, check_folder, check_ports
from services.coordinator.launcher.devices import share_out, visible_gpus
from services.coordinator.launcher.extras import check_extras, extras_for
from services.coordinator.launcher.supervisor import ProcessDied
from services.coordinator.preflight import check_weights
from services.coordinator.record import new_run_id
from shoal.config import RunConfig, parse_config
from shoal.config.run import RUN_NAME
from shoal.errors import AlreadyExists, InvalidArgument, NotFound


def train_here(config_file: Path | None, overrides: Sequence[str], *, resume: str, name: str, data_dir: Path) -> int:
    """Checks what can be checked, starts the services, trains, and ends them all; returns the exit code.

    Raises a `ShoalError` for what is wrong before the run begins, and for a process that died.
    """
    data_dir = data_dir.absolute()
    view = ProgressView()
    request = start_request(config_file, overrides, resume=resume, name=name)
    config = _config_of_run(data_dir, resume) if resume else parse_config(request.config)
    if not resume:
        request.run_id = _new_name(name, config, data_dir)
    check_extras(extras_for(config))
    check_ports(config)
    gpus = visible_gpus()
    share_out(config, gpus)
    model_folder = check_weights(config)
    check_folder(data_dir)
    check_disk(data_dir, model_folder, config)
    view.say(f"model {config.model.path}: {model_folder}")
    run = LocalRun(config, request, data_dir, gpus, _num_events(data_dir / request.run_id / "events.jsonl"))
    is_new = not run.folder.exists()
    try:
        return TrainSession(run, view).train()
    except ProcessDied:
        is_new = False  # Its log says more than the message, which names it.
        raise
    finally:
        if is_new and not (run.folder / "run.json").exists():
            # It was refused, and the refusal has been told: logs of it would only be in the way of the next try.
            shutil.rmtree(run.folder, ignore_errors=True)


def _config_of_run(data_dir: Path, run_id: str) -> RunConfig:
    if RUN_NAME.fullmatch(run_id):
        try:
            return parse_config(json.loads((data_dir / run_id / "config.json").read_text()))
        except FileNotFoundError:
            pass
        except (OSError, ValueError) as error:
            raise InvalidArgument(f"{data_dir / run_id / 'config.json'} cannot be read: {error}") from None
    known = sorted((path.parent for path in data_dir.glob("*/run.json")), key=lambda path: path.stat().st_mtime)
    newest = f"; the newest one is {known[-1].name}" if known else ""
    raise NotFound(f"--resume: there is no run {run_id!r} in {data_dir}{newest}")


def _new_name(name: str, config: RunConfig, data_dir: Path) -> str:
    if not name:
        return new_run_id(config.run.name)
    if not RUN_NAME.fullmatch(name):
        raise InvalidArgument(
            f"--name: use 1 to 63 of a-z, 0-9, '.', '_' and '-', beginning with a letter or a digit (given: {name!r})"
        )
    if (data_dir / name / "run.json").exists():
        raise AlreadyExists(
            f"--name: there is a run {name} in {data_dir}; choose another name, or go on with it: "
            f"shoal train --resume {name}"
        )
    return name


def _num_events(path: Path) -> int:
    """Number of the last event in a run's log; a half-written last line is none."""
    if not path.exists():
        return 0
    return sum(1 for line in path.read_text(encoding="utf-8").splitlines() if line.endswith("}"))
