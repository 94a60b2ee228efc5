"""Checks of certificates: their owner, their validity, their key and their issuer."""

import datetime
import socket
import ssl
from dataclasses import dataclass

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

from shoal.rpc.auth.permissions import Caller, caller_of_uri


@dataclass(frozen=True)
class Certificate:
    """The facts of a certificate that a process needs."""

    caller: Caller | None
    """The role and name in the certificate's URI; None without such a URI."""
    names: tuple[str, ...]
    """The DNS names and addresses at which clients accept a server with this certificate."""


def check_pair(certificate_pem: bytes, key_pem: bytes, ca_pem: bytes) -> Certificate:
    """Checks that a certificate is valid now, that the key belongs to it, and that its issuer is known.

    `certificate_pem` may contain intermediate certificates after the first, and `ca_pem` several authorities. Raises
    `ValueError` with a message that names the fault.
    """
    chain = load("tls.crt", certificate_pem)
    authorities = load("ca.crt", ca_pem)
    own = chain[0]
    try:
        key = load_pem_private_key(key_pem, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise ValueError("tls.key must be a private key in PEM without a password") from None
    try:
        is_its_key = _public_bytes(key.public_key()) == _public_bytes(own.public_key())
    except UnsupportedAlgorithm:
        raise ValueError("tls.crt has a key of an unsupported type: issue it with an EC or RSA key") from None
    if not is_its_key:
        raise ValueError("tls.key is not the key of tls.crt: tls.key and tls.crt must be issued together")
    now = datetime.datetime.now(datetime.UTC)
    if now > own.not_valid_after_utc:
        raise ValueError(f"tls.crt expired on {own.not_valid_after_utc:%Y-%m-%d %H:%M} UTC: renew the certificate")
    if now < own.not_valid_before_utc:
        raise ValueError(
            f"tls.crt is not valid before {own.not_valid_before_utc:%Y-%m-%d %H:%M} UTC: check this machine's clock"
        )
    if not any(_issued(issuer, own) for issuer in (*chain[1:], *authorities)):
        raise ValueError("ca.crt lacks the authority that issued tls.crt: add it, since no peer would accept tls.crt")
    return _facts(own)


def names_of_server(address: str, *, timeout_s: float = 5.0) -> tuple[str, ...]:
    """Returns the DNS names and addresses in the certificate that a server shows; empty if it shows no certificate.

    The certificate is not verified, since the names are only for messages.
    """
    host, _, port = address.rpartition(":")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    try:
        with (
            socket.create_connection((host.strip("[]"), int(port)), timeout_s) as plain,
            context.wrap_socket(plain) as encrypted,
        ):
            shown = encrypted.getpeercert(binary_form=True)
        return _facts(x509.load_der_x509_certificate(shown)).names if shown else ()
    except (OSError, ValueError):
        return ()


def _facts(certificate: x509.Certificate) -> Certificate:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return Certificate(None, ())
    callers = [caller_of_uri(uri) for uri in names.get_values_for_type(x509.UniformResourceIdentifier)]
    hosts = (*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress)))
    return Certificate(callers[0] if len(callers) == 1 else None, hosts)


def load(name: str, pem: bytes) -> list[x509.Certificate]:
    """Reads the certificates of the file `name`. Raises `ValueError`, which names the file, if there are none."""
    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError:
        raise ValueError(f"{name} must have a certificate in PEM") from None


def _issued(issuer: x509.Certificate, certificate: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        return False
    return True


def _public_bytes(key: PublicKeyTypes) -> bytes:
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
