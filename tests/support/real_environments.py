"""Environments of other projects, unmodified, in interpreters of their own."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2

from tests.support.interpreters import interpreter_with
from tests.support.local_stack import free_port
from tests.support.waiting import block_until

_START_S = 240.0
TASKSET = '''
"""A task set of verifiers v1: sums, with an agent that asks once more where an answer has no number."""

import random

import openai
import verifiers.v1 as vf
from verifiers.v1.harness import Harness
from verifiers.v1.runtimes import ProgramResult

__all__ = ["SumsHarness", "SumsTaskset"]


class SumsData(vf.TaskData):
    total: int


class SumsTask(vf.Task[SumsData]):
    @vf.reward
    async def right(self, trace: vf.Trace) -> float:
        return float(str(self.data.total) in trace.last_reply)

    @vf.reward(weight=0.5)
    async def digits(self, trace: vf.Trace) -> float:
        return sum(letter.isdigit() for letter in trace.last_reply) / max(1, len(trace.last_reply))

    @vf.metric
    async def length(self, trace: vf.Trace) -> float:
        return float(len(trace.last_reply))


class SumsTaskset(vf.Taskset[SumsTask, vf.TasksetConfig]):
    def load(self):
        numbers = random.Random(0)
        for _ in range(100):
            a, b = numbers.randint(0, 4), numbers.randint(0, 4)
            yield SumsTask(SumsData(prompt=f"What is {a} + {b}?", total=a + b), self.config.task)


class SumsHarness(Harness[vf.HarnessConfig]):
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data):
        client = openai.AsyncOpenAI(base_url=endpoint, api_key=secret, max_retries=20)
        messages = [{"role": "user", "content": data.prompt}]
        for _ in range(2):
            answer = await client.chat.completions.create(model=ctx.model, messages=messages, max_tokens=16)
            said = answer.choices[0].message.content or ""
            if any(letter.isdigit() for letter in said):
                break
            messages += [{"role": "assistant", "content": said}, {"role": "user", "content": "Say a number."}]
        return ProgramResult(0, "", "")
'''
TASKSET_SETTINGS = {
    "taskset": {"id": "sums_v1"},
    "agent": {"runtime": {"type": "subprocess"}, "harness": {"id": "sums_v1"}, "max_turns": 4},
}


@contextmanager
def openenv_echo(folder: Path) -> Iterator[str]:
    """Serves the environment that OpenEnv's own command line makes, and yields its address. Skips without OpenEnv."""
    python, port = interpreter_with("openenv"), free_port()
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    init = [str(Path(python).with_name("openenv")), "init", "echo"]
    subprocess.run(init, cwd=folder, env=variables, check=True, stdout=subprocess.DEVNULL)
    command = [python, "-m", "echo.server.app", "--host", "127.0.0.1", "--port", str(port)]
    with serving(command, f"http://127.0.0.1:{port}/schema", folder / "echo.log", folder, variables):
        yield f"http://127.0.0.1:{port}"


@contextmanager
def serving(command: list[str], url: str, log: Path, folder: Path, variables: dict[str, str]) -> Iterator[None]:
    """Runs a server until the block ends, once something answers at a URL."""
    with log.open("w") as output:
        process = subprocess.Popen(command, cwd=folder, env=variables, stdout=output, stderr=output)

    def answers() -> bool:
        assert process.poll() is None, log.read_text()[-2000:]
        with contextlib.suppress(httpx2.TransportError):
            httpx2.get(url, trust_env=False)
            return True
        return False

    try:
        block_until(answers, timeout_s=_START_S)
        yield
    finally:
        process.kill()
        process.wait()


def python_with_taskset(folder: Path) -> str:
    """Returns a Python that has the package verifiers and the task set beside it. Skips without verifiers."""
    python = interpreter_with("verifiers")
    question = "import sys, sysconfig; print(sysconfig.get_paths()['purelib'], sys.base_prefix, sep=chr(10))"
    answer = subprocess.run([python, "-c", question], check=True, capture_output=True, text=True)
    packages, base = answer.stdout.splitlines()
    tasksets, made = folder / "tasksets", folder / "python"
    tasksets.mkdir()
    (tasksets / "sums_v1.py").write_text(TASKSET)
    # An environment beside the given one, which stays as it is.
    subprocess.run([f"{base}/bin/python3", "-m", "venv", "--without-pip", str(made)], check=True)
    (site,) = made.glob("lib/python3*/site-packages")
    (site / "others.pth").write_text(f"{packages}\n{tasksets}\n")
    return str(made / "bin" / "python")
