"""The tokens of `shoal train --private`."""

from pathlib import Path

from services.coordinator.launcher.plan import ProcessPlan
from services.coordinator.launcher.run_tokens import RunTokens
from shoal.rpc.auth.permissions import Role
from shoal.rpc.auth.tokens import OwnToken, TokensFile


def test_each_process_gets_the_token_of_its_role_and_all_accept_each_other(tmp_path: Path) -> None:
    tokens = RunTokens(tmp_path / "sums" / "tokens")
    for kind, role in (("coordinator", Role.COORDINATOR), ("learner", Role.WORKER), ("reward", Role.WORKER)):
        environment = tokens.given_to(ProcessPlan(kind, kind, (), {"A": "1", "SHOAL_TOKEN_FILE": ""})).environment
        caller = TokensFile(Path(environment["SHOAL_TOKENS_FILE"])).caller(
            OwnToken(path=Path(environment["SHOAL_TOKEN_FILE"])).value()
        )
        assert caller is not None and (caller.role, caller.name) == (role, "sums")
        assert environment["A"] == "1"
    own = tokens.credentials().token
    accepted = TokensFile(tmp_path / "sums" / "tokens" / "accepted")
    assert own is not None and str(accepted.caller(own.value())) == "operator/sums"


def test_nobody_else_reads_the_tokens_and_a_new_start_makes_new_ones(tmp_path: Path) -> None:
    folder = tmp_path / "tokens"
    first = RunTokens(folder).file_of(Role.OPERATOR).read_text()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {(folder / role).stat().st_mode & 0o777 for role in Role} == {0o600}
    assert RunTokens(folder).file_of(Role.OPERATOR).read_text() != first
