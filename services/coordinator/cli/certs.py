"""`shoal certs` and `shoal token`: certificates and tokens for development and small private networks."""

import re
from pathlib import Path
from typing import Annotated

import typer

from shoal.errors import AlreadyExists, InvalidArgument

_HOST = re.compile(r"[0-9A-Za-z*]([0-9A-Za-z.-]*[0-9A-Za-z])?|[0-9a-fA-F:]*:[0-9a-fA-F:.]*")


def certs(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where to make a folder for each service and role.")],
    host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HOST",
            help="Name or address at which workers and people reach the coordinator. Added to the names of this "
            "machine and of an earlier certificate in FOLDER. Repeatable.",
        ),
    ] = None,
) -> None:
    """Make certificates for development.

    Makes an authority, and keys and certificates for all services and roles. A repeated call renews the certificates.
    """
    from shoal.rpc.auth.authority import CERTIFICATE_DAYS, issue_all

    hosts = [name.removeprefix("[").removesuffix("]") for name in host or []]
    for name in hosts:
        if not _HOST.fullmatch(name):
            raise InvalidArgument(f"--host {name!r} is not a host: give a name or an address, without a port")
    print(f"valid for {CERTIFICATE_DAYS} days; give each process its own folder; keep {folder / 'ca'} secret:")
    for made in issue_all(folder, hosts):
        print(f"  {made}")


def token(
    role: Annotated[str, typer.Argument(metavar="ROLE", help="coordinator, worker, operator or viewer.")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the token's owner, for logs.")],
    file: Annotated[Path, typer.Argument(metavar="FILE", help="New file for the token; name it in SHOAL_TOKEN_FILE.")],
) -> None:
    """Make a token. Prints the line to add to the tokens file of the servers."""
    import secrets

    from shoal.rpc.auth.authority import write_private
    from shoal.rpc.auth.permissions import Role
    from shoal.rpc.auth.tokens import digest_of

    if role not in set(Role):
        raise InvalidArgument(f"ROLE {role!r} is unknown; choose one of {', '.join(Role)}")
    if not name or any(character.isspace() or character in "/#" for character in name):
        raise InvalidArgument(f"NAME must not be empty or contain spaces, '/' or '#' (given: {name!r})")
    if file.exists():
        raise AlreadyExists(f"{file} exists already: choose another file, or remove it")
    secret = secrets.token_urlsafe(32)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_private(file, f"{secret}\n".encode())
    print(f"{digest_of(secret)} {role} {name}")
