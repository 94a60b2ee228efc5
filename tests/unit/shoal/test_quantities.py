import pytest

from shoal.quantities import counted, format_bytes, format_duration, format_range


@pytest.mark.parametrize(
    ("number", "noun", "spec", "text"),
    [
        (1, "optimizer step", "", "1 optimizer step"),
        (0, "optimizer step", "", "0 optimizer steps"),
        (2, "process", "", "2 processes"),
        (1, "process", "", "1 process"),
        (4096, "token", ",", "4,096 tokens"),
        (1.0, "held-out question", ",.0f", "1 held-out question"),
    ],
)
def test_a_count_of_one_is_not_plural(number: float, noun: str, spec: str, text: str) -> None:
    assert counted(number, noun, spec) == text


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(0, "0 bytes"), (1023, "1023 bytes"), (1024, "1.0 KiB"), (1_613_983_232, "1.5 GiB"), (5 * 1024**5, "5120.0 TiB")],
)
def test_a_size_has_the_largest_unit_that_it_fills(num_bytes: int, text: str) -> None:
    assert format_bytes(num_bytes) == text


@pytest.mark.parametrize(
    ("duration_s", "text"),
    [(0.4, "0 s"), (59.4, "59 s"), (59.6, "1 min 0 s"), (3599.6, "1 h 0 min"), (7800, "2 h 10 min"), (1e5, "1 d 3 h")],
)
def test_a_duration_has_its_two_largest_units(duration_s: float, text: str) -> None:
    assert format_duration(duration_s) == text


def test_a_range_of_one_is_not_plural() -> None:
    assert format_range("train step", 7, 9) == "train steps 7 to 9"
    assert format_range("train step", 7, 7) == "train step 7"
    assert format_range("train step", 7, 6) == "train step 7", "a step that was not applied has no number"
