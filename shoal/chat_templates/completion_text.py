"""The text of a completion, for verifiers and people."""

from collections.abc import Callable, Sequence
from typing import Any

from shoal.chat_templates.thoughts import MARKS


def text_decoder(tokenizer: Any) -> Callable[[Sequence[int]], str]:
    """Returns a function that decodes tokens to text without special tokens, except for marks of thoughts: without
    these marks, thoughts would look like the answer. `tokenizer` is a tokenizer of transformers."""
    special = {number: token.content for number, token in tokenizer.added_tokens_decoder.items() if token.special}
    marks = [*MARKS, *MARKS.values()]
    hidden = frozenset(
        number for number, content in special.items() if not any(content in mark for mark in marks if content)
    )
    if len(hidden) == len(special):
        return lambda token_ids: str(tokenizer.decode(list(token_ids), skip_special_tokens=True))
    return lambda token_ids: str(
        tokenizer.decode([token for token in token_ids if token not in hidden], skip_special_tokens=False)
    )
