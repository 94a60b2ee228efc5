"""Prompts and their ground truths as messages."""

from google.protobuf import json_format
from google.protobuf.struct_pb2 import Value

from shoal.rollout import ChatMessage, GroundTruth, Prompt
from shoal.v1 import rollout_pb2
from shoal.wire.arrays import int32_from_wire, int32_to_wire


def prompt_to_wire(prompt: Prompt) -> rollout_pb2.Prompt:
    return rollout_pb2.Prompt(
        prompt_id=prompt.prompt_id,
        token_ids=int32_to_wire(prompt.token_ids),
        text=prompt.text,
        ground_truths=map(ground_truth_to_wire, prompt.ground_truths),
        messages=[rollout_pb2.ChatMessage(role=message.role, content=message.content) for message in prompt.messages],
    )


def prompt_from_wire(message: rollout_pb2.Prompt) -> Prompt:
    return Prompt(
        prompt_id=message.prompt_id,
        token_ids=int32_from_wire(message.token_ids, "prompt.token_ids"),
        text=message.text,
        ground_truths=tuple(map(ground_truth_from_wire, message.ground_truths)),
        messages=tuple(ChatMessage(turn.role, turn.content) for turn in message.messages),
    )


def ground_truth_to_wire(truth: GroundTruth) -> rollout_pb2.GroundTruth:
    return rollout_pb2.GroundTruth(
        verifier=truth.verifier, label=json_format.ParseDict(truth.label, Value()), weight=truth.weight
    )


def ground_truth_from_wire(message: rollout_pb2.GroundTruth) -> GroundTruth:
    return GroundTruth(
        verifier=message.verifier,
        label=json_format.MessageToDict(message.label),
        weight=message.weight if message.HasField("weight") else 1.0,
    )
