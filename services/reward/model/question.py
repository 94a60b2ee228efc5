"""What a reward model is shown."""

from collections.abc import Sequence
from typing import TypedDict

from services.reward.text import clean, without_turns
from shoal.config.reward_model import RewardModelConfig
from shoal.rollout import ChatMessage


class Question(TypedDict, total=False):
    """A prompt and its completion; one of the two keys is there. It travels as JSON."""

    messages: list[dict[str, str]]
    """Each with role and content; the completion is the last. The model's chat template is still to be applied."""
    text: str
    """Where nothing but text is known of the prompt: that, and the completion after it."""


def question_for(
    config: RewardModelConfig, messages: Sequence[ChatMessage], prompt_text: str, completion: str
) -> Question:
    """What to show of a completion: under its messages, or after the prompt's text where those are not known.

    What it says of turns and their ends is no turn: it cannot end itself and have another user praise it.
    """
    answer = completion.rpartition("</think>")[2].lstrip() if config.after_thoughts else completion
    answer = clean(without_turns(answer))
    if not messages:
        return {"text": clean(prompt_text) + answer}
    turns = [{"role": message.role, "content": clean(message.content)} for message in messages]
    return {"messages": [*turns, {"role": "assistant", "content": answer}]}
