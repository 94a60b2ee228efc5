"""The texts of prompts, which a chat template makes from their conversations."""

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

from shoal.chat_templates.rendering import BoundedTemplate, Dialogue, Unrendered
from shoal.chat_templates.template_messages import for_template, render_in_any_form, without_last_end
from shoal.data.conversation import Conversation
from shoal.errors import InvalidArgument

_STAND_IN = "stand-in-for-a-field-2b7d41"


def render(
    conversations: Sequence[Conversation], tokenizer: Any, variables: Mapping[str, Any], time_s: float | None = None
) -> list[str]:
    """Returns the text of each conversation, in order. The chat template sees `variables`, and `time_s` as the time
    (now by default).

    A text ends with the beginning of the policy's turn, except with an environment, which speaks first.

    Raises `InvalidArgument`, with the row, if there is no template, or if the template fails, does not end in time,
    takes too much memory, omits tool calls, or would write fields that the conversation omits.
    """
    if not tokenizer.chat_template:
        raise InvalidArgument(
            'model.chat_template: the tokenizer has no chat template; set one by name, such as "chatml" (turns between '
            '<|im_start|> and <|im_end|>) or "simple" (the bare messages, for a base model), or give a file or a text '
            "of Jinja"
        )
    with closing(BoundedTemplate(tokenizer, variables, time_s)) as template:
        texts: list[str] = []
        outcomes = render_in_any_form(template, [_dialogue_of(conversation) for conversation in conversations])
        for conversation, outcome in zip(conversations, outcomes, strict=False):
            if isinstance(outcome, Unrendered):
                raise _refusal(conversation, outcome.why)
            texts.append(outcome)
        texts = _without_last_ends(template, conversations, texts, tokenizer.eos_token)
        _check_calls_are_written(template, conversations, texts)
        _check_others_are_not(template, conversations, texts)
    return texts


def _without_last_ends(
    template: BoundedTemplate, conversations: Sequence[Conversation], texts: Sequence[str], end_of_text: str | None
) -> list[str]:
    """Returns the texts without ends of the sequence behind prompts that an environment continues."""
    played = [index for index, conversation in enumerate(conversations) if conversation.environment is not None]
    begun = [replace(_dialogue_of(conversations[index]), begins_turn=True) for index in played]
    whole = [*texts]
    for index, other in zip(played, render_in_any_form(template, begun), strict=False):
        if not isinstance(other, Unrendered):
            whole[index] = without_last_end(texts[index], other, end_of_text)
    return whole


def _check_calls_are_written(
    template: BoundedTemplate, conversations: Sequence[Conversation], texts: Sequence[str]
) -> None:
    """Raises `InvalidArgument` for calls that the template silently omits, as many templates do: it writes the same
    text with and without the calls."""
    calling = [
        (conversation, text)
        for conversation, text in zip(conversations, texts, strict=True)
        if any(message.tool_calls for message in conversation.messages)
    ]
    without = [
        replace(conversation, messages=tuple(replace(message, tool_calls=()) for message in conversation.messages))
        for conversation, _ in calling
    ]
    for (conversation, text), silent in zip(
        calling, render_in_any_form(template, [*map(_dialogue_of, without)]), strict=False
    ):
        if silent == text:
            raise _refusal(
                conversation,
                "leaves out the tool_calls of messages: choose another template, or write the tool calls into the "
                "content",
            )


def _check_others_are_not(
    template: BoundedTemplate, conversations: Sequence[Conversation], texts: Sequence[str]
) -> None:
    """Raises `InvalidArgument` for a field that the conversations omit although it changes the template's text. Tries
    the first conversation for each field and roles."""
    tried = {
        (name, *(message.role for message in conversation.messages)): (conversation, text)
        for conversation, text in reversed([*zip(conversations, texts, strict=True)])
        for name in conversation.left_out
    }
    dialogues = []
    for (name, *_), (conversation, _) in tried.items():
        dialogue = _dialogue_of(conversation)
        messages = [{**message, name: _STAND_IN} for message in dialogue.messages]
        dialogues.append(replace(dialogue, messages=messages))
    outcomes = render_in_any_form(template, dialogues)
    for kind, (conversation, text), outcome in zip(tried, tried.values(), outcomes, strict=False):
        if outcome != text:
            raise _refusal(
                conversation,
                f"reads the field {kind[0]} of messages, which Shoal omits: remove the field from the data, move the "
                "field's words into the content, or choose a template that does not read the field",
            )


def _dialogue_of(conversation: Conversation) -> Dialogue:
    messages = [for_template(message) for message in conversation.messages]
    return Dialogue(messages, begins_turn=conversation.environment is None)


def _refusal(conversation: Conversation, what: str) -> InvalidArgument:
    return InvalidArgument(
        f"{conversation.where}: the chat template (model.chat_template, else the tokenizer's own) {what}"
    )
