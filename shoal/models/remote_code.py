"""Python code in the folder of a model. Such code runs only if `trust_remote_code` is set."""

import logging
from pathlib import Path

_log = logging.getLogger(__name__)


def reason_of(error: Exception) -> str:
    """Returns why transformers cannot load a model or tokenizer, in Shoal's words if it asks to trust code."""
    text = str(error).strip() or type(error).__name__
    if "trust_remote_code" not in text:
        return text
    return (
        "the model comes with Python code, which runs only if trust_remote_code next to the model's path is true; "
        "read the code first"
    )


def warn_of_code(folder: Path, *, trust_remote_code: bool) -> None:
    """Logs a warning if code from a model's folder is about to run in this process."""
    if trust_remote_code and (files := sorted(file.name for file in folder.glob("*.py"))):
        _log.warning(
            "trust_remote_code: code from the model's folder runs in this process, with all its permissions",
            extra={"folder": str(folder), "files": files},
        )
