"""Names of runs."""

import re


def run_name(text: str) -> str:
    """Converts a text to a valid run name."""
    return re.sub(r"[^a-z0-9._-]+", "-", text.lower()).strip("-._")[:63] or "run"
