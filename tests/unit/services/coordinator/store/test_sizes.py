import pytest

from services.coordinator.store.sizes import format_bytes


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(0, "0 bytes"), (1023, "1023 bytes"), (1024, "1.0 KiB"), (1_613_983_232, "1.5 GiB"), (5 * 1024**5, "5120.0 TiB")],
)
def test_a_size_has_the_largest_unit_that_it_fills(num_bytes: int, text: str) -> None:
    assert format_bytes(num_bytes) == text
