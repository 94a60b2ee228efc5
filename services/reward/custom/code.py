"""One version of a custom verifier's code."""

import hashlib
import importlib.util
import platform
from dataclasses import dataclass
from pathlib import Path


class Unusable(Exception):
    """A function cannot be used as a verifier. The message says why; `field` is the setting to change."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


@dataclass(frozen=True)
class Code:
    """One version of a function. It is sent to the processes that call it, so that all of them run the same version."""

    name: str
    """Name of the verifier."""
    function: str
    path: str = ""
    """Path of the file, for messages."""
    source: str = ""
    digest: str = ""
    """SHA-256 of the file, in hex."""
    module: str = ""
    """The module of an installed package, instead of a file."""
    convention: str = "shoal"
    """The calling convention: `CustomVerifierConfig.convention`."""
    arguments: str = "{}"
    """Further arguments of each call, as JSON."""
    score_key: str = "score"
    """The entry of a result's table that is the score: `CustomVerifierConfig.score_key`."""
    defined_in: tuple[str, ...] = ()
    """For a module: the packages that may define the function; empty for any package."""

    @property
    def location(self) -> str:
        return self.path or f"{self.module}:{self.function}"


@dataclass(frozen=True)
class CustomVerifier:
    """A custom verifier, with the code that judges the next completion."""

    code: Code
    parameters: frozenset[str] = frozenset()
    """The arguments of its function."""
    description: str = ""
    digest: str = ""
    unavailable: str = ""
    """Why the verifier cannot be called. Set only for a package's verifier that no configuration names."""


def read_source(file: str) -> tuple[str, str, str]:
    """Reads a Python file; returns its path, its text, and the SHA-256 of its bytes, in hex. Raises `Unusable`."""
    try:
        path = Path(file).expanduser()
        path.stat()
        if not path.is_file():
            raise Unusable("file", f"{file} is not a file: name a Python file")
        content = path.read_bytes()
        source = importlib.util.decode_source(content)
    except FileNotFoundError:
        raise Unusable("file", f"there is no file {file} on {platform.node()}: correct the path") from None
    except (OSError, RuntimeError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise Unusable("file", f"{file} cannot be read: {why}") from None
    except (SyntaxError, ValueError, LookupError) as error:
        raise Unusable("file", f"{file} is not Python source: {error}") from None
    return str(path), source, hashlib.sha256(content).hexdigest()
