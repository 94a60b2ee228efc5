"""Keeps torch out of a process that only tokenizes."""

import sys
from types import ModuleType


def hide_torch() -> None:
    """Makes torch look as if it were not installed. Call this function before importing transformers.

    transformers imports torch wherever it is installed, which for a tokenizer wastes three seconds and 300 MB.
    """
    if "torch" not in sys.modules:
        hidden: dict[str, ModuleType | None] = sys.modules  # type: ignore[assignment]  # the documented value
        hidden["torch"] = None
