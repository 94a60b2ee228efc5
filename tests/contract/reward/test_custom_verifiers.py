"""Contract tests of custom verifiers in a real pool behind real gRPC: a file, a package, a file that changes."""

import asyncio
import hashlib
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from services.reward.service import RewardService
from shoal.errors import InvalidArgument
from shoal.rollout import GroundTruth
from shoal.rpc.channel import connect
from shoal.scores import Score, ScoreOutcome
from shoal.v1 import reward_pb2, worker_pb2
from shoal.v1.reward_pb2_grpc import RewardServiceStub
from tests.support.processes import serving_process
from tests.support.repository import ROOT
from tests.support.reward_client import (
    ALLOWED,
    TEMPORARY,
    TIMEOUT_S,
    Client,
    completion_request,
    living,
    prompt_request,
)

HOSTILE = """
import os, resource, sys, time

left_open = []

class Odd(Exception):
    def __str__(self):
        raise RuntimeError("no words")

def score(completion: str, label, token_ids):
    print("this goes to the log")
    match completion:
        case "true": return True
        case "number": return 0.25
        case "tokens": return len(token_ids)
        case "fork":
            os.fork()
            return 0.75
        case "none": return None
        case "nan": return float("nan")
        case "huge": return 10 ** 400
        case "large": return 1e300
        case "text": return "1"
        case "raise": raise ValueError("no such " + label)
        case "odd": raise Odd
        case "stop": sys.exit(0)
        case "exit": os._exit(3)
        case "kill": os.kill(os.getpid(), 9)
        case "hang": time.sleep(3600)
        case "memory": return len(bytearray(5 << 30))
        case "files":
            resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
            while True:
                left_open.append(open(os.devnull))
        case "open": return float(open(os.devnull).close() is None)
"""


def source(value: float) -> str:
    return f'def score(completion, label):\n    """Label: any. Value: {value}."""\n    return {value}\n'


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def write(path: Path, text: str) -> str:
    """Replaces a file atomically, as editors do; returns its name."""
    path.with_suffix(".tmp").write_text(text)
    path.with_suffix(".tmp").replace(path)
    return str(path)


def mine(label: str = "") -> list[GroundTruth]:
    return [GroundTruth("mine", label)]


async def refusal(client: Client, **reward: object) -> str:
    """Configures a service that cannot use the configuration; returns its error message."""
    await client.configure(**reward)
    await client.until(lambda status: status.status.state == worker_pb2.WORKER_STATE_FAILED)
    return str((await client.status()).status.message)


async def listed(client: Client) -> dict[str, reward_pb2.VerifierInfo]:
    response = await client.stub.ListVerifiers(reward_pb2.ListVerifiersRequest(), timeout=TIMEOUT_S)
    return {verifier.name: verifier for verifier in response.verifiers}


async def test_everything_a_function_does_has_an_outcome_and_only_a_number_is_a_reward(
    client: Client, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(tmp_path / "score.py", HOSTILE)
    await client.configured(num_processes=1, timeout_s=2.0, custom={"mine": {"file": path}})
    line = {
        text: HOSTILE[: HOSTILE.index(f'case "{text}"')].count("\n") + 1 for text in ("raise", "odd", "stop", "memory")
    }
    expected = {
        "true": (ScoreOutcome.SCORED, 1.0),
        "number": (ScoreOutcome.SCORED, 0.25),
        "fork": (ScoreOutcome.SCORED, 0.75),
        "tokens": (ScoreOutcome.SCORED, 2.0),
        "none": (ScoreOutcome.UNSCORABLE, "score returned None"),
        "nan": (ScoreOutcome.FAILED, "score returned nan (float); it must return a finite number"),
        "huge": (ScoreOutcome.FAILED, "(int); it must return a finite number"),
        "large": (ScoreOutcome.FAILED, "the verifier returned the value 1e+300"),
        "text": (ScoreOutcome.FAILED, "score returned '1' (str)"),
        "raise": (ScoreOutcome.FAILED, f"ValueError at {path}:{line['raise']}: no such label"),
        "odd": (ScoreOutcome.FAILED, f"Odd at {path}:{line['odd']}: (its message raises another error)"),
        "stop": (ScoreOutcome.FAILED, f"SystemExit at {path}:{line['stop']}: 0"),
        "exit": (ScoreOutcome.FAILED, "process died (exit code 3)"),
        "kill": (ScoreOutcome.FAILED, "process died (signal 9)"),
        "hang": (ScoreOutcome.FAILED, "no verdict within reward.timeout_s (2 s)"),
        "memory": (ScoreOutcome.FAILED, f"MemoryError at {path}:{line['memory']}"),
        "files": (ScoreOutcome.FAILED, "Too many open files"),
        "open": (ScoreOutcome.SCORED, 1.0),
    }
    requests = [completion_request(number, text, [7, 7]) for number, text in enumerate(expected)]
    scores = await client.send([prompt_request(mine("label")), *requests])
    assert sorted(score.sample_index for score in scores) == list(range(len(expected)))
    for score in scores:
        text, (outcome, value) = list(expected.items())[score.sample_index]
        (part,) = score.verifier_scores
        assert score.outcome is outcome, (text, part)
        assert value == score.reward if isinstance(value, float) else value in part.detail, (text, part)
        assert part.code_digest == digest(HOSTILE), (text, part)
        assert "Traceback" not in part.detail, part
    # "exit" and "kill" restart the process twice each; "hang", "memory" and "files" once each.
    assert (await client.status()).num_pool_restarts == 7
    tracebacks = [record.getMessage() for record in caplog.records if "Traceback" in record.getMessage()]
    assert any("raise ValueError" in text for text in tracebacks), tracebacks


async def test_processes_that_a_function_starts_end_with_its_process(client: Client, tmp_path: Path) -> None:
    text = (
        "import os, subprocess, time\n"
        "def score(completion):\n"
        "    print(subprocess.Popen(['sleep', '3600']).pid, file=open(completion, 'w'), flush=True)\n"
        "    time.sleep(3600) if completion.endswith('hang') else os._exit(3)\n"
    )
    path = write(tmp_path / "score.py", text)
    await client.configured(num_processes=2, timeout_s=1.5, custom={"mine": {"file": path}})
    files = [tmp_path / "hang", tmp_path / "exit"]
    scores = await client.score(mine(), [str(file) for file in files])
    assert {score.outcome for score in scores} == {ScoreOutcome.FAILED}
    started = [psutil.Process(int(file.read_text())) for file in files if psutil.pid_exists(int(file.read_text()))]
    _, alive = await asyncio.to_thread(psutil.wait_procs, started, 60)
    assert not alive, f"left behind: {alive}"


async def test_an_async_function_may_take_the_whole_conversation(client: Client, tmp_path: Path) -> None:
    path = write(
        tmp_path / "score.py",
        "import asyncio\n"
        "async def judge(*, completion, prompt, messages, finish_reason, prompt_id, strict=False):\n"
        "    await asyncio.sleep(0)\n"
        "    return (prompt, messages, finish_reason, prompt_id) == ('a question', [], 'stop', 'test:0')\n",
    )
    await client.configured(num_processes=1, custom={"Mine": {"file": path, "function": "judge"}})
    assert [score.reward for score in await client.score(mine(), ["x", "y"])] == [1.0, 1.0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "import no_such_module\n",
            "reward.custom.mine.file: {path} cannot be imported: ModuleNotFoundError at {path}:1:",
        ),
        ("def score(:\n", "reward.custom.mine.file: {path} cannot be imported: SyntaxError at {path}:1:"),
        ("import os\nos._exit(4)\n", "reward.custom.mine.file: {path} ends the process that imports it (exit code 4)"),
        (
            "def scores(completion): ...\n",
            "reward.custom.mine.function: {path} has no function 'score'; it has: scores",
        ),
        ("score = 1\n", "reward.custom.mine.function: {path} has no function 'score'; it has: none"),
        (
            "def score(text, label): ...\n",
            "reward.custom.mine.function: score needs 'text', but verifiers get only completion, ",
        ),
        ("def score(completion, /): ...\n", "reward.custom.mine.function: score takes 'completion' only by position"),
        ("def score(label): ...\n", "reward.custom.mine.function: score takes no 'completion'"),
    ],
)
async def test_an_unusable_file_is_refused_when_configured(
    client: Client, tmp_path: Path, text: str, message: str
) -> None:
    path = write(tmp_path / "score.py", text)
    assert message.format(path=path) in await refusal(client, custom={"mine": {"file": path}})


async def test_a_missing_file_is_refused_and_a_hanging_import_is_ended(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = str(tmp_path / "score.py")
    assert "reward.custom.mine.file: " in await refusal(client, custom={"mine": {"file": missing}})
    monkeypatch.setattr("services.reward.custom.probe.TIMEOUT_S", 1.0)
    hanging = write(tmp_path / "hangs.py", "import time\ntime.sleep(3600)\n")
    assert " 1 s" in await refusal(client, custom={"mine": {"file": hanging}})
    assert not [child for child in living(psutil.Process()) if "probe" in " ".join(child.cmdline())]


async def test_a_package_registers_verifiers_by_entry_point_without_a_table(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "plugin.py").write_text("def one(completion): return 1\ndef two(completion): return 2\n")
    (tmp_path / "broken.py").write_text("raise RuntimeError('half installed')\n")
    information = tmp_path / "plugin-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: plugin\nVersion: 1.0\n")
    points = information / "entry_points.txt"
    points.write_text("[shoal.verifiers]\nOne = plugin:one [extra]\nbroken = broken:score\nodd = not a name\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    await client.configured(num_processes=1, custom={"two": {"entry_point": "plugin:two"}})
    truths = [GroundTruth("one", ""), GroundTruth("two", "")]
    (score,) = await client.score(truths, ["x"])
    assert [part.value for part in score.verifier_scores] == [1.0, 2.0]
    assert {part.code_digest for part in score.verifier_scores} == {digest((tmp_path / "plugin.py").read_text())}
    with pytest.raises(InvalidArgument, match=r"'broken' .*RuntimeError at .*broken.py:1: half"):
        await client.score([GroundTruth("broken", "")], ["x"])
    assert (await listed(client))["odd"].unavailable
    assert (await listed(client))["broken"].unavailable.startswith("broken cannot be imported")
    points.write_text("[shoal.verifiers]\ngsm8k = plugin:one\n")
    message = await refusal(client, num_processes=2)
    assert all(part in message for part in (" plugin ", "'gsm8k'", "uninstall")), message
    points.unlink()
    message = await refusal(client, custom={"x": {"entry_point": "no_such.package:score"}})
    assert "reward.custom.x.entry_point: no_such.package" in message and "ModuleNotFoundError" in message, message


async def test_a_file_that_changes_while_completions_are_scored_is_reloaded_and_loses_none(tmp_path: Path) -> None:
    first, second, third = source(0.25), source(0.75), source(0.5)
    path = tmp_path / "score.py"
    write(path, first)
    scores: list[Score] = []
    done = False

    async def score_until_done(client: Client) -> None:
        while not done:
            scores.extend(await client.score(mine(), ["x"] * 20))

    def is_scored_by(code: str) -> bool:
        return bool(scores) and scores[-1].verifier_scores[0].code_digest == digest(code)

    async with (
        serving_process("services.reward", "--allow-verifier-folder", TEMPORARY) as (_, address),
        connect(address, RewardService.full_name) as channel,
    ):
        client = Client(RewardService(ALLOWED), RewardServiceStub(channel))
        await client.configured(num_processes=2, custom={"mine": {"file": str(path), "reload": True}})
        pids = (await client.status()).pool_pids
        scoring = asyncio.create_task(score_until_done(client))
        await client.until(lambda _: is_scored_by(first))
        write(path, second)
        await client.until(lambda _: is_scored_by(second))
        assert (await listed(client))["mine"].description == "Label: any. Value: 0.75."
        write(path, "def score(completion, label:\n")
        await client.until(lambda status: "mine" in status.status.message)
        status = (await client.status()).status
        assert status.state == worker_pb2.WORKER_STATE_READY
        assert "reward.custom.mine.file: " in status.message and digest(second)[:12] in status.message
        assert f"SyntaxError at {path}:1" in status.message
        num_before = len(scores)
        await client.until(lambda _: len(scores) > num_before + 40)
        write(path, third)
        await client.until(lambda _: is_scored_by(third))
        done = True
        await scoring
        assert (await client.status()).status.message == ""
        after = await client.status()
        assert after.pool_pids == pids and after.num_pool_restarts == 0, "new code must replace no process"
        assert after.num_scored["scored"] == len(scores)
    by_digest = {digest(first): 0.25, digest(second): 0.75, digest(third): 0.5}
    wrong = [score for score in scores if score.reward != by_digest[score.verifier_scores[0].code_digest]]
    assert not wrong, f"{len(wrong)} of {len(scores)} scores name other code than they used, first: {wrong[0]}"


async def test_a_replacement_process_uses_the_last_good_code(client: Client, tmp_path: Path) -> None:
    path = tmp_path / "score.py"
    good = "import os\ndef score(completion, label):\n    return 1 if completion == 'x' else os._exit(3)\n"
    write(path, good)
    await client.configured(num_processes=1, custom={"mine": {"file": str(path), "reload": True}})
    write(path, "raise ValueError\n")
    await client.until(lambda status: "cannot be imported: ValueError" in status.status.message)
    assert [score.outcome for score in await client.score(mine(), ["y"])] == [ScoreOutcome.FAILED]
    (score,) = await client.score(mine(), ["x"])
    assert (score.reward, score.verifier_scores[0].code_digest) == (1.0, digest(good)), score
    path.unlink()
    await client.until(lambda status: "there is no file" in status.status.message)
    assert [score.reward for score in await client.score(mine(), ["x"])] == [1.0]


def test_the_example_verifier_scores_as_documented() -> None:
    folder = ROOT / "examples"
    code = (
        "from verifier import score\n"
        "print(score('An Oak.', 'oak, fir', 'stop'), score('oak', 'oak', 'length'), score('oak', ' , ', 'stop'))"
    )
    output = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True).stdout
    assert output.split() == ["0.5", "0.0", "None"]
