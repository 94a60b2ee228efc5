"""`shoal env` lists environments, plays in one, and checks one."""

import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from services.coordinator.cli.env.play import Person
from tests.support.parsed_commands import Shoal
from tests.support.repository import ROOT
from tests.support.wordings import has_all

GAMES = '''
import asyncio, json, random, subprocess, tempfile, threading, time, urllib.error, urllib.request
from shoal.environment import Agent, Broken, Environment, Observation, tool

class Doubling(Environment):
    """Asks for the double of a number."""

    is_deterministic = True

    def __init__(self, highest=100):
        self.highest = highest

    def reset(self, task, seed):
        self.number = random.Random(seed).randint(1, self.highest)
        return f"What is {self.number} times 2?"

    def step(self, turn):
        return Observation(reward=float(str(2 * self.number) in turn.text), done=True)

class Searching(Environment):
    """Says which tools are offered, and counts what is called."""

    is_deterministic = True

    def reset(self, task, seed):
        return "all" if self.offered_tools is None else f"offered: {sorted(self.offered_tools)}"

    @tool
    def search(self):
        """Search. \x1b[31m"""
        return "K2"

    @tool
    def browse(self):
        """Browse."""
        raise Broken("it should not be called")

class Careless(Environment):
    """Leaves everything behind."""

    is_deterministic = True

    def reset(self, task, seed):
        subprocess.Popen(["sleep", "3600"])
        threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()
        tempfile.mkstemp()
        return str(random.random())

    def step(self, turn):
        return Observation("x", done=True)

class Adding(Agent):
    """Asks for two numbers, one after the other, and pays their sum."""

    def run(self, task, seed, policy):
        messages = []
        for _ in range(2):
            messages.append({"role": "user", "content": "A number?"})
            body = json.dumps({"messages": messages}).encode()
            request = urllib.request.Request(f"{policy.base_url}/chat/completions", body)
            request.add_header("Authorization", f"Bearer {policy.api_key}")
            messages.append(json.load(urllib.request.urlopen(request))["choices"][0]["message"])
        return sum(float(message["content"]) for message in messages[1::2])

class Impatient(Adding):
    """Raises when it is stopped, as clients do whose calls are refused from then on."""

    async def run(self, task, seed, policy):
        try:
            return await asyncio.to_thread(super().run, task, seed, policy)
        except asyncio.CancelledError:
            raise RuntimeError("409 - the episode has ended") from None

class Raw(Agent):
    """Calls with tokens."""

    def run(self, task, seed, policy):
        url = policy.base_url.removesuffix("/v1") + "/inference/v1/generate"
        request = urllib.request.Request(url, json.dumps({"token_ids": [1, 2]}).encode())
        request.add_header("Authorization", f"Bearer {policy.api_key}")
        try:
            urllib.request.urlopen(request)
        except urllib.error.HTTPError as error:
            self.detail = json.load(error)["error"]["message"]
        return 0
'''


@pytest.fixture
def games(tmp_path: Path) -> str:
    file = tmp_path / "games.py"
    file.write_text(GAMES)
    return str(file)


Played = Callable[..., tuple[int, list[str], str]]


@pytest.fixture
def played(shoal: Shoal, monkeypatch: pytest.MonkeyPatch) -> Played:
    """Plays with lines as input; returns exit code, lines of the output, and errors."""

    def play(*arguments: str, lines: str) -> tuple[int, list[str], str]:
        monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
        code, out, error = shoal("env", "play", *arguments)
        return code, out.splitlines(), error

    return play


def test_what_comes_with_shoal_and_a_file_is_listed(shoal: Shoal, games: str, tmp_path: Path) -> None:
    config = tmp_path / "run.toml"
    config.write_text(
        '[model]\npath = "m"\n[[data.sources]]\npath = "d"\n'
        '[[environments]]\nname = "doubling"\nsource = "games.py:Doubling"\n'
        '[[environments]]\nname = "adding"\nsource = "games.py:Adding"\n'
        '[[environments]]\nname = "wordle"\nsource = "games.py:Doubling"\n'
    )
    code, out, error = shoal("env", "list", "--config", str(config), "-o", "json")
    assert code == 0, error
    listed = {info["name"]: info for info in json.loads(out)}
    assert listed["doubling"]["description"].startswith("Asks for the double")
    assert [tool["name"] for tool in listed["counter"]["tools"]] == ["increment", "decrement", "submit"]
    assert "base_url" in listed["search"]["unavailable"]
    assert [name for name, info in listed.items() if info.get("is_agent")] == ["adding", "verifiers"]
    configured = [name for name, info in listed.items() if info["origin"] == "configuration"]
    assert configured == list(listed)[:3] == ["adding", "doubling", "wordle"], "those of the file are first"
    assert {info["origin"] for name, info in listed.items() if name not in configured} == {"shoal"}
    code, out, error = shoal("env", "list", "--config", str(config))
    assert code == 0, error
    own, _, ours = out.partition("\nEnvironments that come with Shoal:\n\n")
    assert own.startswith(f"Environments of {config}:\n\nadding (agent)\n") and "\ndoubling (no tools)\n" in own
    assert "counter (tools: increment, " in ours and "\nwordle (no tools)\n" in own and "wordle" not in ours
    assert f"\nsearch\n    {listed['search']['unavailable']}\n" in out and "{ source = 'python' }\n" in out
    assert str(ROOT) not in out, "it names files by their paths on this machine"


def test_a_file_that_does_not_work_is_named_without_the_folder_that_it_is_in(shoal: Shoal, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("import nothing_of_that_name\n")
    (tmp_path / "picky.py").write_text(
        "from shoal.environment import Environment\n"
        "class Picky(Environment):\n    def __init__(self, mood=''):\n        raise ValueError('no mood')\n"
        "    def reset(self, task, seed): ...\n"
    )
    config = tmp_path / "run.toml"
    tables = [("broken", "broken.py:A", ""), ("missing", "picky.py:B", ""), ("picky", "picky.py:Picky", "mood = 'bad'")]
    config.write_text(
        '[model]\npath = "m"\n[[data.sources]]\npath = "d"\n'
        + "".join(f"[[environments]]\nname = '{n}'\nsource = '{s}'\nsettings = {{{v}}}\n" for n, s, v in tables)
    )
    code, out, error = shoal("env", "list", "--config", str(config), "-o", "json")
    assert code == 0, error
    listed = {info["name"]: info.get("unavailable", "") for info in json.loads(out)}
    assert "ModuleNotFoundError at broken.py:1: " in listed["broken"] and "'B'" in listed["missing"], listed
    assert "ValueError at picky.py:4: " in listed["picky"] and str(tmp_path) not in out


def test_a_person_plays_with_texts_and_calls(played: Played) -> None:
    lines = '/guess {"number": 50}\n/guess {"number": "x"}\n/guess {"number": 42}\n'
    code, out, error = played("guess_number", "--task", '{"number": 42}', lines=lines)
    assert code == 0, error
    lower, refused, right = [line for line in out if line.startswith("tool guess: ")]
    assert "50" in lower and "arguments" in refused and "42" in right, out
    summary = json.loads(out[-1])
    assert (summary["outcome"], summary["metrics"]) == ("scored", {"guesses": 2.0, "solved": 1.0})
    assert summary["reward"] == pytest.approx((1 - 8 / 99) - 0.1 + 1)


def test_an_environment_is_played_and_checked_with_some_of_its_tools(played: Played, shoal: Shoal, games: str) -> None:
    arguments = (f"{games}:Searching", "--tools", '["search"]')
    code, out, error = played(*arguments, lines="/browse\n/search\n")
    assert code == 0, error
    assert out[0].startswith("tool: /search {} ") and out[0].endswith(" <U+001B>[31m"), out
    assert out[1] == "user: offered: ['search']" and "tool search: K2" in out, out
    assert any(has_all(line, "tool browse: error: ", "'browse'", " search") for line in out), out
    code, text, error = shoal("env", "check", *arguments, "-o", "json")
    assert (code, json.loads(text)["num_turns"]) == (0, 48), (text, error)
    calls = ("--turn", "/search", "--turn", "/search {}", "--turn", "Tell me.")
    code, text, error = shoal("env", "check", f"{games}:Searching", *calls, "-o", "json")
    assert (code, json.loads(text)["num_turns"]) == (0, 18), (text, error)
    code, _, error = shoal("env", "check", f"{games}:Searching", "--turn", "/search K2")
    assert code == 2 and has_all(error, "--turn '/search K2': ", "/search {}"), error
    code, text, error = shoal("env", "check", f"{games}:Searching", "-o", "json")
    assert code == 1 and "seed 1, turn 2: " in text, "without --tools, all are called"


def test_a_person_is_told_how_a_call_is_written_and_what_ends_an_episode_in_a_run(played: Played) -> None:
    code, out, error = played("guess_number", "--task", '{"number": 42}', lines="/guess 42\n/guess 42]\nIs it 42?\n")
    assert code == 0, error
    assert "\n".join(out).count('/guess {"number": ...};') == 2, out
    assert "the episode ends" in out[-2], out
    assert json.loads(out[-1])["metrics"]["guesses"] == 0


def test_the_end_of_the_input_ends_the_episode(played: Played, games: str) -> None:
    code, out, error = played(f"{games}:Doubling", lines="")
    assert code == 0, error
    assert out[0].startswith("user: What is ") and json.loads(out[-1])["outcome"] == "scored"


def test_settings_are_those_of_the_configuration_but_for_the_ones_that_are_given(played: Played, games: str) -> None:
    _, out, error = played(f"{games}:Doubling", "--settings", '{"highest": 1}', lines="")
    assert "1 times 2" in out[0], error


def test_one_environment_of_a_run_is_played_whatever_its_data_name(played: Played, games: str, tmp_path: Path) -> None:
    config = tmp_path / "run.toml"
    config.write_text(
        '[model]\npath = "m"\n[[data.sources]]\npath = "d"\nenvironment = "other"\n'
        '[[environments]]\nname = "other"\nsource = "games.py:No"\n'
        '[[environments]]\nname = "doubling"\nsource = "games.py:Doubling"\nsettings = { highest = 1 }\n'
    )
    code, out, error = played("doubling", "--config", str(config), lines="2\n")
    assert code == 0 and "1 times 2" in out[0], error
    _, out, error = played(f"{games}:Doubling", "--config", str(config), "--settings", '{"highest": 1}', lines="2\n")
    assert "1 times 2" in out[0], error


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("nothing",), "'nothing'"),
        (("games.py",), '"file.py:Class"'),
        (("counter", "--settings", '{"goal": 5}'), "'goal'"),
        (("counter", "--settings", '{"target": 5}', "--address", "127.0.0.1:1"), "--settings"),
        (("counter", "--config", "any.toml", "--address", "127.0.0.1:1"), "--config"),
        (("counter", "--task", "5"), "--task"),
        (("counter", "--tools", "submit"), "--tools 'submit'"),
        (("counter", "--tools", '"submit"'), "--tools"),
        (("counter", "--tools", '["fly"]'), "increment, decrement, submit"),
        (("counter", "--task", '{"goal": 1}'), '{"target": 5}'),
        (("mcp",), "mcp "),
    ],
)
def test_what_cannot_be_played_is_refused(shoal: Shoal, arguments: tuple[str, ...], named: str) -> None:
    code, _, error = shoal("env", "play", *arguments)
    assert code == 2 and named in error and "Traceback" not in error, error


def test_an_environment_without_faults_passes_the_check(shoal: Shoal, games: str) -> None:
    code, out, error = shoal("env", "check", f"{games}:Doubling", "-o", "json")
    assert code == 0, error
    found = json.loads(out)
    assert (found["problems"], found["repeats_itself"], found["num_turns"]) == ([], True, 6)
    assert found["step_ms"]["mean"] > 0


def test_the_check_names_what_an_environment_leaves_behind_and_that_it_differs(shoal: Shoal, games: str) -> None:
    code, out, error = shoal("env", "check", f"{games}:Careless")
    assert code == 1, error
    problems = [line for line in out.splitlines() if line.startswith("problem: ")]
    for part in ("is_deterministic", "sleep 3600", "files behind", "3 threads"):
        assert any(part in problem for problem in problems), (part, out)


def test_the_check_shows_a_traceback_once(tmp_path: Path) -> None:
    file = tmp_path / "broken.py"
    file.write_text(
        "from shoal.environment import Environment\n\nclass Broken(Environment):\n    def step(self, turn):\n"
        "        return turn.no_such_field\n"
    )
    main = "from services.coordinator.cli.app import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", main, "env", "check", f"{file}:Broken"],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 1 and done.stderr.count("no_such_field") == done.stderr.count("Traceback") + 1, (
        done.stderr
    )
    assert done.stderr.count("Traceback") == 1, done.stderr


@pytest.mark.parametrize(("command", "source"), [("play", "{games}:Doubling"), ("check", "calculator")])
def test_an_option_that_is_wrong_is_named_as_it_was_typed(shoal: Shoal, games: str, command: str, source: str) -> None:
    code, _, error = shoal("env", command, source.format(games=games), "--interpreter", "bin/python")
    assert code == 2, error
    assert has_all(error, "error: --interpreter: ", "'bin/python'") and "environments" not in error, error


def test_code_that_is_no_environment_is_refused(shoal: Shoal, games: str) -> None:
    code, _, error = shoal("env", "check", f"{games}:No")
    assert code == 2 and has_all(error, "'No'", "Adding, Careless, Doubling, Impatient, Raw, Searching"), error


def test_the_check_of_what_cannot_work_here_says_why_and_plays_nothing(shoal: Shoal) -> None:
    code, _, error = shoal("env", "check", "textarena", "--settings", '{"game": "Chess-v0"}')
    assert code == 2 and "textarena" in error and "Traceback" not in error, error


def test_a_person_answers_the_calls_of_an_agent(played: Played, games: str) -> None:
    code, out, error = played(f"{games}:Adding", lines="3\n4\n")
    assert code == 0, error
    assert out[:2] == ["user: A number?"] * 2, "each call shows what is new"
    assert json.loads(out[2])["reward"] == 7.0


def test_the_end_of_the_input_ends_an_agent_quietly(played: Played, games: str) -> None:
    code, out, error = played(f"{games}:Impatient", lines="3\n")
    assert (code, error) == (0, ""), error
    assert out[:-1] == ["user: A number?"] * 2 and json.loads(out[-1])["outcome"] == "scored", out


def test_an_agent_that_calls_with_tokens_is_told_what_can_be_played(shoal: Shoal, games: str) -> None:
    code, out, error = shoal("env", "play", f"{games}:Raw")
    assert code == 0, error
    assert json.loads(out)["detail"].endswith("call /v1/chat/completions instead")


def test_an_agent_is_not_checked_with_turns(shoal: Shoal, games: str) -> None:
    code, _, error = shoal("env", "check", f"{games}:Adding")
    assert code == 2 and "is an agent" in error and "shoal env play" in error, error


@pytest.mark.parametrize(("given", "said"), [(None, None), ("", None), ("a\udccbb\n", "a?b")])
async def test_a_person_without_an_input_says_nothing_and_no_half_a_character(
    monkeypatch: pytest.MonkeyPatch, given: str | None, said: str | None
) -> None:
    monkeypatch.setattr(sys, "stdin", None if given is None else io.StringIO(given))
    assert await Person().say([]) == said
