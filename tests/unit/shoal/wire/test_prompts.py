"""Prompts as messages."""

import numpy as np
import pytest
from google.protobuf.struct_pb2 import Value

from shoal.conversation import ChatMessage
from shoal.errors import InvalidArgument
from shoal.rollout import EnvironmentTask, GroundTruth, Prompt
from shoal.v1 import rollout_pb2
from shoal.wire import ground_truth_from_wire, prompt_from_wire, prompt_to_wire


def test_a_prompt_is_read_back_unchanged() -> None:
    messages = (ChatMessage("system", "be brief"), ChatMessage("user", "2 + 2?"))
    truth = GroundTruth("general-quality_ref", {"a": ["4"]}, 0.5)
    sent = Prompt("test:0", np.arange(3, dtype=np.int32), "<s>2 + 2?", (truth,), messages)
    read = prompt_from_wire(prompt_to_wire(sent))
    assert read.token_ids.tolist() == [0, 1, 2]
    # Arrays have no truth value, so dataclasses that hold them cannot be compared.
    assert vars(read) | {"token_ids": None} == vars(sent) | {"token_ids": None}


@pytest.mark.parametrize("tools", [None, (), ("add", "submit")])
def test_the_tools_of_a_row_are_read_back_unchanged(tools: tuple[str, ...] | None) -> None:
    task = EnvironmentTask("counter", {"target": 5}, tools)
    sent = Prompt("test:0", np.zeros(1, dtype=np.int32), "a", (), (), task)
    assert prompt_from_wire(prompt_to_wire(sent)).environment == task


def test_a_label_with_a_number_that_json_does_not_have_is_refused() -> None:
    message = rollout_pb2.GroundTruth(verifier="math", label=Value(number_value=float("inf")))
    with pytest.raises(InvalidArgument, match=r"ground_truths\.label"):
        ground_truth_from_wire(message)
