"""Tests that the page on translations names every feature that is still to come."""

from shoal.translate.shared.not_yet import NOT_YET
from tests.support.repository import ROOT


def test_the_page_lists_what_is_not_yet_available() -> None:
    _, _, section = (ROOT / "docs" / "translation.md").read_text().partition("## Not yet available\n\n")
    assert section.splitlines() == [f"* **{feature}**: {reason}" for feature, reason in NOT_YET.items()]
