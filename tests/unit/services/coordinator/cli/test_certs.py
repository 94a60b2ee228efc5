"""`shoal certs` and `shoal token`."""

from pathlib import Path

import pytest
from cryptography import x509

from shoal.rpc.auth.certificates import Certificate, check_pair
from shoal.rpc.auth.permissions import Role
from shoal.rpc.auth.tokens import OwnToken, TokensFile
from tests.support.parsed_commands import Shoal


def read(folder: Path) -> Certificate:
    return check_pair(*((folder / name).read_bytes() for name in ("tls.crt", "tls.key", "ca.crt")))


def test_there_is_a_certificate_for_each_service_and_role(shoal: Shoal, tmp_path: Path) -> None:
    code, text, _ = shoal("certs", str(tmp_path), "--host", "coordinator.example", "--host", "[fd00::1]")
    assert code == 0
    found = {folder.name: read(folder) for folder in tmp_path.iterdir() if folder.name != "ca"}
    assert {name: str(facts.caller) for name, facts in found.items()} == {
        "coordinator": "coordinator/coordinator",
        "generator": "worker/generator",
        "learner": "worker/learner",
        "reward": "worker/reward",
        "operator": "operator/operator",
        "viewer": "viewer/viewer",
    }
    assert found["coordinator"].names == ("coordinator.example", "localhost", "fd00::1", "127.0.0.1", "::1")
    assert found["learner"].names == ("worker.shoal",), "a worker cannot pose as the coordinator"
    assert found["operator"].names == ()
    assert {key.stat().st_mode & 0o777 for key in tmp_path.rglob("*.key")} == {0o600}
    assert all(str(tmp_path / name) in text for name in found)


def test_a_renewed_coordinator_keeps_the_hosts_at_which_others_reach_it(shoal: Shoal, tmp_path: Path) -> None:
    assert shoal("certs", str(tmp_path), "--host", "coordinator.example", "--host", "10.0.0.1")[0] == 0
    before = read(tmp_path / "coordinator").names
    assert shoal("certs", str(tmp_path))[0] == 0
    assert set(read(tmp_path / "coordinator").names) == set(before)
    assert shoal("certs", str(tmp_path), "--host", "new.example")[0] == 0
    assert set(read(tmp_path / "coordinator").names) == {*before, "new.example"}
    (tmp_path / "coordinator" / "tls.crt").write_text("damaged")
    code, _, error = shoal("certs", str(tmp_path))
    assert code == 5 and "--host" in error and str(tmp_path / "coordinator") in error, error


def test_a_second_time_the_certificates_are_renewed_and_the_authority_stays(shoal: Shoal, tmp_path: Path) -> None:
    assert shoal("certs", str(tmp_path))[0] == 0
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.crt")}
    assert shoal("certs", str(tmp_path))[0] == 0
    changed = {path.name for path, content in before.items() if path.read_bytes() != content}
    assert changed == {"tls.crt"}
    serials = {x509.load_pem_x509_certificate(path.read_bytes()).serial_number for path in tmp_path.rglob("tls.crt")}
    assert len(serials) == 6


@pytest.mark.parametrize("host", ["coordinator:50050", "http://coordinator", "a b", ""])
def test_a_host_that_is_none_is_refused(shoal: Shoal, tmp_path: Path, host: str) -> None:
    code, _, error = shoal("certs", str(tmp_path / "certs"), "--host", host)
    assert code == 2 and "--host" in error and "without a port" in error, error
    assert not (tmp_path / "certs").exists()


def test_another_authority_is_not_overwritten(shoal: Shoal, tmp_path: Path) -> None:
    (tmp_path / "ca").mkdir()
    for name in ("ca.crt", "ca.key"):
        (tmp_path / "ca" / name).write_text("of somebody else")
    code, _, error = shoal("certs", str(tmp_path))
    assert code == 5 and str(tmp_path / "ca") in error, error


def test_a_token_goes_to_its_file_and_its_digest_to_the_tokens_file(shoal: Shoal, tmp_path: Path) -> None:
    code, line, _ = shoal("token", "operator", "anna", str(tmp_path / "anna"))
    assert code == 0
    (tmp_path / "tokens.txt").write_text(line)
    token = OwnToken(path=tmp_path / "anna").value()
    caller = TokensFile(tmp_path / "tokens.txt").caller(token)
    assert caller is not None and (caller.role, caller.name) == (Role.OPERATOR, "anna")
    assert token not in line
    assert shoal("token", "operator", "anna", str(tmp_path / "anna"))[0] == 5, "a token is not overwritten"


@pytest.mark.parametrize(("role", "name"), [("admin", "anna"), ("viewer", "an na"), ("viewer", "a/b")])
def test_a_token_of_no_role_or_name_is_refused(shoal: Shoal, tmp_path: Path, role: str, name: str) -> None:
    code, _, error = shoal("token", role, name, str(tmp_path / "token"))
    assert code == 2 and not (tmp_path / "token").exists(), error
