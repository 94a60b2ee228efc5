"""The page of chat templates."""

import pytest

from tests.support import chat_templates as families
from tools import template_docs


@pytest.mark.parametrize(
    ("template", "ends", "results"),
    [
        (families.HERMES, "`<\\|im_end\\|>`", ("=", "=", "=", "=", "=", "=")),
        (families.GEMMA_3, "`<end_of_turn>`", ("=", "=", "=", "J", "c", "=")),
        (families.GPT_OSS, "`<\\|call\\|>` `<\\|return\\|>`", ("=", "=", "=", "=", "=", "=")),
        (families.QWEN_35, "`<\\|im_end\\|>`", ("T", "T", "T", "T", "=", "T")),
        ("{{ messages | map(attribute='content') | join }}", "", ("a",) * 6),
    ],
    ids=["hermes", "gemma_3", "gpt_oss", "qwen_3.5", "bare"],
)
def test_a_row_says_where_turns_end_and_what_works(template: str, ends: str, results: tuple[str, ...]) -> None:
    row = template_docs.row_of("template", template)
    assert (row.ends, row.results) == (ends, results)


def test_a_difference_without_an_explanation_is_an_error() -> None:
    ending = "{{ message.content + ('!' if loop.last and not loop.first else '') }}"
    template = families.HERMES.replace("{{ message.content }}", ending)
    with pytest.raises(SystemExit, match=r"^template: no note"):
        template_docs.row_of("template", template)
