"""Checkpoints that learner ranks write without a service."""

import json
from concurrent.futures import Future
from dataclasses import asdict

from services.learner.commands import LearnerCommands
from services.learner.storage.checkpoints import FileDigest
from tests.support.waiting import PATIENCE_S


def files_on_disk(commands: LearnerCommands, saving: "Future[list[FileDigest]]") -> list[FileDigest]:
    """Waits until a checkpoint is on disk; returns its files. Call it on all ranks."""
    own = json.dumps([asdict(file) for file in saving.result(PATIENCE_S)]).encode()
    of_rank_0 = commands.process_group.all_gather(own)[0]
    return [FileDigest(**fields) for fields in json.loads(of_rank_0)]
