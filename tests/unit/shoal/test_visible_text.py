import pytest

from shoal.visible_text import visible


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\x00b\x1b[31m", "a<U+0000>b<U+001B>[31m"),
        ("pay \u202e001 only", "pay <U+202E>001 only"),
        ("a\u200bb\ufeff\U000e0041", "a<U+200B>b<U+FEFF><U+E0041>"),
        ("a\xad\u061cb\u180e\u115f\u3164", "a<U+00AD><U+061C>b<U+180E><U+115F><U+3164>"),
        ("a\U000e0100\U000e01ef\U0001d173", "a<U+E0100><U+E01EF><U+1D173>"),
        ("\u2764\ufe0f \N{WOMAN}\u200d\N{ROCKET}", "\u2764\ufe0f \N{WOMAN}\u200d\N{ROCKET}"),
        ("half \ud83d", "half <U+D83D>"),
        ("a\rb\r\nc\td", "a<U+000D>b\nc\td"),
        ("ünï 漢字 \N{GRINNING FACE} <|im_end|>", "ünï 漢字 \N{GRINNING FACE} <|im_end|>"),
    ],
)
def test_characters_that_cannot_be_seen_are_named_and_all_others_stay(text: str, shown: str) -> None:
    assert visible(text) == shown
