"""Bearer tokens: the file of the tokens that a server accepts, and the token of this process."""

import hashlib
import logging
import os
import re
import stat
import threading
from pathlib import Path

from shoal.error_reasons import ErrorReason
from shoal.errors import FailedPrecondition
from shoal.rpc.auth.permissions import Caller, Role

_log = logging.getLogger(__name__)

_LINE = re.compile(r"([0-9a-f]{64})\s+([a-z]+)\s+(\S+)")
_TOKEN = re.compile(r"[!-~]{16,4096}")


def digest_of(token: str) -> str:
    """Returns the SHA-256 of a token, in hexadecimal. A tokens file has only digests, so the file reveals no token."""
    return hashlib.sha256(token.encode()).hexdigest()


class TokensFile:
    """The file of the tokens that a server accepts. Each line has a SHA-256, a role and a name; `#` begins a comment.

    The file is read again when it changes. Methods may be called from any thread.
    """

    def __init__(self, path: Path) -> None:
        """Reads the file. Raises `FailedPrecondition`, which names the wrong line."""
        self._path = path
        self._lock = threading.Lock()
        self._signature = signature_of(path)
        self._callers = self._read()

    def caller(self, token: str) -> Caller | None:
        """Returns the owner of a token; None for an unknown token.

        The earlier tokens stay valid while the changed file cannot be read.
        """
        with self._lock:
            signature = signature_of(self._path)
            if signature != self._signature:
                self._signature = signature
                try:
                    self._callers = self._read()
                    _log.info("tokens were renewed", extra={"num_tokens": len(self._callers)})
                except FailedPrecondition as error:
                    _log.error("the changed tokens file is not used", extra={"error": error.message})
            return self._callers.get(digest_of(token))

    def _read(self) -> dict[str, Caller]:
        try:
            text = self._path.read_text(encoding="utf-8")
            if os.stat(self._path).st_mode & stat.S_IWOTH:
                raise _wrong("--tokens-file", self._path, "every user of this machine can write this file: chmod o-w")
        except (OSError, UnicodeDecodeError) as error:
            raise _wrong("--tokens-file", self._path, f"cannot be read: {_text_of(error)}") from None
        callers: dict[str, Caller] = {}
        for number, line in enumerate(text.splitlines(), start=1):
            line = line.partition("#")[0].strip()
            if not line:
                continue
            match = _LINE.fullmatch(line)
            if match is None or match[2] not in set(Role):
                # The error leaves out the line, which may be a token that somebody wrote here instead of its digest.
                raise _wrong(
                    "--tokens-file", self._path,
                    f"line {number} is not `SHA256 ROLE NAME` with a role of {', '.join(Role)}; "
                    "`shoal token ROLE NAME FILE` prints such a line",
                )  # fmt: skip
            callers[match[1]] = Caller(Role(match[2]), match[3])
        return callers


class OwnToken:
    """The token that this process sends, from the environment or from a file. A changed file is read again."""

    def __init__(self, *, path: Path | None = None, value: str = "") -> None:
        """Reads the token. Raises `FailedPrecondition` for a file that cannot be read, or that other users can read."""
        self._path = path
        self._signature = signature_of(path) if path else None
        self._value = self._read(path) if path else _checked(value.strip(), "SHOAL_TOKEN")

    def value(self) -> str:
        """Returns the current token."""
        if self._path is not None and (signature := signature_of(self._path)) != self._signature:
            self._signature = signature
            try:
                self._value = self._read(self._path)
            except FailedPrecondition as error:
                _log.warning("the changed token is not used", extra={"error": error.message})
        return self._value

    def __repr__(self) -> str:
        return f"OwnToken({self._path or 'SHOAL_TOKEN'})"

    @staticmethod
    def _read(path: Path) -> str:
        try:
            token = path.read_text(encoding="utf-8").strip()
            if os.stat(path).st_mode & (stat.S_IROTH | stat.S_IWOTH):
                raise _wrong(
                    "SHOAL_TOKEN_FILE", path, f"every user of this machine can read the file: chmod 600 {path}"
                )
        except (OSError, UnicodeDecodeError) as error:
            raise _wrong("SHOAL_TOKEN_FILE", path, f"cannot be read: {_text_of(error)}") from None
        return _checked(token, f"SHOAL_TOKEN_FILE {path}")


def _checked(token: str, where: str) -> str:
    if not _TOKEN.fullmatch(token):
        raise FailedPrecondition(
            f"{where} is no token: use 16 to 4096 printable ASCII characters without spaces; `shoal token "
            "ROLE NAME FILE` writes one",
            reason=ErrorReason.CREDENTIALS,
        )
    return token


def _wrong(option: str, path: Path, what: str) -> FailedPrecondition:
    return FailedPrecondition(f"{option} {path}: {what}", reason=ErrorReason.CREDENTIALS)


def _text_of(error: OSError | UnicodeDecodeError) -> str:
    return str(error.strerror) if isinstance(error, OSError) else "the file is not UTF-8"


def signature_of(path: Path) -> tuple[int, int, int]:
    """Returns values that change when a file changes; zeros while the file cannot be found."""
    try:
        facts = os.stat(path)
    except OSError:
        return (0, 0, 0)
    return (facts.st_mtime_ns, facts.st_size, facts.st_ino)
