"""The commands of one rank, without a model."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

from services.learner import commands as module
from services.learner.commands import LearnerCommands
from services.learner.follower import follow
from services.learner.ranks.process_group import Command
from shoal.errors import InvalidArgument
from tests.support.configs import run_config


@pytest.mark.parametrize("single_gpu", [True, False])
def test_a_configuration_that_failed_releases_the_memory_of_a_shared_gpu(
    single_gpu: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: Any, **named: Any) -> None:
        raise InvalidArgument("too small a machine")

    released: list[bool] = []
    monkeypatch.setattr(module, "settle_on_machine", refuse)
    monkeypatch.setattr(module.torch.cuda, "empty_cache", lambda: released.append(True))
    group: Any = SimpleNamespace(device=None, size=1)
    commands = LearnerCommands(group, tmp_path)
    commands.release_cache()
    assert not released, "nothing is known of the GPU before the first configuration"
    config = run_config("model", generator={"gpu_memory_utilization": 0.4}, launch={"single_gpu": single_gpu})
    with pytest.raises(InvalidArgument, match="too small a machine"):
        commands.configure("run", config)
    commands.release_cache()
    assert released == [True] * single_gpu


@pytest.mark.parametrize(("farewell", "is_restarting"), [(Command.STOP, False), (Command.RESTART, True)])
def test_a_rank_leaves_with_rank_0_and_restarts_only_if_rank_0_does(farewell: Command, is_restarting: bool) -> None:
    sent = iter([Command.IDLE, farewell])
    left: list[bool] = []
    group = SimpleNamespace(receive_command=lambda: (next(sent), b""), leave=lambda: left.append(True))
    commands: Any = SimpleNamespace(process_group=group)
    assert follow(commands) is is_restarting
    assert left == [True]
