"""What a learner does with a configuration while it has another one, without a model."""

from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest

pytest.importorskip("torch")

from services.learner import served_run as module
from services.learner.commands import LearnerCommands
from services.learner.ranks.process_group import Command
from services.learner.service import LearnerService
from shoal.config import RunConfig
from shoal.config.load import config_digest, config_struct
from shoal.errors import FailedPrecondition
from shoal.rollout import WeightVersion
from shoal.v1 import learner_pb2, worker_pb2
from tests.support.configs import run_config
from tests.support.waiting import eventually

READY = worker_pb2.WORKER_STATE_READY


def config_of(**learner: Any) -> RunConfig:
    return run_config(learner=learner)


class Ranks:
    """The commands of a learner that loads nothing, and what the ranks were sent."""

    def __init__(self) -> None:
        self.sent: list[Command] = []
        self.learner = SimpleNamespace(config=None, version=WeightVersion(0, 0), num_optimizer_steps=0)
        self.process_group = SimpleNamespace(
            device=None, send_command=lambda command, *_: self.sent.append(command), leave=lambda: None
        )

    def configure(self, run_id: str, config: RunConfig, progress: Any) -> None:
        self.learner.config = config

    def set_hyperparameters(self, config: RunConfig) -> None:
        self.learner.config = config

    def release_cache(self) -> None:
        pass


async def configure(service: LearnerService, config: RunConfig, run_id: str = "run") -> worker_pb2.WorkerStatus:
    request = learner_pb2.LearnerServiceConfigureRequest(run_id=run_id, config=config_struct(config))
    return (await service.Configure(request, None)).status


async def test_a_change_that_an_active_run_may_make_needs_no_other_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WeightPublisher", Mock())
    ranks = Ranks()
    service = LearnerService(lambda: cast(LearnerCommands, ranks), lambda: "127.0.0.1")
    before, after = config_of(learning_rate=1e-6), config_of(learning_rate=2e-6)
    await configure(service, before)
    await eventually(lambda: service.status().state == READY, "a learner that is ready")
    for other, run_id in ((config_of(zero_stage=3), "run"), (after, "another")):
        with pytest.raises(FailedPrecondition, match="another configuration"):
            await configure(service, other, run_id)
    status = await configure(service, after)
    assert (status.state, status.config_digest) == (READY, config_digest(after))
    await eventually(lambda: ranks.learner.config == after, "ranks with the new learning rate")
    await configure(service, after)
    await service.close()
    assert ranks.sent == [Command.CONFIGURE, Command.SET_HYPERPARAMETERS, Command.STOP], ranks.sent
