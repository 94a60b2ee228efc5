"""`shoal env` lists environments, plays in one, and checks one."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.repository import ROOT

Shoal = Callable[..., tuple[int, str, str]]

GAMES = '''
import json, random, subprocess, tempfile, threading, time, urllib.request
from shoal.environment import Agent, Environment, Observation

class Doubling(Environment):
    """Asks for the double of a number."""

    is_deterministic = True

    def reset(self, task, seed):
        self.number = random.Random(seed).randint(1, 100)
        return f"What is {self.number} times 2?"

    def step(self, turn):
        return Observation(reward=float(str(2 * self.number) in turn.text), done=True)

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
'''


@pytest.fixture
def games(tmp_path: Path) -> str:
    file = tmp_path / "games.py"
    file.write_text(GAMES)
    return str(file)


def played(*arguments: str, lines: str) -> tuple[int, list[str], str]:
    """Plays with the lines as input; returns exit code, lines of the output, and errors."""
    main = "from services.coordinator.cli.app import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", main, "env", "play", *arguments],
        input=lines, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    return done.returncode, done.stdout.splitlines(), done.stderr


def test_what_comes_with_shoal_and_a_file_is_listed(shoal: Shoal, games: str, tmp_path: Path) -> None:
    config = tmp_path / "run.toml"
    config.write_text(
        '[model]\npath = "m"\n[[data.sources]]\npath = "d"\n'
        '[[environments]]\nname = "doubling"\nsource = "games.py:Doubling"\n'
    )
    code, out, error = shoal("env", "list", "--config", str(config), "-o", "json")
    assert code == 0, error
    listed = {info["name"]: info for info in json.loads(out)}
    assert listed["doubling"]["description"] == "Asks for the double of a number."
    assert [tool["name"] for tool in listed["counter"]["tools"]] == ["increment", "decrement", "submit"]
    assert listed["search"]["unavailable"] == "needs settings: give base_url, the address of the service"
    code, out, error = shoal("env", "list")
    assert code == 0, error
    assert "\n    needs settings: give base_url, the address of the service\n" in out
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
    assert listed["broken"].startswith("broken.py does not import: ModuleNotFoundError at broken.py:1: ")
    assert listed["missing"].startswith("picky.py has no environment 'B'")
    assert listed["picky"].endswith("ValueError at picky.py:4: no mood")
    assert str(tmp_path) not in out


def test_a_person_plays_with_texts_and_calls() -> None:
    lines = '/guess {"number": 50}\n/guess {"number": "x"}\n/guess {"number": 42}\n'
    code, out, error = played("guess_number", "--task", '{"number": 42}', lines=lines)
    assert code == 0, error
    assert "tool guess: It is lower than 50." in out and "tool guess: Yes, it is 42." in out
    assert any("The arguments do not fit guess" in line for line in out), out
    summary = json.loads(out[-1])
    assert (summary["outcome"], summary["metrics"]) == ("scored", {"guesses": 2.0, "solved": 1.0})
    assert summary["reward"] == pytest.approx((1 - 8 / 99) - 0.1 + 1)


def test_the_end_of_the_input_ends_the_episode(games: str) -> None:
    code, out, error = played(f"{games}:Doubling", lines="")
    assert code == 0, error
    assert out[0].startswith("user: What is ") and json.loads(out[-1])["outcome"] == "scored"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("nothing",), "there is no environment 'nothing'; there are:"),
        (("counter", "--task", "5"), "--task must be a JSON object"),
        (("counter", "--task", '{"goal": 1}'), 'give a whole number, {"target": 5}'),
        (("mcp",), "mcp cannot work here"),
    ],
)
def test_what_cannot_be_played_is_refused(arguments: tuple[str, ...], says: str) -> None:
    code, _, error = played(*arguments, lines="")
    assert (code, says in error) == (2, True), error
    assert "Traceback" not in error


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
    for part in ("is_deterministic is true, and what it answers differs", "sleep 3600", "files behind", "3 threads"):
        assert any(part in problem for problem in problems), (part, out)


def test_code_that_is_no_environment_is_refused(shoal: Shoal, games: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from services.coordinator.cli.app import main; main()", "env", "check", f"{games}:No"],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 2 and "has no environment 'No'" in done.stderr, done.stderr


def test_a_person_answers_the_calls_of_an_agent(games: str) -> None:
    code, out, error = played(f"{games}:Adding", lines="3\n4\n")
    assert code == 0, error
    assert out[:2] == ["user: A number?"] * 2, "each call shows what is new"
    assert json.loads(out[2])["reward"] == 7.0


def test_an_agent_is_not_checked_with_turns(shoal: Shoal, games: str) -> None:
    code, _, error = shoal("env", "check", f"{games}:Adding")
    assert code == 2 and "is an agent" in error and "shoal env play" in error, error
