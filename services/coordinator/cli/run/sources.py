"""The sources of the commands that show runs: a coordinator, or the folder of its runs."""

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import typer

from services.coordinator.cli.shared.options import checked_address, name_of_run
from shoal.errors import InvalidArgument, NotFound, Unavailable
from shoal.paths import is_path

if TYPE_CHECKING:
    from shoal.v1 import coordinator_pb2 as pb


class Source(Protocol):
    """A source of runs. Both kinds answer with the same messages."""

    def get_run(self, run_id: str) -> "pb.Run":
        """Describes a run. If `run_id` is empty, this is the active run, or else the newest run."""

    def list_runs(self, limit: int) -> "pb.ListRunsResponse":
        """Lists at most `limit` runs, newest first."""

    def list_rollouts(self, request: "pb.ListRolloutsRequest") -> "pb.ListRolloutsResponse":
        """Lists a page of a run's groups."""

    def follow(self, run_id: str, after_sequence: int) -> "AsyncIterator[pb.RunEvent]":
        """Yields a run's events, past and future, until the run ends."""


class CoordinatorSource:
    """The runs of a coordinator."""

    def __init__(self, address: str) -> None:
        self._address = address

    def get_run(self, run_id: str) -> "pb.Run":
        from services.coordinator import client

        with _or_the_folder():
            return client.get_run(self._address, run_id)

    def list_runs(self, limit: int) -> "pb.ListRunsResponse":
        from services.coordinator import client

        with _or_the_folder():
            return client.list_runs(self._address, limit)

    def list_rollouts(self, request: "pb.ListRolloutsRequest") -> "pb.ListRolloutsResponse":
        from services.coordinator import client

        with _or_the_folder():
            return client.list_rollouts(self._address, request)

    async def follow(self, run_id: str, after_sequence: int) -> "AsyncIterator[pb.RunEvent]":
        from services.coordinator import client

        async with client.coordinator(self._address) as stub:
            async for event in client.follow(stub, run_id, after_sequence):
                yield event


@contextmanager
def _or_the_folder() -> Iterator[None]:
    """Adds the option --data-dir to the error of a coordinator that does not answer."""
    try:
        yield
    except Unavailable as error:
        raise Unavailable(
            f"{error.message}; to look at the runs without a coordinator, use --data-dir FOLDER"
        ) from None


class FolderSource:
    """The runs in a data folder, read from disk, whether or not a coordinator drives them."""

    def __init__(self, data_dir: Path) -> None:
        """Raises `NotFound` when the folder does not exist."""
        if not data_dir.is_dir():
            raise NotFound(
                f"there is no folder {data_dir.absolute()}: name the folder of the runs with --data-dir FOLDER, or "
                "name a coordinator with --coordinator HOST:PORT"
            )
        self._data_dir = data_dir

    def get_run(self, run_id: str) -> "pb.Run":
        from services.coordinator.store.run_folders import RunFolders, describe

        return describe(RunFolders(self._data_dir).find(run_id))

    def list_runs(self, limit: int) -> "pb.ListRunsResponse":
        from services.coordinator.store.run_folders import RunFolders, list_runs
        from shoal.v1 import coordinator_pb2 as pb

        return list_runs(RunFolders(self._data_dir), pb.ListRunsRequest(page_size=limit))

    def list_rollouts(self, request: "pb.ListRolloutsRequest") -> "pb.ListRolloutsResponse":
        from services.coordinator.store.rollouts import list_rollouts
        from services.coordinator.store.run_folders import RunFolders

        return list_rollouts(RunFolders(self._data_dir).find(request.run_id).folder, request)

    async def follow(self, run_id: str, after_sequence: int) -> "AsyncIterator[pb.RunEvent]":
        from services.coordinator.store.events import EVENTS, follow_events
        from services.coordinator.store.run_folders import RunFolders

        folder = (await asyncio.to_thread(RunFolders(self._data_dir).find, run_id)).folder
        async for event in follow_events(folder / EVENTS, _Driver(folder).is_expected, after_sequence):
            yield event


class _Driver:
    """The coordinator of a run in a folder. The coordinator may end and come back."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen_at: float | None = None
        self._is_gone = False

    def is_expected(self) -> bool:
        """Whether the run has not ended and a coordinator drives it, or did so within the last three minutes.
        Reports on standard error when the coordinator is gone."""
        from services.coordinator.client import RECONNECT_S
        from services.coordinator.store.run_lock import is_driven
        from services.coordinator.store.run_record import RunRecord

        if is_driven(self._folder):
            self._seen_at, self._is_gone = time.monotonic(), False
            return True
        if self._seen_at is None or RunRecord.load_as_left(self._folder).state.has_ended:
            return False
        if not self._is_gone:
            self._is_gone = True
            print(f"the coordinator is gone; waiting up to {RECONNECT_S:g} s for its return", file=sys.stderr)
        return time.monotonic() < self._seen_at + RECONNECT_S


def source_of(context: typer.Context, coordinator: str, data_dir: Path, run: str = "") -> tuple[Source, str]:
    """Returns the source of runs that the options and `run` determine, and the name of the run in that source.

    The command line has precedence over environment variables. Without a coordinator, the source is a folder: the
    folder of `run` if `run` is a path, else `data_dir`. Raises `InvalidArgument` when the command line has both
    options, and `NotFound` for a path that is not the folder of a run.
    """
    from services.coordinator.store.run_folders import locate_run

    from_command_line = [
        name
        for name in ("coordinator", "data_dir")
        if (origin := context.get_parameter_source(name)) is not None and origin.name == "COMMANDLINE"
    ]
    if len(from_command_line) == 2:
        raise InvalidArgument("--coordinator and --data-dir both name a source of runs: leave one out")
    if "coordinator" in from_command_line or (coordinator and not from_command_line and not is_path(run)):
        return CoordinatorSource(checked_address(coordinator)), name_of_run(run)
    data_dir, run = locate_run(run, data_dir)
    return FolderSource(data_dir), run
