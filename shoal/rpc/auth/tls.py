"""The folder of `--tls-dir`: certificate, key and authorities of this process. Changed files are read again."""

import logging
import os
import stat
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, cast

import grpc

from shoal.error_reasons import ErrorReason
from shoal.errors import FailedPrecondition
from shoal.rpc.auth.tokens import signature_of

if TYPE_CHECKING:
    from shoal.rpc.auth.certificates import Certificate

_log = logging.getLogger(__name__)

CERTIFICATE, KEY, AUTHORITIES = "tls.crt", "tls.key", "ca.crt"
"""The file names that Kubernetes' secrets and cert-manager use."""

WORKER_NAME = "worker.shoal"
"""The DNS name in the certificate of every worker. A coordinator accepts it at any address, since workers come and go,
and no certificate has their addresses. The coordinator's own certificate has its host names."""


@dataclass(frozen=True)
class TlsFiles:
    """The contents of the folder at one moment."""

    authorities: bytes
    certificate: bytes | None
    """The certificate and the key; None for a client that identifies itself with a token."""
    key: bytes | None = field(repr=False)
    facts: "Certificate | None"

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """Returns gRPC's credentials of a client: what the client shows to servers, and how it checks servers."""
        return grpc.ssl_channel_credentials(self.authorities, self.key, self.certificate)


class TlsFolder:
    """The files of one folder. Methods may be called from any thread."""

    def __init__(self, folder: Path) -> None:
        """Reads and checks the files. Raises `FailedPrecondition`, which names the missing or wrong file."""
        self._folder = folder
        self._lock = threading.Lock()
        self._signature = self._sign()
        self._files = self._read()

    def current(self) -> TlsFiles:
        """Returns the files in their current state. The same object is returned until the files change.

        Until new files fit together, returns the earlier files: a renewal may replace the certificate first.
        """
        with self._lock:
            signature = self._sign()
            if signature != self._signature:
                try:
                    self._files = self._read()
                    _log.info("certificates were renewed", extra={"folder": str(self._folder)})
                except FailedPrecondition as error:
                    _log.warning("renewed certificates are not used", extra={"error": error.message})
                self._signature = signature
            return self._files

    def server_credentials(self, *, ask_for_certificates: bool) -> grpc.ServerCredentials:
        """Returns the credentials of a server. Each new connection uses the files as they are at that time.

        With `ask_for_certificates` a client needs a certificate of these authorities to connect.
        """
        served = self.current()

        def renewed() -> grpc.ServerCertificateConfiguration:
            nonlocal served
            files = self.current()
            if files is served:
                return cast("grpc.ServerCertificateConfiguration", None)  # "As before", which the stubs do not know.
            served = files
            return _configuration(files)

        return grpc.dynamic_ssl_server_credentials(
            _configuration(served), renewed, require_client_authentication=ask_for_certificates
        )

    def wrong(self, what: str) -> FailedPrecondition:
        """Returns the error of a folder that cannot be used."""
        return FailedPrecondition(f"--tls-dir {self._folder}: {what}", reason=ErrorReason.CREDENTIALS)

    def _sign(self) -> list[tuple[int, int, int]]:
        return [signature_of(self._folder / name) for name in (AUTHORITIES, CERTIFICATE, KEY)]

    def _read(self) -> TlsFiles:
        # The import takes 0.1 s, which processes without TLS need not spend.
        from shoal.rpc.auth.certificates import check_pair, load

        authorities = self._bytes(AUTHORITIES)
        if authorities is None:
            if not self._folder.is_dir():
                raise self.wrong("the folder does not exist; make the folder with `shoal certs`")
            inside = sorted(str(path.parent) for path in self._folder.glob(f"*/{CERTIFICATE}"))
            hint = f"; give one of the folders in this folder: {', '.join(inside)}" if inside else ""
            raise self.wrong(f"{AUTHORITIES} is missing: it has the certificates of this system's authorities{hint}")
        certificate, key = self._bytes(CERTIFICATE), self._bytes(KEY)
        try:
            if certificate is None and key is None:
                load(AUTHORITIES, authorities)
                return TlsFiles(authorities, None, None, None)
            if certificate is None or key is None:
                there, missing = (KEY, CERTIFICATE) if certificate is None else (CERTIFICATE, KEY)
                raise self.wrong(f"the folder has {there}, but {missing} is missing")
            if os.stat(self._folder / KEY).st_mode & (stat.S_IROTH | stat.S_IWOTH):
                raise self.wrong(f"every user of this machine can read {KEY}: chmod 600 {self._folder / KEY}")
            return TlsFiles(authorities, certificate, key, check_pair(certificate, key, authorities))
        except ValueError as error:
            raise self.wrong(str(error)) from None

    def _bytes(self, name: str) -> bytes | None:
        try:
            return (self._folder / name).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self.wrong(f"{name} cannot be read: {error.strerror}") from None


def _configuration(files: TlsFiles) -> grpc.ServerCertificateConfiguration:
    assert files.certificate is not None and files.key is not None, "Credentials checks it"
    return grpc.ssl_server_certificate_configuration([(files.key, files.certificate)], files.authorities)
