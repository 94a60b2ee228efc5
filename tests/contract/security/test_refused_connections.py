"""What a person reads where a server cannot be reached for its certificate."""

import asyncio
from pathlib import Path

import pytest

from services.coordinator import client
from shoal.errors import Unavailable
from shoal.rpc.auth.credentials import Credentials
from shoal.rpc.auth.permissions import Role
from shoal.rpc.auth.tls import TlsFolder
from tests.support.secured import Pki, secured_server


async def refusal(address: str) -> str:
    with pytest.raises(Unavailable) as raised:
        await asyncio.to_thread(client.list_workers, address)
    return raised.value.message


async def test_the_names_of_a_certificate_for_another_host_come_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pki = Pki(tmp_path)
    monkeypatch.setenv("SHOAL_TLS_DIR", str(pki.issue(Role.OPERATOR)))
    server = Credentials(TlsFolder(pki.issue(Role.COORDINATOR, hosts=("train.example", "10.0.0.9"))))
    async with secured_server(server) as address:
        message = await refusal(address)
    assert f"coordinator at {address} is not for 127.0.0.1" in message, message
    assert "train.example, 10.0.0.9" in message and "--host 127.0.0.1" in message, message


async def test_a_certificate_of_another_authority_and_a_server_without_tls_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = Pki(tmp_path / "ours"), Pki(tmp_path / "theirs")
    monkeypatch.setenv("SHOAL_TLS_DIR", str(ours.issue(Role.OPERATOR)))
    async with secured_server(Credentials(TlsFolder(theirs.issue(Role.COORDINATOR)))) as address:
        message = await refusal(address)
        assert "certificate" in message and f"coordinator at {address} " in message, message
    async with secured_server(Credentials()) as address:
        assert (message := await refusal(address)).startswith(f"the coordinator at {address} does not use TLS"), message
