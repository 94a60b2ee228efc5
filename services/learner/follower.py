"""A rank other than rank 0: executes the commands that rank 0 sends."""

import logging

from services.learner.commands import LearnerCommands
from services.learner.ranks.process_group import Command
from services.learner.ranks.shares import receive_share
from shoal.config import parse_config
from shoal.errors import ShoalError
from shoal.v1 import learner_pb2

_log = logging.getLogger(__name__)


def follow(commands: LearnerCommands) -> bool:
    """Executes the commands of rank 0 until rank 0 leaves. Returns whether this rank must start again.

    Raises RuntimeError when rank 0 ends without a last command. A `ShoalError` is only logged, since rank 0 reports it.
    Any other error ends this rank and then all other ranks.
    """
    while True:
        command, body = commands.process_group.receive_command()
        if command in (Command.STOP, Command.RESTART):
            commands.process_group.leave()
            return command is Command.RESTART
        try:
            _execute(commands, command, body)
        except ShoalError as error:
            _log.info("command failed", extra={"command": command.name, "error": error.message})


def _execute(commands: LearnerCommands, command: Command, body: bytes) -> None:
    match command:
        case Command.IDLE | Command.STOP | Command.RESTART:
            pass
        case Command.CONFIGURE:
            request = learner_pb2.LearnerServiceConfigureRequest.FromString(body)
            commands.configure(request.run_id, parse_config(request.config))
        case Command.TRAIN_STEP:
            commands.train_step(receive_share(commands.process_group))
        case Command.COMPUTE_LOGPROBS:
            commands.compute_logprobs(learner_pb2.ComputeLogprobsRequest.FromString(body))
        case Command.PUBLISH_WEIGHTS:
            commands.publish_weights(learner_pb2.PublishWeightsRequest.FromString(body), None)
        case Command.SAVE_CHECKPOINT:
            commands.save_checkpoint(learner_pb2.LearnerServiceSaveCheckpointRequest.FromString(body))
        case Command.LOAD_CHECKPOINT:
            commands.load_checkpoint(learner_pb2.LoadCheckpointRequest.FromString(body))
        case Command.EXPORT_MODEL:
            commands.export_model(learner_pb2.ExportModelRequest.FromString(body))
        case Command.PROFILE:
            commands.begin_profile(learner_pb2.ProfileRequest.FromString(body))
        case Command.DROP_PROFILE:
            commands.profiler.drop()
        case Command.SET_HYPERPARAMETERS:
            commands.set_hyperparameters(parse_config(learner_pb2.SetHyperparametersRequest.FromString(body).config))
