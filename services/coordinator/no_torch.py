"""Keeps torch out of a process that only tokenizes."""

import sys
from types import ModuleType


def hide_torch() -> None:
    """Makes torch look as if it were not installed. To be called before transformers is imported.

    transformers imports torch wherever it can be found; for a tokenizer that is three seconds and 300 MB for nothing.
    """
    if "torch" not in sys.modules:
        hidden: dict[str, ModuleType | None] = sys.modules  # type: ignore[assignment]  # None is what the docs say
        hidden["torch"] = None
