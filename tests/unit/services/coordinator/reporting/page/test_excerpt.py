from services.coordinator.reporting.page.excerpt import MAX_CHARS, excerpt


def test_a_short_text_is_not_folded() -> None:
    assert excerpt("The answer is 5.").preview == ""


def test_a_folded_text_is_whole_and_its_preview_has_both_ends() -> None:
    text = "Let me think.\n" + "I carry the one.\n" * 100 + "The answer is 5."
    shown = excerpt(text)
    assert shown.text == text and shown.num_chars == len(text)
    assert shown.preview.startswith("Let me think. I") and shown.preview.endswith("answer is 5.")
    assert "\n" not in shown.preview


def test_many_short_lines_are_folded() -> None:
    assert excerpt("\n".join("123456789")).preview == " ".join("123456789")


def test_a_huge_text_keeps_its_beginning_and_its_end_and_says_what_is_missing() -> None:
    shown = excerpt("b" * MAX_CHARS + "e" * MAX_CHARS)
    assert len(shown.text) < MAX_CHARS + 100, f"{len(shown.text)} characters"
    assert shown.text.startswith("bbb") and shown.text.endswith("eee")
    assert f"{MAX_CHARS:,} characters left out" in shown.text
    assert shown.num_chars == 2 * MAX_CHARS
