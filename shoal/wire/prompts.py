"""Prompts and their ground truths as messages."""

from google.protobuf import json_format
from google.protobuf.struct_pb2 import Value

from shoal.rollout import EnvironmentTask, GroundTruth, Prompt
from shoal.v1 import rollout_pb2
from shoal.wire.arrays import int32_from_wire, int32_to_wire
from shoal.wire.conversations import chat_message_from_wire, chat_message_to_wire, struct_from_wire, struct_to_wire
from shoal.wire.fields import invalid


def prompt_to_wire(prompt: Prompt) -> rollout_pb2.Prompt:
    return rollout_pb2.Prompt(
        prompt_id=prompt.prompt_id,
        token_ids=int32_to_wire(prompt.token_ids),
        text=prompt.text,
        ground_truths=map(ground_truth_to_wire, prompt.ground_truths),
        messages=map(chat_message_to_wire, prompt.messages),
        environment=None if prompt.environment is None else environment_to_wire(prompt.environment),
    )


def prompt_from_wire(message: rollout_pb2.Prompt) -> Prompt:
    return Prompt(
        prompt_id=message.prompt_id,
        token_ids=int32_from_wire(message.token_ids, "prompt.token_ids"),
        text=message.text,
        ground_truths=tuple(map(ground_truth_from_wire, message.ground_truths)),
        messages=tuple(map(chat_message_from_wire, message.messages)),
        environment=environment_from_wire(message.environment) if message.HasField("environment") else None,
    )


def ground_truth_to_wire(truth: GroundTruth) -> rollout_pb2.GroundTruth:
    return rollout_pb2.GroundTruth(
        verifier=truth.verifier, label=json_format.ParseDict(truth.label, Value()), weight=truth.weight
    )


def ground_truth_from_wire(message: rollout_pb2.GroundTruth) -> GroundTruth:
    """Reads a ground truth. Raises `InvalidArgument` for a label with a number that JSON does not have."""
    try:
        label = json_format.MessageToDict(message.label)
    except ValueError:
        raise invalid("ground_truths.label", "must have only finite numbers") from None
    return GroundTruth(
        verifier=message.verifier,
        label=label,
        weight=message.weight if message.HasField("weight") else 1.0,
    )


def environment_to_wire(task: EnvironmentTask) -> rollout_pb2.EnvironmentTask:
    tools = None if task.tools is None else rollout_pb2.ToolNames(names=task.tools)
    return rollout_pb2.EnvironmentTask(environment=task.environment, task=struct_to_wire(task.task), tools=tools)


def environment_from_wire(message: rollout_pb2.EnvironmentTask) -> EnvironmentTask:
    """Reads a task. Raises `InvalidArgument` for a task with a number that JSON does not have."""
    tools = tuple(message.tools.names) if message.HasField("tools") else None
    return EnvironmentTask(message.environment, struct_from_wire(message.task, "environment.task"), tools)
