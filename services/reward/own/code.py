"""What a verifier of yours is loaded from."""

import hashlib
import importlib.util
from dataclasses import dataclass
from pathlib import Path


class Unusable(Exception):
    """A function cannot be used as a verifier. The message says why; `field` is the setting to change."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


@dataclass(frozen=True)
class Code:
    """One version of a function. Travels to the processes that call it, so all of them run the same one."""

    name: str
    """The verifier's."""
    function: str
    path: str = ""
    """The file's, for messages."""
    source: str = ""
    """What the file held."""
    digest: str = ""
    """SHA-256 of the file, in hex."""
    module: str = ""
    """In place of a file: the module of an installed package."""

    @property
    def place(self) -> str:
        """Where it comes from, for people."""
        return self.path or f"{self.module}:{self.function}"


def read_code(name: str, file: str, function: str) -> Code:
    """The file as it is now. Raises `Unusable`."""
    try:
        path = Path(file).expanduser()
        content = path.read_bytes()
        source = importlib.util.decode_source(content)
    except FileNotFoundError:
        raise Unusable("file", f"there is no file {file} on this machine, the reward service's") from None
    except (OSError, RuntimeError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise Unusable("file", f"{file} cannot be read: {why}") from None
    except (SyntaxError, UnicodeDecodeError, LookupError) as error:
        raise Unusable("file", f"{file} is no Python source: {error}") from None
    return Code(name, function, path=str(path), source=source, digest=hashlib.sha256(content).hexdigest())
