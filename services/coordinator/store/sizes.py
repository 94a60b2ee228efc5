"""Sizes for people."""

_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


def format_bytes(num_bytes: float) -> str:
    """Formats a size in the largest unit of which there is at least one: "1.5 GiB"."""
    unit = next((number for number in range(len(_UNITS)) if num_bytes < 1024 ** (number + 1)), len(_UNITS) - 1)
    return f"{num_bytes / 1024**unit:.{min(unit, 1)}f} {_UNITS[unit]}"
