"""Prompts as messages."""

from dataclasses import replace

import numpy as np

from shoal.rollout import ChatMessage, GroundTruth, Prompt
from shoal.wire import prompt_from_wire, prompt_to_wire


def test_a_prompt_is_read_back_unchanged() -> None:
    messages = (ChatMessage("system", "be brief"), ChatMessage("user", "2 + 2?"))
    truth = GroundTruth("general-quality_ref", {"a": ["4"]}, 0.5)
    sent = Prompt("test:0", np.arange(3, dtype=np.int32), "<s>2 + 2?", (truth,), messages)
    read = prompt_from_wire(prompt_to_wire(sent))
    assert read.token_ids.tolist() == [0, 1, 2]
    assert replace(read, token_ids=sent.token_ids) == sent
