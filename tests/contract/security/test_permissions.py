"""Every rpc of every service, enumerated from the descriptors: who may call it, and what everybody else is told."""

from datetime import timedelta
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from shoal.rpc.auth.credentials import Credentials
from shoal.rpc.auth.permissions import ALLOWED, Role
from shoal.rpc.auth.tls import TlsFolder
from tests.support.secured import DESCRIBING_METHODS, METHODS, Pki, Tokens, call, secured_server, tls_channel

OK, UNAVAILABLE = grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE
UNKNOWN_CALLER = (grpc.StatusCode.UNAUTHENTICATED, "UNAUTHENTICATED")
WRONG_ROLE = (grpc.StatusCode.PERMISSION_DENIED, "PERMISSION_DENIED")


def expected(path: str, role: Role) -> tuple[grpc.StatusCode, str]:
    return (OK, "") if role in ALLOWED[path] else WRONG_ROLE


async def statuses(channel: grpc.aio.Channel, token: str = "") -> dict[str, tuple[grpc.StatusCode, str]]:
    return {path: await call(channel, path, token=token) for path in METHODS}


def test_every_rpc_has_its_roles() -> None:
    assert set(ALLOWED) == {*METHODS, *DESCRIBING_METHODS}, (
        "give each rpc its roles in shoal/rpc/auth/permissions.py",
        set(ALLOWED) ^ {*METHODS, *DESCRIBING_METHODS},
    )


def test_the_roles_are_those_of_the_table_in_the_docs() -> None:
    """Viewers read, operators do that too and steer, workers report, and only a coordinator commands workers."""
    for path in METHODS:
        service, _, name = path.removeprefix("/").partition("/")
        roles = ALLOWED[path]
        reads = name.startswith(("Get", "List", "Watch"))
        assert (Role.VIEWER in roles) == reads, path
        assert not reads or Role.OPERATOR in roles, path
        if service == "shoal.v1.CoordinatorService":
            assert roles == {Role.WORKER} if name in ("RegisterWorker", "Heartbeat") else Role.OPERATOR in roles, path
        else:
            assert Role.COORDINATOR in roles, path
            plays = name == "RunEpisode"  # An operator may play a game.
            assert reads or roles & {Role.VIEWER, Role.OPERATOR} == ({Role.OPERATOR} if plays else set()), path


@pytest.mark.parametrize("role", Role)
async def test_a_certificate_may_call_what_its_role_allows(role: Role, tmp_path: Path) -> None:
    pki = Pki(tmp_path)
    async with (
        secured_server(Credentials(TlsFolder(pki.issue(Role.COORDINATOR)))) as address,
        tls_channel(address, pki.authority.pem, pki.issue(role, name="caller")) as channel,
    ):
        assert await statuses(channel) == {path: expected(path, role) for path in METHODS}


@pytest.mark.parametrize("with_tls", [True, False])
async def test_a_token_may_call_what_its_role_allows_and_without_one_nothing(with_tls: bool, tmp_path: Path) -> None:
    pki, tokens = Pki(tmp_path), Tokens(tmp_path)
    async with secured_server(tokens.server(pki.issue(Role.COORDINATOR) if with_tls else None)) as address:
        channel = tls_channel(address, pki.authority.pem) if with_tls else grpc.aio.insecure_channel(address)
        async with channel:
            for role in Role:
                found = await statuses(channel, tokens.of[role])
                assert found == {path: expected(path, role) for path in METHODS}, role
            assert set((await statuses(channel)).values()) == {UNKNOWN_CALLER}
            assert set((await statuses(channel, "a-token-of-nobody-at-all")).values()) == {UNKNOWN_CALLER}


async def test_a_certificate_without_a_role_may_call_nothing(tmp_path: Path) -> None:
    pki = Pki(tmp_path)
    nameless = pki.issue(Role.VIEWER, name="slash/in/the/name")  # So its URI is none of ours.
    async with (
        secured_server(Credentials(TlsFolder(pki.issue(Role.COORDINATOR)))) as address,
        tls_channel(address, pki.authority.pem, nameless) as channel,
    ):
        assert set((await statuses(channel)).values()) == {UNKNOWN_CALLER}


@pytest.mark.parametrize("caller", ["expired", "foreign", "none", "plaintext", "server's own name"])
async def test_a_stranger_does_not_connect(caller: str, tmp_path: Path) -> None:
    pki, others = Pki(tmp_path), Pki(tmp_path / "others")
    async with secured_server(Credentials(TlsFolder(pki.issue(Role.COORDINATOR)))) as address:
        if caller == "plaintext":
            channel = grpc.aio.insecure_channel(address)
        elif caller == "none":
            channel = tls_channel(address, pki.authority.pem)
        elif caller == "foreign":
            channel = tls_channel(address, pki.authority.pem, others.issue(Role.OPERATOR))
        elif caller == "expired":
            expired = pki.issue(Role.OPERATOR, lifetime=timedelta(hours=-1))
            channel = tls_channel(address, pki.authority.pem, expired)
        else:  # The server is no worker: a client that looks for one does not talk to it.
            channel = tls_channel(address, pki.authority.pem, pki.issue(Role.COORDINATOR), server_name="worker.shoal")
        async with channel:
            assert set((await statuses(channel)).values()) == {(UNAVAILABLE, "")}


async def test_health_is_open_and_what_describes_the_server_is_for_viewers_and_operators(tmp_path: Path) -> None:
    pki, tokens = Pki(tmp_path), Tokens(tmp_path)
    async with (
        secured_server(tokens.server(pki.issue(Role.COORDINATOR))) as address,
        tls_channel(address, pki.authority.pem) as channel,
    ):
        health = health_pb2_grpc.HealthStub(channel)
        answer = await health.Check(health_pb2.HealthCheckRequest(), timeout=30)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        for path in DESCRIBING_METHODS:
            assert await call(channel, path) == UNKNOWN_CALLER, path
            for role in Role:
                code, reason = await call(channel, path, token=tokens.of[role])
                if role in (Role.VIEWER, Role.OPERATOR):
                    assert reason == "" and code in (OK, grpc.StatusCode.NOT_FOUND), (path, role, code)
                else:
                    assert (code, reason) == WRONG_ROLE, (path, role)


async def test_a_method_without_an_entry_is_refused_to_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = Tokens(tmp_path)
    monkeypatch.delitem(ALLOWED, "/shoal.v1.CoordinatorService/GetRun")
    async with secured_server(tokens.server(None)) as address, grpc.aio.insecure_channel(address) as channel:
        for role in Role:
            assert await call(channel, "/shoal.v1.CoordinatorService/GetRun", token=tokens.of[role]) == WRONG_ROLE


async def test_without_certificates_and_tokens_everybody_may_call_everything() -> None:
    async with secured_server(Credentials()) as address, grpc.aio.insecure_channel(address) as channel:
        assert set((await statuses(channel)).values()) == {(OK, "")}
