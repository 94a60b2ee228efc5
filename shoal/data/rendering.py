"""The texts of prompts: a chat template applied to their conversations."""

from collections.abc import Mapping, Sequence
from typing import Any

from shoal.chat_templates.rendering import Dialogue, Unrendered, render_texts
from shoal.data.conversation import Conversation
from shoal.errors import InvalidArgument


def render(conversations: Sequence[Conversation], tokenizer: Any, variables: Mapping[str, Any]) -> list[str]:
    """Returns the text of each conversation, in order; `variables` are those of the chat template.

    It ends with the beginning of the policy's turn, but for an environment: what that says first comes before.

    Raises `InvalidArgument`, with the row, where there is no template, or where it fails, does not end in time, or
    takes too much memory.
    """
    if not tokenizer.chat_template:
        raise InvalidArgument(
            "model.chat_template: the tokenizer has no chat template; set one, for example "
            "'{% for message in messages %}{{ message.content }}\\n{% endfor %}'"
        )
    outcomes = render_texts(tokenizer, [_dialogue(conversation) for conversation in conversations], variables)
    texts = []
    for conversation, outcome in zip(conversations, outcomes, strict=False):
        if isinstance(outcome, Unrendered):
            raise InvalidArgument(
                f"{conversation.where}: the chat template (model.chat_template, else the tokenizer's own) {outcome.why}"
            )
        texts.append(outcome)
    return texts


def _dialogue(conversation: Conversation) -> Dialogue:
    messages = [{"role": message.role, "content": message.content} for message in conversation.messages]
    return Dialogue(messages, begins_turn=conversation.environment is None)
