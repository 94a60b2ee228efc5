"""reasoning-gym entries as text."""

import pytest

from shoal.reasoning_entry import entry_from_text, entry_to_text


@pytest.mark.parametrize(
    "entry",
    [
        {"question": "é", "metadata": {"difficulty": (1, 2), "grid": ((0, 1), [2, (3,)]), "n": 2**70, "none": None}},
        {1: "a", (2, 3): {"b": (4,)}},
        [],
        (),
    ],
)
def test_an_entry_comes_back_as_it_was(entry: object) -> None:
    back = entry_from_text(entry_to_text(entry))
    assert back == entry and repr(back) == repr(entry)


def test_an_entry_that_is_no_plain_value_is_refused() -> None:
    with pytest.raises(TypeError):
        entry_to_text({"x": object()})
