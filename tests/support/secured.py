"""Servers of all services that answer every rpc with an empty message, and clients of every kind."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message_factory import GetMessageClass
from google.rpc import error_details_pb2, status_pb2
from grpc_channelz.v1 import channelz_pb2
from grpc_reflection.v1alpha import reflection_pb2

from shoal.rpc.audit import Record
from shoal.rpc.auth.authority import LOCAL_HOSTS, Authority
from shoal.rpc.auth.credentials import Credentials
from shoal.rpc.auth.permissions import Role
from shoal.rpc.auth.tls import WORKER_NAME, TlsFolder
from shoal.rpc.auth.tokens import OwnToken, TokensFile, digest_of
from shoal.rpc.server import RpcServer
from shoal.v1 import coordinator_pb2, environment_pb2, generator_pb2, learner_pb2, reward_pb2
from tests.support.loopback import ADD_TO_SERVER, started

OURS = [
    service
    for module in (coordinator_pb2, environment_pb2, generator_pb2, learner_pb2, reward_pb2)
    for service in module.DESCRIPTOR.services_by_name.values()
]
DESCRIBING = [
    *reflection_pb2.DESCRIPTOR.services_by_name.values(),
    *channelz_pb2.DESCRIPTOR.services_by_name.values(),
]
METHODS: dict[str, MethodDescriptor] = {
    f"/{service.full_name}/{method.name}": method for service in OURS for method in service.methods
}
"""Every rpc of the four services, by its path."""
DESCRIBING_METHODS = [f"/{service.full_name}/{method.name}" for service in DESCRIBING for method in service.methods]
PATIENCE_S = 30.0


class Pki:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = Authority.create()

    def issue(
        self,
        role: Role,
        *,
        name: str = "",
        hosts: tuple[str, ...] | None = None,
        lifetime: timedelta = timedelta(days=1),
    ) -> Path:
        """Writes a certificate as `shoal certs` does. Returns its folder."""
        name = name or str(role)
        if hosts is None:
            hosts = {Role.COORDINATOR: LOCAL_HOSTS, Role.WORKER: (WORKER_NAME,)}.get(role, ())
        self.authority.issue(self.folder / name, role, name, hosts, lifetime=lifetime)
        return self.folder / name


class Tokens:
    def __init__(self, folder: Path) -> None:
        self.file = folder / "tokens.txt"
        self.of = {role: f"a-token-of-the-{role}" for role in Role}
        self.write(*Role)

    def write(self, *roles: Role) -> None:
        lines = [f"{digest_of(self.of[role])} {role} test-{role}\n" for role in roles]
        self.file.write_text("# SHA-256, role, name\n" + "".join(lines))

    def server(self, tls: Path | None) -> Credentials:
        return Credentials(TlsFolder(tls) if tls else None, TokensFile(self.file))

    def client(self, role: Role) -> OwnToken:
        return OwnToken(value=self.of[role])


def _servicer(service: Any) -> Any:
    """A servicer whose every method answers with one empty message."""

    def method_of(method: MethodDescriptor) -> Any:
        answer = GetMessageClass(method.output_type)

        async def unary(self: Any, request: Any, context: Any) -> Any:
            return answer()

        async def stream(self: Any, request: Any, context: Any) -> AsyncIterator[Any]:
            yield answer()

        return stream if method.server_streaming else unary

    return type(service.name, (), {method.name: method_of(method) for method in service.methods})()


@asynccontextmanager
async def secured_server(credentials: Credentials, audit: Record | None = None, *, port: int = 0) -> AsyncIterator[str]:
    """Serves all four services on loopback with these credentials; yields host:port."""
    server = RpcServer(listen=f"127.0.0.1:{port}", credentials=credentials, audit=audit)
    for service in OURS:
        server.add(ADD_TO_SERVER[service.full_name], _servicer(service), service.full_name)
    async with started(server) as address:
        yield address


def tls_channel(
    address: str, authorities: bytes, client: Path | None = None, *, server_name: str = ""
) -> grpc.aio.Channel:
    """Opens a channel of gRPC itself, with the certificate of a folder or without one."""
    certificate = (client / "tls.crt").read_bytes() if client else None
    key = (client / "tls.key").read_bytes() if client else None
    options = [("grpc.ssl_target_name_override", server_name)] if server_name else []
    return grpc.aio.secure_channel(
        address, grpc.ssl_channel_credentials(authorities, key, certificate), options=options
    )


async def call(channel: grpc.aio.Channel, path: str, *, token: str = "") -> tuple[grpc.StatusCode, str]:
    """Calls a method with one empty message, as a unary call whatever its kind: on the wire it is the same.

    Returns the status, and the reason of the ErrorInfo in its details.
    """
    metadata = (("authorization", f"Bearer {token}"),) if token else ()
    made = channel.unary_stream(path)(b"", timeout=PATIENCE_S, metadata=metadata)
    try:
        async for _ in made:
            pass
    except grpc.aio.AioRpcError:
        pass
    details = dict(await made.trailing_metadata() or ()).get("grpc-status-details-bin", b"")
    info = error_details_pb2.ErrorInfo()
    for detail in status_pb2.Status.FromString(details).details:
        detail.Unpack(info)
    return await made.code(), info.reason
