"""Trials of a chat template: how the template ends an answer, and whether the template writes the time."""

from collections.abc import Mapping
from typing import Any

from shoal.chat_templates.rendering import Dialogue, Unrendered, render_texts
from shoal.errors import InvalidArgument

ANSWER = "stand-in-for-a-sampled-answer-5c1e9a"
"""The content of the placeholder for an answer."""
STAND_IN: tuple[dict[str, Any], ...] = ({"role": "user", "content": "-"}, {"role": "assistant", "content": ANSWER})
_SOME_TIME_S = 1_000_000_000.25
_OTHER_TIME_S = _SOME_TIME_S + 7 * 366 * 86400 + 3 * 86400 + 5 * 3600 + 17 * 60 + 13.5
"""A time that differs in every part: year, month, day, weekday, hour, minute, second, and fraction of a second."""


def first_token(tokenizer: Any, text: str) -> str | None:
    """Returns the special token at the beginning of a text, after blanks; None if there is no such token."""
    added: list[str] = sorted(tokenizer.get_added_vocab(), key=len, reverse=True)
    return next((token for token in added if token.strip() and text.lstrip().startswith(token)), None)


def end_of_answer(tokenizer: Any, variables: Mapping[str, Any]) -> int | None:
    """Returns the token that the chat template writes after a final answer; None if the end is not a single token, if
    there is no template, or if the template refuses the messages.

    After an answer that another turn follows, a template may write another token, which may also end parts of an
    answer: gpt-oss ends thoughts with it.
    """
    if not tokenizer.chat_template:
        return None
    try:
        outcomes = render_texts(tokenizer, [Dialogue(STAND_IN, begins_turn=False)], variables)
    except InvalidArgument:  # It has several templates and no default.
        return None
    if isinstance(outcomes[0], Unrendered) or ANSWER not in outcomes[0]:
        return None
    token = first_token(tokenizer, outcomes[0].rpartition(ANSWER)[2])
    return None if token is None else int(tokenizer.convert_tokens_to_ids(token))


def writes_time(tokenizer: Any, variables: Mapping[str, Any], dialogue: Dialogue) -> bool:
    """Whether the text of a dialogue depends on the time at which the template is applied."""
    some, other = (render_texts(tokenizer, [dialogue], variables, time_s) for time_s in (_SOME_TIME_S, _OTHER_TIME_S))
    return some != other
