"""`shoal config check --deep`: labels and custom verifiers."""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from services.coordinator.cli.env.requests import check_environments_here
from shoal.config import parse_config
from shoal.errors import InvalidArgument
from shoal.models import adapter_check
from shoal.v1 import environment_pb2, environment_pb2_grpc, reward_pb2, reward_pb2_grpc
from tests.support.parsed_commands import Shoal
from tests.support.tiny_model import make_tiny_model
from tests.support.wordings import has_all
from tests.unit.services.reward.judge.judge_server import graded, http, judge_server_beside

Check = Callable[..., tuple[int, dict[str, Any], str]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def check(shoal: Shoal, model: Path, tmp_path: Path) -> Check:
    """Checks a configuration whose only row names the verifier "mine"; returns exit code, facts, standard error."""
    data = tmp_path / "data.jsonl"
    data.write_text('{"messages": "Why?", "ground_truth": "because", "dataset": "mine"}\n')
    config = tmp_path / "run.toml"
    config.write_text(
        f'[model]\npath = "{model}"\n[[data.sources]]\npath = "{data}"\n'
        "[data]\nmax_prompt_tokens = 200\n[sampling]\nmax_completion_tokens = 8\n"
    )

    def run(*overrides: str) -> tuple[int, dict[str, Any], str]:
        options = [option for override in overrides for option in ("--set", override)]
        code, out, error = shoal("config", "check", str(config), "--deep", "-o", "json", *options)
        return code, json.loads(out or "{}"), error

    return run


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ("", "reward.custom.mine.file: | {file} "),
        ("import no_such_module\n", "reward.custom.mine.file: |ModuleNotFoundError at {file}:1"),
        ("def score(completion:\n", "reward.custom.mine.file: |SyntaxError at {file}:1"),
        ("def score(text): return 1\n", "reward.custom.mine.function: |'text'"),
        ("def score(completion): return 'good'\n", "reward.custom.mine: |'good'|data.jsonl:1"),
        ("def score(completion): return completion[9]\n", "mine: |IndexError at {file}:1|data.jsonl:1"),
        ("import time\ndef score(completion): time.sleep(99)\n", "mine: |reward.timeout_s|data.jsonl:1"),
    ],
)
def test_a_deep_check_loads_each_custom_verifier_and_has_it_judge_a_row(
    check: Check, tmp_path: Path, source: str, named: str
) -> None:
    file = tmp_path / "score.py"
    if source:
        file.write_text(source)
    code, _, error = check(f"reward.custom.mine.file={file}", "reward.timeout_s=2", "data.malformed_labels=keep")
    assert code == 2 and has_all(error, *named.format(file=file).split("|")), error


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ('source = "games.py:Game"', "environments.game.source: "),
        ('source = "calculator", settings = {reward = 1}', "environments.game.source: Calculator "),
        ('source = "calculator"', ""),
        ('server = "127.0.0.1:1"', "environments.game.server: 127.0.0.1:1 does not list its environments"),
    ],
)
def test_a_deep_check_loads_each_environment_and_asks_servers(check: Check, table: str, message: str) -> None:
    code, facts, error = check(f'environments=[{{name = "game", {table}}}]', 'reward.remap={mine = "passthrough"}')
    assert code == (2 if message else 0) and message in error, error
    assert "server" not in table or "SHOAL_TLS_DIR is not set" in error, error
    if not message:
        assert facts["environments_loaded"] == ["game"]


class _Servers(reward_pb2_grpc.RewardServiceServicer, environment_pb2_grpc.EnvironmentServiceServicer):
    """Lists what it has, to callers with a token alone where it is `closed`."""

    closed = False
    unavailable = ""

    def ListVerifiers(self, request: Any, context: Any) -> reward_pb2.ListVerifiersResponse:
        self._open(context)
        return reward_pb2.ListVerifiersResponse(verifiers=[reward_pb2.VerifierInfo(name="mine")])

    def ListEnvironments(self, request: Any, context: Any) -> environment_pb2.ListEnvironmentsResponse:
        self._open(context)
        tools = [environment_pb2.ToolDefinition(name="guess")]
        game = environment_pb2.EnvironmentInfo(name="game", tools=tools, unavailable=self.unavailable)
        return environment_pb2.ListEnvironmentsResponse(environments=[game])

    def _open(self, context: Any) -> None:
        metadata = [key for key, _ in context.invocation_metadata()]
        assert "authorization" not in metadata, metadata
        if self.closed:
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "no token")


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, _Servers]]:
    """The address of a server of verifiers and environments, and what it answers."""
    monkeypatch.setenv("SHOAL_TOKEN", "mine alone")
    server, servicer = grpc.server(ThreadPoolExecutor(4)), _Servers()
    reward_pb2_grpc.add_RewardServiceServicer_to_server(servicer, server)
    environment_pb2_grpc.add_EnvironmentServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}", servicer
    server.stop(None).wait()


def test_a_deep_check_asks_reward_servers_for_their_verifiers(check: Check, servers: tuple[str, _Servers]) -> None:
    address, servicer = servers
    own = (f"reward.servers.own.address={address}", "data.malformed_labels=keep")
    code, facts, error = check(*own)
    assert (code, facts.get("servers_asked")) == (0, {"reward.servers.own": ["mine"]}), error
    assert "verifiers_not_known_before_the_run_starts" not in facts
    servicer.closed = True
    code, facts, error = check(*own)
    assert code == 0 and facts["servers_asked"]["reward.servers.own"].startswith(f"{address} "), error
    assert facts["verifiers_not_known_before_the_run_starts"] == ["mine"]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ['reward.servers.own.verifiers=["yours"]', 'reward.remap={mine = "passthrough"}'],
            "reward.servers.own.verifiers: {address} has no verifier 'yours'; it has: mine",
        ),
        (
            ["reward.servers.other.address={address}"],
            "reward.servers.own.verifiers: 'mine' is already a verifier of reward.servers.other",
        ),
        (['reward.remap={mine = "theirs"}'], "no server of reward.servers has the verifier 'theirs', which rows name"),
    ],
)
def test_a_deep_check_refuses_what_reward_servers_lack_or_share(
    check: Check, servers: tuple[str, _Servers], overrides: list[str], message: str
) -> None:
    address, _ = servers
    own = (f"reward.servers.own.address={address}", "data.malformed_labels=keep")
    code, _, error = check(*own, *(override.replace("{address}", address) for override in overrides))
    assert code == 2 and message.replace("{address}", address) in error, error


def test_a_deep_check_asks_servers_of_environments_for_theirs(
    check: Check, servers: tuple[str, _Servers], tmp_path: Path
) -> None:
    address, servicer = servers
    rows = tmp_path / "games.jsonl"
    rows.write_text('{"messages": "Play.", "tools": ["gess"]}\n')

    def play(name: str) -> tuple[int, dict[str, Any], str]:
        table = f'environments=[{{name = "{name}", server = "{address}"}}]'
        source = f'data.sources=[{{path = "{rows}", environment = "{name}"}}]'
        return check(table, source, "evaluation.every_steps=0")

    code, _, error = play("chess")
    named = f"environments.chess.server: {address} has no environment 'chess'; it has: game"
    assert code == 2 and named in error, error
    code, _, error = play("game")
    assert code == 2 and has_all(error, "'gess'", "'guess'"), error
    rows.write_text('{"messages": "Play.", "tools": ["guess"]}\n')
    code, facts, error = play("game")
    assert (code, facts.get("environments_at_servers")) == (0, ["game"]), error
    servicer.closed = True
    code, facts, error = play("game")
    assert (code, facts["environments_at_servers"]) == (0, []) and "environments.game: " in error, error
    servicer.closed, servicer.unavailable = False, "no display"
    code, facts, error = play("game")
    assert (code, facts["environments_at_servers"]) == (0, []) and "no display" in error, error


def test_an_environment_that_cannot_work_here_is_a_warning_and_ends_a_run_on_this_machine(
    check: Check, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # Without bubblewrap.
    code, facts, error = check('environments=[{name = "sandbox"}]', 'reward.remap={mine = "passthrough"}')
    assert code == 0 and "warning: environments.sandbox: " in error, error
    assert facts["environments_loaded"] == []
    config = parse_config(
        {
            "model": {"path": "model"},
            "environments": [{"name": "sandbox"}],
            "data": {"sources": [{"path": "data.jsonl", "environment": "sandbox"}]},
        }
    )
    with pytest.raises(InvalidArgument, match=r"^environments\.sandbox: "):
        check_environments_here(config)


def test_a_deep_check_compares_the_tools_of_rows_with_those_of_their_environment(check: Check, tmp_path: Path) -> None:
    rows = tmp_path / "games.jsonl"
    rows.write_text('{"messages": "Count.", "tools": ["incremant"]}\n')
    overrides = ('environments=[{name = "counter"}]', f'data.sources=[{{path = "{rows}", environment = "counter"}}]')
    code, _, error = check(*overrides, "evaluation.every_steps=0")
    assert code == 2 and has_all(error, "row 1 ", "'incremant'", "'increment'"), error
    rows.write_text('{"messages": "Count.", "tools": ["increment", "submit"]}\n')
    code, facts, error = check(*overrides, "evaluation.every_steps=0")
    assert code == 0 and facts["environments_loaded"] == ["counter"], error
    assert has_all(error, "warning: ", "chat template", "counter"), error


def test_a_deep_check_says_what_a_custom_verifier_answered(check: Check, tmp_path: Path) -> None:
    file = tmp_path / "score.py"
    file.write_text(
        "def score(completion, label, prompt, messages, token_ids):\n"
        "    print('prompt:', prompt)\n"
        "    return 0.25 if completion == label and messages and token_ids else -1\n"
        "def other(completion): return None\n"
    )
    overrides = (
        f"reward.custom.mine.file={file}",
        f"reward.custom.far.file={file}",
        "reward.custom.far.function=other",
    )
    code, facts, error = check(*overrides)
    assert code == 0, error
    assert set(facts["custom_verifiers"]) == {"far", "mine"}
    tried = facts["custom_verifiers_tried"]
    assert tried["mine"].startswith("0.25 ") and tried["far"].startswith("not called"), tried
    assert "mine: prompt: Why?" in error, error
    _, facts, _ = check(f"reward.custom.mine.file={file}", "reward.custom.mine.function=other")
    assert facts["custom_verifiers_tried"]["mine"].startswith("unscorable "), facts


def test_a_deep_check_names_a_verifier_that_nobody_has_and_a_reward_server_that_does_not_answer(check: Check) -> None:
    code, _, error = check()
    assert code == 2 and "'mine'" in error, error
    code, _, error = check("reward.servers.s.address=127.0.0.1:1")
    assert code == 2 and has_all(error, "reward.servers.s.address: 127.0.0.1:1 ", "SHOAL_TLS_DIR"), error


def test_a_deep_check_refuses_a_misspelled_layer_without_torch(
    check: Check, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapter_check, "find_spec", lambda name: None)
    (tmp_path / "score.py").write_text("def score(completion): return 1\n")
    options = (f"reward.custom.mine.file={tmp_path / 'score.py'}", "data.malformed_labels=keep", "learner.lora.rank=4")
    code, _, error = check(*options, 'learner.lora.target_modules=["qproj", "up_proj"]')
    assert code == 2 and 'learner.lora.target_modules: "qproj"' in error, error
    code, _, error = check(*options, 'learner.lora.target_modules=["q_proj", "up_proj"]')
    assert code == 0 and "target_modules" not in error, error


def test_exports_of_steps_that_the_run_does_not_reach_are_noted(check: Check) -> None:
    remap = 'reward.remap={mine = "passthrough"}'
    options = (remap, "data.malformed_labels=keep", "checkpoint.export_every_steps=9")
    code, _, error = check(*options, "run.num_steps=8")
    assert code == 0 and has_all(error, "note: checkpoint.export_every_steps: 9 ", " 8 "), error
    code, _, error = check(*options, "run.num_steps=9")
    assert code == 0 and "export_every_steps" not in error, error


AS_JUDGED = ('reward.remap={mine = "llm_judge"}', "reward.judge.model=judge", "data.malformed_labels=keep")


def test_a_deep_check_names_the_judges_variable_that_is_not_set(check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    key = ("reward.judge.base_url=http://127.0.0.1:1/v1", "reward.judge.api_key_env=NO_SUCH_KEY")
    code, _, error = check(*AS_JUDGED, *key)
    assert code == 2 and "reward.judge.api_key_env: " in error and "NO_SUCH_KEY" in error, error


@pytest.mark.parametrize(
    ("table", "named"),
    [
        ("reward.judge", "http://127.0.0.1:1/v1/chat/completions"),
        ("reward.model", "http://127.0.0.1:1/classify"),
    ],
)
def test_a_deep_check_names_a_server_that_cannot_be_reached(check: Check, table: str, named: str) -> None:
    address = "http://127.0.0.1:1" + ("/v1" if table == "reward.judge" else "")
    to = "llm_judge" if table == "reward.judge" else "reward_model"
    judged = (f'reward.remap={{mine = "{to}"}}', f"{table}.base_url={address}", "data.malformed_labels=keep")
    code, _, error = check(*judged, *(["reward.judge.model=judge"] if table == "reward.judge" else []))
    assert code == 2 and has_all(error, f"{table}.base_url: ", named), error


@pytest.mark.parametrize(
    ("answer", "code", "said"),
    [
        (graded(9), 0, "scored: SCORE 9 of "),
        (http(401, "bad key"), 2, "401: bad key"),
        (http(404, "no"), 2, "reward.judge"),
    ],
)
def test_a_deep_check_asks_the_judge_one_question(check: Check, answer: bytes, code: int, said: str) -> None:
    with judge_server_beside() as server:
        server.script = lambda number, body: answer
        found, facts, error = check(*AS_JUDGED, f"reward.judge.base_url={server.url}")
    assert (found, len(server.requests)) == (code, 1), error
    assert said in (error if code else facts["servers_asked"]["reward.judge"]), (facts, error)


@pytest.mark.parametrize(
    ("key", "answer", "said"),
    [
        ("", http(200, "{}"), "WANDB_API_KEY"),
        ("a" * 40, http(401, '{"errors": [{"message": "invalid"}]}'), "invalid"),
        ("a" * 40, http(200, '{"data": {"viewer": {"id": "x", "username": "me", "entity": "me"}}}'), ""),
    ],
)
def test_a_deep_check_tries_the_key_of_weights_and_biases(
    check: Check, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, key: str, answer: bytes, said: str
) -> None:
    wandb = pytest.importorskip("wandb")
    with judge_server_beside() as server:
        server.script = lambda number, body: answer
        for name, value in (("API_KEY", key), ("BASE_URL", server.url.removesuffix("/v1")), ("SILENT", "true")):
            monkeypatch.setenv(f"WANDB_{name}", value)
        monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
        try:
            code, facts, error = check('reward.remap={mine = "passthrough"}', "tracking.wandb=online")
        finally:
            wandb.teardown()
    assert code == 0 and ("warning: tracking.wandb: " in error) == bool(said), error
    assert said in error, error
    assert said or facts["servers_asked"] == {"tracking.wandb": "the key is accepted"}, facts
