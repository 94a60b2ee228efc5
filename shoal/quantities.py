"""Quantities for people: counts, sizes and durations."""

_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


def counted(number: float, noun: str, spec: str = "") -> str:
    """Formats a count with its noun: "1 step", "2 processes"; with the `spec` "," also "1,024 tokens"."""
    plural = f"{noun}es" if noun.endswith(("s", "x", "ch", "sh")) else f"{noun}s"
    return f"{number:{spec}} {noun if number == 1 else plural}"


def format_range(noun: str, first: int, last: int) -> str:
    """Formats numbered things: "train step 7", "train steps 7 to 9"."""
    return f"{noun} {first}" if last <= first else f"{noun}s {first} to {last}"


def format_bytes(num_bytes: float) -> str:
    """Formats a size in the largest unit that gives at least 1: "1.5 GiB"."""
    unit = next((number for number in range(len(_UNITS)) if num_bytes < 1024 ** (number + 1)), len(_UNITS) - 1)
    return f"{num_bytes / 1024**unit:.{min(unit, 1)}f} {_UNITS[unit]}"


def format_duration(duration_s: float) -> str:
    """Formats a duration in its two largest units: "42 s", "3 min 5 s", "2 h 10 min", "4 d 3 h"."""
    seconds = round(duration_s)
    for size, unit, part, smaller in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if seconds >= size:
            return f"{seconds // size} {unit} {seconds % size // part} {smaller}"
    return f"{seconds} s"
