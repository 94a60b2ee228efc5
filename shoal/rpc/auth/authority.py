"""Issues certificates for development and small private networks. Larger networks have their own authorities."""

import datetime
import ipaddress
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from shoal.error_reasons import ErrorReason
from shoal.errors import FailedPrecondition
from shoal.rpc.auth.permissions import Role
from shoal.rpc.auth.tls import AUTHORITIES, CERTIFICATE, KEY, WORKER_NAME

CA_KEY = "ca.key"
AUTHORITY_DAYS = 3650
CERTIFICATE_DAYS = 365
LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")
_CLOCK_SKEW = datetime.timedelta(minutes=5)
"""How long before its issue a certificate becomes valid, since the clocks of other machines may be slow."""


class Authority:
    """An authority, kept in a folder as its certificate `ca.crt` and its key `ca.key`."""

    def __init__(self, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> None:
        self._key = key
        self._certificate = certificate

    @property
    def pem(self) -> bytes:
        """The certificate of the authority, in PEM."""
        return self._certificate.public_bytes(Encoding.PEM)

    @classmethod
    def create(cls) -> "Authority":
        """Makes a new authority."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = (
            _builder("Shoal development authority", key.public_key(), AUTHORITY_DAYS)
            .issuer_name(_name("Shoal development authority"))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(signs_certificates=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        )
        return cls(key, builder.sign(key, hashes.SHA256()))

    @classmethod
    def open(cls, folder: Path) -> "Authority":
        """Reads the authority of a folder. Makes a new authority if the folder has none.

        Raises `FailedPrecondition` for files that are not such an authority.
        """
        try:
            key = load_pem_private_key((folder / CA_KEY).read_bytes(), None)
            certificate = x509.load_pem_x509_certificate((folder / AUTHORITIES).read_bytes())
        except FileNotFoundError:
            authority = cls.create()
            authority._save(folder)
            return authority
        except (ValueError, TypeError):
            raise _damaged(folder) from None
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
            raise _damaged(folder)
        return cls(key, certificate)

    def issue(
        self,
        folder: Path,
        role: Role,
        name: str,
        hosts: Sequence[str] = (),
        *,
        lifetime: datetime.timedelta = datetime.timedelta(days=CERTIFICATE_DAYS),
    ) -> None:
        """Writes tls.crt, tls.key and ca.crt of one process into a folder, over earlier files.

        `hosts` are the names and addresses at which other processes reach this process.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        uses = [ExtendedKeyUsageOID.CLIENT_AUTH]
        if role in (Role.COORDINATOR, Role.WORKER):
            uses.append(ExtendedKeyUsageOID.SERVER_AUTH)
        uri = x509.UniformResourceIdentifier(f"spiffe://shoal/{role}/{name}")
        builder = (
            _builder(name, key.public_key(), lifetime / datetime.timedelta(days=1))
            .issuer_name(self._certificate.subject)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
            .add_extension(x509.SubjectAlternativeName([*map(_general_name, hosts), uri]), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
        certificate = builder.sign(self._key, hashes.SHA256())
        folder.mkdir(parents=True, exist_ok=True)
        write_private(folder / KEY, _key_pem(key))
        _write(folder / CERTIFICATE, certificate.public_bytes(Encoding.PEM))
        _write(folder / AUTHORITIES, self.pem)

    def _save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        write_private(folder / CA_KEY, _key_pem(self._key))
        _write(folder / AUTHORITIES, self.pem)


def issue_all(folder: Path, hosts: Sequence[str]) -> list[Path]:
    """Writes certificates for all services and roles into folders below `folder`. Returns these folders.

    The first call makes the authority in `folder/ca`, and later calls use the same authority again. The coordinator's
    certificate names `hosts` and the hosts of its earlier certificate. Raises `FailedPrecondition` for damaged files.
    """
    authority = Authority.open(folder / "ca")
    of_coordinator = dict.fromkeys([*hosts, *_earlier_hosts(folder / "coordinator" / CERTIFICATE), *LOCAL_HOSTS])
    issued = {
        "coordinator": (Role.COORDINATOR, tuple(of_coordinator)),
        "generator": (Role.WORKER, (WORKER_NAME,)),
        "learner": (Role.WORKER, (WORKER_NAME,)),
        "reward": (Role.WORKER, (WORKER_NAME,)),
        "operator": (Role.OPERATOR, ()),
        "viewer": (Role.VIEWER, ()),
    }
    for name, (role, names) in issued.items():
        authority.issue(folder / name, role, name, names)
    return [folder / name for name in issued]


def _earlier_hosts(path: Path) -> list[str]:
    """Returns the names and addresses in a certificate; an empty list without the file."""
    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except FileNotFoundError:
        return []
    except (ValueError, x509.ExtensionNotFound):
        raise FailedPrecondition(
            f"{path} is not a coordinator's certificate, so the renewed certificate cannot keep its hosts: remove the "
            "file, and name the hosts with --host",
            reason=ErrorReason.CREDENTIALS,
        ) from None
    addresses = map(str, names.get_values_for_type(x509.IPAddress))
    return [*names.get_values_for_type(x509.DNSName), *addresses]


def write_private(path: Path, content: bytes) -> None:
    """Writes a file that only its owner can read. A reader sees either the old or the new content, never a mixture."""
    _write(path, content, mode=0o600)


def _write(path: Path, content: bytes, mode: int = 0o644) -> None:
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # Mode 0600.
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        os.fchmod(file.fileno(), mode)
    Path(temporary).replace(path)


def _builder(name: str, key: ec.EllipticCurvePublicKey, days: float) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    end = now + datetime.timedelta(days=days)
    return (
        x509.CertificateBuilder()
        .subject_name(_name(name))
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(min(now, end) - _CLOCK_SKEW)
        .not_valid_after(end)
    )


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _damaged(folder: Path) -> FailedPrecondition:
    return FailedPrecondition(
        f"the files in {folder} are not an authority made by `shoal certs`: choose another folder, or remove the files",
        reason=ErrorReason.CREDENTIALS,
    )
