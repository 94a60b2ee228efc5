"""The question to a reward model, its answer, and the value of the answer."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypedDict

from services.reward.common.text import clean, without_turns
from shoal.chat_templates.template_messages import for_template
from shoal.chat_templates.thoughts import without_thoughts
from shoal.config.tables.reward_model import RewardModelConfig
from shoal.conversation import ChatMessage


class Question(TypedDict, total=False):
    """A prompt and its completion, sent as JSON. Has exactly one of the two keys."""

    messages: list[dict[str, Any]]
    """Messages with role and content, the completion last. The model's chat template is not yet applied."""
    text: str
    """The prompt's text followed by the completion, if the prompt's messages are not known."""


def question_for(
    config: RewardModelConfig, messages: Sequence[ChatMessage], prompt_text: str, completion: str
) -> Question:
    """Puts a completion after the prompt's messages, or after the prompt's text if the messages are not known. With
    `after_thoughts` the completion begins with the mark of a thought that the prompt has opened. Breaks up markers of
    turns in the completion, so that it cannot end its own turn and add the praise of a user."""
    answer = without_thoughts(completion) if config.after_thoughts else completion
    answer = clean(without_turns(answer))
    if not messages:
        return {"text": clean(prompt_text) + answer}
    turns = [for_template(replace(message, content=clean(message.content))) for message in messages]
    return {"messages": [*turns, {"role": "assistant", "content": answer}]}


class ModelFailed(Exception):
    """The model gave no answer, or its answer is not finite. The message says why."""


@dataclass(frozen=True)
class Answer:
    """The answer for one completion."""

    logits: tuple[float, ...]
    """The logit of each label."""
    num_tokens: int | None
    """Length of the input; None if unknown."""


def value_of(answer: Answer, label: int, kind: Literal["logit", "sigmoid", "softmax"]) -> float:
    """Returns the value of a label. Raises `ModelFailed` if the answer lacks the label, or is not finite."""
    logits = answer.logits
    if label >= len(logits):
        raise ModelFailed(f"reward.model.label is {label}, but the model has only {len(logits)} labels, counted from 0")
    if not all(map(math.isfinite, logits)):
        raise ModelFailed(f"the model's logits are not finite: {' '.join(f'{logit:g}' for logit in logits)}")
    logit = logits[label]
    if kind == "sigmoid":
        return 1 / (1 + math.exp(-logit)) if logit >= 0 else math.exp(logit) / (1 + math.exp(logit))
    if kind == "softmax":
        # Subtract the largest logit, whose exp could overflow.
        highest = max(logits)
        return math.exp(logit - highest) / math.fsum(math.exp(one - highest) for one in logits)
    return logit
