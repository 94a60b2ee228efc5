"""Certificates and tokens are renewed under running servers and clients."""

import asyncio
import logging
import os
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import grpc
import pytest

from shoal.errors import ShoalError, Unauthenticated, Unavailable
from shoal.rpc import options
from shoal.rpc.auth.credentials import Credentials
from shoal.rpc.auth.permissions import Role
from shoal.rpc.auth.tls import TlsFolder
from shoal.rpc.auth.tokens import OwnToken
from shoal.rpc.channel import Channel, connect
from shoal.v1 import coordinator_pb2 as pb
from shoal.v1.coordinator_pb2_grpc import CoordinatorServiceServicer, CoordinatorServiceStub
from tests.support.loopback import COORDINATOR, serving
from tests.support.secured import Pki, Tokens, call, tls_channel
from tests.support.waiting import PATIENCE_S, eventually

GET_RUN = "/shoal.v1.CoordinatorService/GetRun"


class Gated(CoordinatorServiceServicer):
    """Answers GetRun at once; WatchRun sends one message, and ends when the gate opens."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()

    async def GetRun(self, request: Any, context: Any) -> pb.GetRunResponse:
        return pb.GetRunResponse(run=pb.Run(run_id="r"))

    async def WatchRun(self, request: Any, context: Any) -> AsyncIterator[pb.WatchRunResponse]:
        yield pb.WatchRunResponse(event=pb.RunEvent(sequence=1))
        await self.gate.wait()
        yield pb.WatchRunResponse(event=pb.RunEvent(sequence=2))


def coordinator(credentials: Credentials, servicer: Gated | None = None) -> AbstractAsyncContextManager[str]:
    return serving(servicer or Gated(), COORDINATOR, credentials=credentials)


async def get_run(channel: grpc.aio.Channel) -> str:
    return (await CoordinatorServiceStub(channel).GetRun(pb.GetRunRequest(), timeout=PATIENCE_S)).run.run_id


async def is_refused(channel: grpc.aio.Channel) -> bool:
    try:
        await get_run(channel)
    except Unavailable:
        return True
    return False


def replace(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Replaces a file as a whole, as `shoal certs` and Kubernetes do."""
    temporary = path.with_suffix(".new")
    temporary.write_bytes(content)
    temporary.chmod(mode)
    os.replace(temporary, path)


@pytest.fixture
def short_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes servers end connections after half a second instead of an hour."""
    settings = [*options.SERVER, ("grpc.max_connection_age_ms", 500)]
    monkeypatch.setattr(options, "SERVER_WITH_TLS", settings)


@pytest.mark.usefixtures("short_connections")
async def test_an_authority_is_replaced_under_a_server_and_a_client_that_go_on(tmp_path: Path) -> None:
    old, new = Pki(tmp_path), Pki(tmp_path / "new")
    both = old.authority.pem + new.authority.pem
    server, client = old.issue(Role.COORDINATOR), old.issue(Role.OPERATOR)
    leftover = new.folder / "leftover"
    old.authority.issue(leftover, Role.OPERATOR, "leftover")  # One that nobody renews.
    for folder in (server, client, leftover):
        replace(folder / "ca.crt", both)
    async with (
        coordinator(Credentials(TlsFolder(server))) as address,
        connect(address, COORDINATOR, Credentials(TlsFolder(client))) as goes_on,
        connect(address, COORDINATOR, Credentials(TlsFolder(leftover))) as left_over,
    ):
        assert await get_run(goes_on) == await get_run(left_over) == "r"
        for role, folder in ((Role.COORDINATOR, server), (Role.OPERATOR, client)):
            renewed = new.issue(role)
            replace(folder / "tls.key", (renewed / "tls.key").read_bytes())
            replace(folder / "tls.crt", (renewed / "tls.crt").read_bytes())
        assert await get_run(goes_on) == "r"
        # The server shows the new authority's certificate: a client that trusts this one alone connects.
        async with tls_channel(address, new.authority.pem, new.issue(Role.VIEWER)) as trusting_new:
            assert (await call(trusting_new, GET_RUN))[0] is grpc.StatusCode.OK
        replace(server / "ca.crt", new.authority.pem)
        replace(client / "ca.crt", new.authority.pem)
        await eventually(lambda: is_refused(left_over))
        assert await get_run(goes_on) == "r"


async def test_a_certificate_without_its_key_is_not_used_until_the_key_is_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pki, other = Pki(tmp_path), Pki(tmp_path / "other")
    server = pki.issue(Role.COORDINATOR)
    renewed = other.issue(Role.COORDINATOR)
    replace(server / "ca.crt", pki.authority.pem + other.authority.pem)
    async with coordinator(Credentials(TlsFolder(server))) as address:

        async def shows(authority: Pki) -> bool:
            async with tls_channel(address, authority.authority.pem, pki.issue(Role.VIEWER)) as channel:
                return (await call(channel, GET_RUN))[0] is grpc.StatusCode.OK

        with caplog.at_level(logging.WARNING):
            replace(server / "tls.crt", (renewed / "tls.crt").read_bytes())
            assert (await shows(pki), await shows(other)) == (True, False)
        assert any("tls.key is not" in str(vars(record)) for record in caplog.records)
        replace(server / "tls.key", (renewed / "tls.key").read_bytes())
        assert (await shows(pki), await shows(other)) == (False, True)


async def test_a_call_in_flight_ends_on_the_connection_on_which_it_began(tmp_path: Path) -> None:
    pki, servicer = Pki(tmp_path), Gated()
    client = pki.issue(Role.OPERATOR)
    async with (
        coordinator(Credentials(TlsFolder(pki.issue(Role.COORDINATOR))), servicer) as address,
        connect(address, COORDINATOR, Credentials(TlsFolder(client))) as channel,
    ):
        assert isinstance(channel, Channel)
        watching = CoordinatorServiceStub(channel).WatchRun(pb.WatchRunRequest(), timeout=PATIENCE_S)
        responses = aiter(watching)
        assert (await anext(responses)).event.sequence == 1
        before = channel._connection
        pki.issue(Role.OPERATOR)
        assert await get_run(channel) == "r"
        assert channel._connection is not before, "the renewed certificate makes another connection"
        servicer.gate.set()
        assert [response.event.sequence async for response in responses] == [2]
        await eventually(lambda: before.inner.get_state() is grpc.ChannelConnectivity.SHUTDOWN)


async def test_tokens_are_taken_in_and_out_under_a_running_server_and_client(tmp_path: Path) -> None:
    tokens = Tokens(tmp_path)
    file = tmp_path / "token"
    replace(file, tokens.of[Role.OPERATOR].encode())
    async with (
        coordinator(tokens.server(None)) as address,
        connect(address, COORDINATOR, Credentials(token=OwnToken(path=file))) as channel,
    ):
        assert await get_run(channel) == "r"
        tokens.write(Role.VIEWER)
        with pytest.raises(Unauthenticated, match="--tokens-file"):
            await get_run(channel)
        replace(file, tokens.of[Role.VIEWER].encode())
        assert await get_run(channel) == "r"
        tokens.file.write_text("half a li")
        assert await get_run(channel) == "r", "the tokens of before hold while the file cannot be read"


async def test_no_secret_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tokens, pki = Tokens(tmp_path), Pki(tmp_path)
    with caplog.at_level(logging.DEBUG):
        async with coordinator(tokens.server(pki.issue(Role.COORDINATOR))) as address:
            (tmp_path / "client").mkdir()
            (tmp_path / "client" / "ca.crt").write_bytes(pki.authority.pem)
            for token in (tokens.of[Role.OPERATOR], "a-token-of-nobody-at-all"):
                credentials = Credentials(TlsFolder(tmp_path / "client"), token=OwnToken(value=token))
                async with connect(address, COORDINATOR, credentials) as channel:
                    with pytest.raises(ShoalError) as raised:  # Gated does not implement it.
                        await CoordinatorServiceStub(channel).PauseRun(pb.PauseRunRequest(), timeout=PATIENCE_S)
                    assert "a-token" not in str(raised.value) + str(raised.value.metadata)
    written = "\n".join(str(vars(record)) for record in caplog.records)
    assert "call refused" in written and "a-token" not in written, written
