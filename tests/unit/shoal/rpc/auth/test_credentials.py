"""Half-configured is refused at the start, with the file or option that is missing or wrong."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from shoal.errors import FailedPrecondition, InvalidArgument
from shoal.rpc.auth.credentials import Credentials
from shoal.rpc.auth.permissions import Role
from shoal.rpc.auth.tls import TlsFolder
from shoal.rpc.auth.tokens import OwnToken, TokensFile
from shoal.rpc.channel import connect
from shoal.rpc.server import RpcServer
from tests.support.secured import Pki, Tokens
from tests.support.wordings import has_all


@pytest.fixture
def pki(tmp_path: Path) -> Pki:
    return Pki(tmp_path)


@pytest.fixture
def folder(pki: Pki) -> Path:
    return pki.issue(Role.WORKER)


@pytest.fixture(autouse=True)
def no_tokens_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SHOAL_TOKEN", "SHOAL_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)


def of_worker(tls_dir: Path | None, tokens_file: Path | None = None) -> Credentials:
    return Credentials.of_server(Role.WORKER, tls_dir=tls_dir, tokens_file=tokens_file)


def refusal(make: Callable[[], object]) -> str:
    with pytest.raises(FailedPrecondition) as raised:
        make()
    assert raised.value.reason == "CREDENTIALS"
    return raised.value.message


def test_a_whole_folder_is_accepted(folder: Path) -> None:
    assert of_worker(folder).knows_callers
    assert not of_worker(None).knows_callers


@pytest.mark.parametrize(
    ("removed", "message"),
    [
        (("tls.key",), "the folder has tls.crt, but tls.key is missing"),
        (("tls.crt",), "the folder has tls.key, but tls.crt is missing"),
        (("ca.crt",), "ca.crt is missing"),
        (("tls.crt", "tls.key"), "tls.crt and tls.key are missing, but a server needs these files"),
        (("tls.crt", "tls.key", "ca.crt"), "ca.crt is missing"),
    ],
)
def test_a_missing_file_is_named(folder: Path, removed: tuple[str, ...], message: str) -> None:
    for name in removed:
        (folder / name).unlink()
    assert message in (text := refusal(lambda: of_worker(folder))) and str(folder) in text, text


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    assert refusal(lambda: of_worker(tmp_path / "certs")).partition(": ")[0].endswith("certs")


def test_the_folder_around_those_of_all_processes_names_them(folder: Path) -> None:
    assert refusal(lambda: of_worker(folder.parent)).endswith(f": {folder}")


def test_a_key_of_another_certificate_is_refused(pki: Pki, folder: Path) -> None:
    other = pki.issue(Role.WORKER, name="other")
    (folder / "tls.key").write_bytes((other / "tls.key").read_bytes())
    assert has_all(refusal(lambda: of_worker(folder)), "tls.key", "tls.crt")


@pytest.mark.parametrize("name", ["tls.crt", "tls.key", "ca.crt"])
def test_a_file_that_is_no_pem_is_refused(folder: Path, name: str) -> None:
    (folder / name).write_bytes(b"\x00not PEM")
    assert f"{name} must " in refusal(lambda: of_worker(folder))


def test_an_expired_certificate_is_refused_with_its_date(pki: Pki) -> None:
    folder = pki.issue(Role.WORKER, lifetime=timedelta(hours=-1))
    assert "tls.crt expired on 20" in refusal(lambda: of_worker(folder))


def test_a_certificate_of_a_foreign_authority_is_refused(pki: Pki, folder: Path, tmp_path: Path) -> None:
    (folder / "ca.crt").write_bytes(Pki(tmp_path / "foreign").authority.pem)
    assert has_all(refusal(lambda: of_worker(folder)), "ca.crt", "tls.crt")
    with (folder / "ca.crt").open("ab") as file:  # Two authorities, as while one replaces the other.
        file.write(pki.authority.pem)
    assert of_worker(folder).knows_callers


@pytest.mark.parametrize(("mode", "is_refused"), [(0o644, True), (0o604, True), (0o602, True), (0o640, False)])
def test_a_key_that_every_user_can_read_is_refused(folder: Path, mode: int, is_refused: bool) -> None:
    (folder / "tls.key").chmod(mode)
    if is_refused:
        assert "tls.key: chmod 600" in refusal(lambda: of_worker(folder))
    else:
        of_worker(folder)


def test_a_certificate_of_another_role_is_refused(pki: Pki) -> None:
    message = refusal(lambda: of_worker(pki.issue(Role.OPERATOR)))
    assert has_all(message, "operator/operator", "spiffe://shoal/worker/<name>"), message


def test_a_worker_without_its_fixed_name_is_refused(pki: Pki) -> None:
    folder = pki.issue(Role.WORKER, hosts=("generator-0",))
    assert " worker.shoal" in (text := refusal(lambda: of_worker(folder)))
    assert "generator-0" in text


def test_tokens_of_callers_and_the_own_token_belong_together(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = Tokens(tmp_path).file
    assert "set SHOAL_TOKEN_FILE" in refusal(lambda: of_worker(folder, file))
    monkeypatch.setenv("SHOAL_TOKEN", "a-token-of-the-worker")
    assert of_worker(folder, file).tokens is not None
    assert "not --tokens-file" in refusal(lambda: of_worker(folder))
    monkeypatch.setenv("SHOAL_TOKEN_FILE", str(tmp_path / "token"))
    assert "both set: unset one" in refusal(lambda: of_worker(folder, file))


async def test_tokens_without_tls_are_for_loopback_alone(tmp_path: Path) -> None:
    tokens = Tokens(tmp_path)
    with pytest.raises(FailedPrecondition, match="--tokens-file is given without --tls-dir"):
        await RpcServer(listen="192.0.2.1:0", credentials=tokens.server(None)).start()
    with pytest.raises(FailedPrecondition, match=r"token .*TLS"):
        connect("192.0.2.1:1", "shoal.v1.CoordinatorService", Credentials(token=tokens.client(Role.OPERATOR)))


def test_a_client_needs_a_certificate_or_a_token(
    pki: Pki, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "person").mkdir()
    (tmp_path / "person" / "ca.crt").write_bytes(pki.authority.pem)
    assert "there is no token" in refusal(lambda: Credentials.of_client(tmp_path / "person"))
    monkeypatch.setenv("SHOAL_TOKEN", "a-token-of-the-operator")
    assert Credentials.of_client(tmp_path / "person").token is not None


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0", ":0", "0:0", "[::ffff:0.0.0.0]:0"])
async def test_every_interface_is_refused_unless_it_is_allowed(listen: str) -> None:
    with pytest.raises(InvalidArgument, match="--allow-wildcard-address"):
        await RpcServer(listen=listen).start()


async def test_every_interface_is_served_where_it_is_allowed() -> None:
    server = RpcServer(listen="0.0.0.0:0", allow_wildcard_address=True)
    await server.start()
    await server.stop(0)


def test_a_line_of_the_tokens_file_is_refused_by_its_number_and_not_repeated(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    for line in ("a-secret-token operator anna", f"{'0' * 64} admin anna", f"{'0' * 64} operator"):
        file.write_text(f"# people\n{line}\n")
        message = refusal(lambda: TokensFile(file))
        assert "line 2 " in message and "secret" not in message, message


def test_a_tokens_file_that_every_user_can_write_is_refused(tmp_path: Path) -> None:
    file = Tokens(tmp_path).file
    file.chmod(0o666)
    assert str(file) in refusal(lambda: TokensFile(file))


def test_a_token_that_others_can_read_or_that_is_none_is_refused_and_not_repeated(tmp_path: Path) -> None:
    file = tmp_path / "token"
    assert "cannot be read" in refusal(lambda: OwnToken(path=file))
    file.write_text("a-token-of-the-operator\n")
    file.chmod(0o644)
    assert "chmod 600" in refusal(lambda: OwnToken(path=file))
    for value in ("too-short", "a secret with spaces in it", ""):
        message = refusal(lambda: OwnToken(value=value))  # noqa: B023 - called at once
        assert "is no token" in message and (not value or value not in message), message


def test_no_text_of_credentials_has_a_secret(pki: Pki, folder: Path, tmp_path: Path) -> None:
    credentials = Credentials(TlsFolder(folder), Tokens(tmp_path).server(None).tokens, OwnToken(value="s" * 20))
    assert "ssss" not in repr(credentials) and "PRIVATE" not in repr(credentials.tls), repr(credentials)
