"""The run that the learner serves: its configuration, the commands of its ranks, and the publisher of its weights."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from google.protobuf.message import Message

from services.learner.commands import LearnerCommands
from services.learner.held_groups import HeldGroups
from services.learner.publish import WeightPublisher
from services.learner.ranks.process_group import Command
from services.learner.request_checks import check_name
from services.learner.torch_thread import TorchThread
from shoal.config import RunConfig, parse_config
from shoal.config.live import differs_in_live
from shoal.error_reasons import ErrorReason
from shoal.errors import FailedPrecondition, ShoalError
from shoal.rollout import WeightVersion
from shoal.v1 import learner_pb2, worker_pb2
from shoal.worker.lifecycle import Lifecycle

_T = TypeVar("_T")


class ServedRun:
    """Configures the ranks for a run, and runs commands on them. Call all methods but `follow` in one event loop."""

    def __init__(
        self, lifecycle: Lifecycle, torch: TorchThread, find_host: Callable[[], str], interface: str | None
    ) -> None:
        """`LearnerService` explains `find_host` and `interface`."""
        self._lifecycle = lifecycle
        self._torch = torch
        self._find_host = find_host
        self._interface = interface
        self._commands: LearnerCommands | None = None
        self._publisher: WeightPublisher | None = None
        self.held_groups = HeldGroups()
        self.version: WeightVersion | None = None
        self.num_optimizer_steps = 0

    def configure(self, request: learner_pb2.LearnerServiceConfigureRequest) -> None:
        """Begins to load the model of a run, unless the learner already serves that run.

        Raises `InvalidArgument` for an invalid name or configuration, and `Unavailable` (STARTING_OVER) or
        `FailedPrecondition` (OTHER_CONFIGURATION) if the learner serves another configuration.
        """
        config = parse_config(request.config)
        check_name(request.run_id, "run_id")
        if self._lifecycle.is_configured(request.run_id, config):
            return
        if request.run_id == self._lifecycle.run_id and self._may_adopt(config):
            self._adopt(request, config)
        elif self._lifecycle.state in (worker_pb2.WORKER_STATE_LOADING, worker_pb2.WORKER_STATE_READY):
            raise self._refuse_other(request.run_id)
        else:
            self._lifecycle.load(
                request.run_id, config, lambda: self._load(request, config), message="loading the model"
            )

    def _may_adopt(self, config: RunConfig) -> bool:
        if self._lifecycle.state != worker_pb2.WORKER_STATE_READY or self._commands is None:
            return False
        return differs_in_live(self._commands.learner.config, config)

    def _adopt(self, request: learner_pb2.LearnerServiceConfigureRequest, config: RunConfig) -> None:
        """Gives all ranks the configuration change that waited for the run's next step when the coordinator ended."""
        body = learner_pb2.SetHyperparametersRequest(run_id=request.run_id, config=request.config)
        self.run(Command.SET_HYPERPARAMETERS, body, None, lambda commands: commands.set_hyperparameters(config))
        self._lifecycle.adopt(request.run_id, config)

    def _refuse_other(self, run_id: str) -> ShoalError:
        """Returns the error for another configuration. Restarts the process, if possible, so that it can serve it.

        The coordinator drives one run at a time, so the run that the learner serves is over.
        """
        reason = (
            f"the learner serves run {self._lifecycle.run_id} and cannot change to run {run_id} or to another "
            "configuration without a restart"
        )
        if self._lifecycle.can_restart:
            return self._lifecycle.restart(reason)
        return FailedPrecondition(
            f"{reason}: restart the learner's processes, or start the learner by torchrun with --max-restarts, which "
            "restarts the processes automatically",
            reason=ErrorReason.OTHER_CONFIGURATION,
            metadata={"run_id": self._lifecycle.run_id},
        )

    async def _load(self, request: learner_pb2.LearnerServiceConfigureRequest, config: RunConfig) -> None:
        def configure(commands: LearnerCommands) -> LearnerCommands:
            commands.configure(request.run_id, config, self._lifecycle.progress)
            return commands

        host = await asyncio.to_thread(self._find_host)
        commands = await self.run(Command.CONFIGURE, request, None, configure)
        device = commands.process_group.device
        self._publisher = await asyncio.to_thread(
            WeightPublisher, config, run_id=request.run_id, host=host, interface=self._interface, device=device
        )
        self._commands, self.held_groups = commands, HeldGroups()
        self.follow(commands)

    def run(
        self,
        command: Command,
        request: Message,
        within_s: float | None,
        work: Callable[[LearnerCommands], _T],
        check: Callable[[LearnerCommands], None] = lambda commands: None,
    ) -> "asyncio.Future[_T]":
        """Runs a command on all ranks, as `TorchThread.submit` does, with the request as the body of the command."""

        def work_shown(commands: LearnerCommands) -> _T:
            try:
                return work(commands)
            finally:
                self._lifecycle.progress("")

        body = request.SerializeToString()
        return asyncio.wrap_future(self._torch.submit(command, body, work_shown, check=check, within_s=within_s))

    def follow(self, commands: LearnerCommands) -> None:
        """Copies the values that GetStatus returns. Any thread may call it."""
        self.version, self.num_optimizer_steps = commands.learner.version, commands.learner.num_optimizer_steps

    def require_ready(self) -> tuple[LearnerCommands, WeightPublisher]:
        """Returns the commands of the ranks, and the publisher. Raises `FailedPrecondition` before a run is loaded."""
        if self._commands is None or self._publisher is None:
            raise self._lifecycle.not_ready()
        return self._commands, self._publisher

    def close(self) -> None:
        """Closes the broadcast groups."""
        if self._publisher is not None:
            self._publisher.close()
