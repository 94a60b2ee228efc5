"""The credentials of a process: the proof of its identity to others, and the means to identify its callers.

A server checks its callers in one of three ways:

* Without `--tls-dir` and `--tokens-file` the server checks nothing, as on the loopback interface of one machine.
* With only `--tls-dir` the server uses mutual TLS. A client needs a certificate of the same authorities. The
  certificate's URI names the caller's role.
* With `--tls-dir` and `--tokens-file` the server uses TLS, and each call carries a bearer token. Tokens without TLS are
  allowed only on the loopback interface.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from shoal.error_reasons import ErrorReason
from shoal.errors import FailedPrecondition
from shoal.rpc.auth.permissions import Role
from shoal.rpc.auth.tls import CERTIFICATE, KEY, WORKER_NAME, TlsFolder
from shoal.rpc.auth.tokens import OwnToken, TokensFile


@dataclass(frozen=True)
class Credentials:
    """The credentials of one process, or of one server or channel in a test."""

    tls: TlsFolder | None = None
    tokens: TokensFile | None = None
    """The tokens that a server accepts."""
    token: OwnToken | None = None
    """The token that this process sends."""

    @property
    def knows_callers(self) -> bool:
        """Whether a server with these credentials refuses unknown callers."""
        return self.tls is not None or self.tokens is not None

    @classmethod
    def of_server(cls, role: Role, *, tls_dir: Path | None, tokens_file: Path | None) -> "Credentials":
        """Returns the credentials of a service, with the token of the environment.

        Raises `FailedPrecondition`, which names the file or the option that is missing or wrong.
        """
        credentials = cls(
            TlsFolder(tls_dir) if tls_dir else None, TokensFile(tokens_file) if tokens_file else None, _own_token()
        )
        if tokens_file and credentials.token is None:
            raise _half("--tokens-file is given, but this process has no token for its own calls: set SHOAL_TOKEN_FILE")
        if credentials.token is not None and tokens_file is None:
            raise _half(
                "SHOAL_TOKEN_FILE or SHOAL_TOKEN is set, but not --tokens-file: give the file of the tokens to accept"
            )
        if credentials.tls is not None:
            _check_certificate(credentials.tls, role, with_tokens=tokens_file is not None)
        return credentials

    @classmethod
    def of_client(cls, tls_dir: Path | None) -> "Credentials":
        """Returns the credentials of a client, with the token of the environment. Raises the errors of `of_server`."""
        credentials = cls(TlsFolder(tls_dir) if tls_dir else None, token=_own_token())
        if credentials.tls is not None and credentials.tls.current().certificate is None and credentials.token is None:
            raise credentials.tls.wrong(
                f"there are no {CERTIFICATE} and {KEY}, and there is no token: add the two files, or set "
                "SHOAL_TOKEN_FILE"
            )
        return credentials


def _check_certificate(tls: TlsFolder, role: Role, *, with_tokens: bool) -> None:
    facts = tls.current().facts
    if facts is None:
        raise tls.wrong(f"{CERTIFICATE} and {KEY} are missing, but a server needs these files")
    expected = f"URI spiffe://shoal/{role}/<name>"
    if not with_tokens and (facts.caller is None or facts.caller.role is not role):
        found = f"is the certificate of {facts.caller}" if facts.caller else "names no role"
        raise tls.wrong(f"{CERTIFICATE} {found}; this service needs a certificate with the {expected}")
    if role is Role.WORKER and WORKER_NAME not in facts.names:
        raise tls.wrong(
            f"{CERTIFICATE} lacks the DNS name {WORKER_NAME}, by which a coordinator accepts a worker (it has: "
            f"{', '.join(facts.names) or 'none'})"
        )


def _own_token() -> OwnToken | None:
    path, value = os.environ.get("SHOAL_TOKEN_FILE"), os.environ.get("SHOAL_TOKEN")
    if path and value:
        raise _half("SHOAL_TOKEN_FILE and SHOAL_TOKEN are both set: unset one of these variables")
    if path:
        return OwnToken(path=Path(path))
    return OwnToken(value=value) if value else None


def _half(what: str) -> FailedPrecondition:
    return FailedPrecondition(what, reason=ErrorReason.CREDENTIALS)


_process = Credentials()


def use(credentials: Credentials) -> None:
    """Sets the credentials of this process, which servers and channels use unless a caller gives others."""
    global _process
    _process = credentials


def current() -> Credentials:
    """Returns the credentials of this process; empty credentials before `use`."""
    return _process
