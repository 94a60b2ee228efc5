"""What a chat template does, found by trying it: how it ends an answer, and whether it writes the time."""

from collections.abc import Mapping
from typing import Any

from shoal.chat_templates.rendering import BoundedTemplate, Dialogue, Unrendered, render_texts
from shoal.errors import InvalidArgument

ANSWER = "stand-in-for-a-sampled-answer-5c1e9a"
"""What the stand-in says."""
STAND_IN: tuple[dict[str, Any], ...] = ({"role": "user", "content": "-"}, {"role": "assistant", "content": ANSWER})
_SOME_TIME_S = 1_000_000_000.25
_OTHER_TIME_S = _SOME_TIME_S + 7 * 366 * 86400 + 3 * 86400 + 5 * 3600 + 17 * 60 + 13.5
"""Differs in every part: year, month, day, weekday, hour, minute, second, and fraction of one."""


def first_token(tokenizer: Any, text: str) -> str | None:
    """Returns the token of its own with which a text begins, behind blanks; None where it begins with none."""
    added: list[str] = sorted(tokenizer.get_added_vocab(), key=len, reverse=True)
    return next((token for token in added if token.strip() and text.lstrip().startswith(token)), None)


def end_of_answer(tokenizer: Any, variables: Mapping[str, Any]) -> int | None:
    """Returns the token that the chat template writes behind an answer that nothing follows, where it is one token.

    Behind an answer that a turn follows a template may write another one, with which it also ends an answer's parts:
    gpt-oss ends thoughts so. None where there is no template, or no such token, or where the template refuses.
    """
    if not tokenizer.chat_template:
        return None
    try:
        outcomes = render_texts(tokenizer, [Dialogue(STAND_IN, begins_turn=False)], variables)
    except InvalidArgument:  # It has several, and no default.
        return None
    if isinstance(outcomes[0], Unrendered) or ANSWER not in outcomes[0]:
        return None
    token = first_token(tokenizer, outcomes[0].rpartition(ANSWER)[2])
    return None if token is None else int(tokenizer.convert_tokens_to_ids(token))


def writes_time(tokenizer: Any, variables: Mapping[str, Any], dialogue: Dialogue) -> bool:
    """Whether the text of a dialogue depends on the time at which the template is applied."""
    texts = []
    for time_s in (_SOME_TIME_S, _OTHER_TIME_S):
        template = BoundedTemplate(tokenizer, variables, time_s)
        try:
            texts += template.render([dialogue])
        finally:
            template.close()
    return texts[0] != texts[1]
