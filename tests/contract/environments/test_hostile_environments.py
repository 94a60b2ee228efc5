"""Environments that do what none should: each costs its own episode at most, in bounded time."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from services.reward.environments import environment_process
from shoal.errors import Aborted, InvalidArgument, ShoalError
from shoal.v1 import rollout_pb2
from tests.support.environment_client import Stage, staged
from tests.support.waiting import eventually

SCORED, FAILED = rollout_pb2.SCORE_OUTCOME_SCORED, rollout_pb2.SCORE_OUTCOME_FAILED
CALL_S = 0.5

HOSTILE = """
import asyncio, itertools, os, signal, sys, threading, time
from shoal.environment import Environment, Observation

class Hostile(Environment):
    is_deterministic = True

    def reset(self, task, seed):
        self.heard, self.task = [], task
        if task.get("hangs"):
            time.sleep(3600)
        return "ready"

    def step(self, turn):
        self.heard.append(turn.text)
        return getattr(self, turn.text, lambda: ",".join(self.heard))()

    def close(self):
        if self.task.get("close") == "hangs":
            time.sleep(3600)
        if self.task.get("close") == "dies":
            os._exit(3)

    def memory(self):
        return len(bytearray(8 << 30))

    def exit(self):
        sys.exit("enough")

    def interrupt(self):
        raise KeyboardInterrupt

    def stop(self):
        os.kill(os.getpid(), signal.SIGSTOP)

    def recurse(self):
        return self.recurse()

    def stop_everything(self):
        class Stop(BaseException):
            pass
        raise Stop("that was all")

    def canceled(self):
        raise asyncio.CancelledError

    def regroup(self):
        os.setpgid(0, os.getpgid(os.getppid()))
        time.sleep(3600)

    def die_later(self):
        asyncio.get_running_loop().stop()

    def gym(self):
        return "x", 1.0, True, {}

    def endless(self):
        return itertools.repeat("x")

    def metric(self):
        self.metrics.update({str(number): number for number in range(100_000)})
        return Observation(done=True)

    def pipes(self):
        for fd in range(3, 64):
            try:
                os.write(fd, b"garbage" * 100)
            except OSError:
                pass
        return "wrote"

    async def stubborn(self):
        while True:
            try:
                await asyncio.sleep(3600)
            except BaseException:
                pass

    async def wait(self):
        await asyncio.sleep(0.1)
        return ",".join(self.heard)

    async def block(self):
        time.sleep(3600)

    def thread(self):
        threading.Thread(target=lambda: time.sleep(3600)).start()
        return ",".join(self.heard)

    def fork(self):
        if os.fork() == 0:
            time.sleep(3600)
        return ",".join(self.heard)

    def fork_and_return(self):
        child = os.fork()
        if child == 0:
            return "of the child"
        os.waitid(os.P_PID, child, os.WEXITED)
        return ",".join(self.heard)
"""


@pytest.fixture
async def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stage]:
    monkeypatch.setattr(environment_process, "_GRACE_S", 0.3)
    file = tmp_path / "hostile.py"
    file.write_text(HOSTILE)
    async with staged() as stage:
        await stage.configure({"name": "hostile", "source": f"{file}:Hostile", "max_memory_gib": 2.0})
        yield stage


async def _ends(stage: Stage, *said: str, task: dict[str, Any] | None = None) -> Any:
    """Plays an episode to its end, beside another one of the same process which must not suffer. Returns the result."""
    other = await stage.begin("hostile")
    await other.say("a")
    player = stage.play("hostile", task, call_timeout_s=CALL_S)
    if not (task or {}).get("hangs"):
        await player.observe()
    for text in said[:-1]:
        await player.say(text)
    if said:
        player.send(said[-1])
    async with asyncio.timeout(60):
        result = await player.result()
    assert (await other.say("b")).messages[0].content == "a,b", "the other episode goes on"
    assert (await other.finish()).outcome == SCORED
    await eventually(lambda: stage.service.num_open == 0, "nothing stays open")
    return result


@pytest.mark.parametrize(
    ("said", "detail"),
    [
        ("memory", "MemoryError"),
        ("exit", "SystemExit"),
        ("interrupt", "KeyboardInterrupt"),
        ("stop_everything", "that was all"),
        ("canceled", "CancelledError"),
        ("regroup", f"step took longer than {CALL_S:g} s"),
        ("gym", "Rewards and ends go into an Observation"),
        ("stop", f"step took longer than {CALL_S:g} s"),
        ("recurse", "RecursionError"),
        ("endless", "more than 256"),
        ("stubborn", f"step took longer than {CALL_S:g} s"),
        ("pipes", "its process died 3 times in turn 1"),
    ],
)
async def test_what_an_environment_does_costs_its_own_episode_alone(stage: Stage, said: str, detail: str) -> None:
    result = await _ends(stage, said)
    assert result.outcome == FAILED and detail in result.detail, result.detail


async def test_a_reset_that_hangs_fails_its_episode(stage: Stage) -> None:
    result = await _ends(stage, task={"hangs": True})
    assert result.outcome == FAILED and "reset took longer" in result.detail, result.detail


@pytest.mark.parametrize("close", ["hangs", "dies"])
async def test_a_close_that_hangs_or_dies_changes_no_result(stage: Stage, close: str) -> None:
    player = await stage.begin("hostile", {"close": close}, call_timeout_s=CALL_S)
    other = await stage.begin("hostile")
    await other.say("a")
    assert (await player.finish()).outcome == SCORED
    assert (await other.say("b")).messages[0].content == "a,b"
    assert (await other.finish()).outcome == SCORED


@pytest.mark.parametrize("leaves", ["thread", "fork"])
async def test_what_an_environment_leaves_behind_keeps_no_episode_from_its_end(stage: Stage, leaves: str) -> None:
    player = await stage.begin("hostile", call_timeout_s=CALL_S)
    assert (await player.say(leaves)).messages[0].content == leaves
    assert (await player.finish()).outcome == SCORED
    again = await stage.begin("hostile", call_timeout_s=CALL_S)
    assert (await again.say("a")).messages[0].content == "a"


async def test_a_forked_child_that_returns_answers_nothing(stage: Stage) -> None:
    player = await stage.begin("hostile")
    for number in (1, 2, 3):
        answer = await player.say("fork_and_return")
        assert answer.messages[0].content == ",".join(["fork_and_return"] * number), "the environment's own answer"
    assert (await player.finish()).outcome == SCORED


async def test_too_many_metrics_fail_the_episode_and_not_the_service(stage: Stage) -> None:
    player = await stage.begin("hostile")
    assert (await player.say("metric")).done
    result = await player.result()
    assert result.outcome == FAILED and "at most 64" in result.detail, result.detail


async def test_a_process_that_dies_between_the_calls_of_an_episode_is_not_replaced_for_ever(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.reward.environments.episode._MAX_DEATHS_IN_ALL", 2)
    player = await stage.begin("hostile")
    await player.say("die_later")
    with pytest.raises(Aborted, match="died 2 times"):
        await player.say("a")


async def test_a_coroutine_that_blocks_costs_no_episode_that_waits_beside_it(stage: Stage) -> None:
    # Long enough for the sleep of the first one, on a busy machine as well.
    waiting, blocking = [await stage.begin("hostile", call_timeout_s=2 * CALL_S) for _ in range(2)]
    waiting.send("wait")
    blocking.send("block")
    assert (await waiting.observe()).messages[0].content == "wait"
    assert (await waiting.finish()).outcome == SCORED
    result = await blocking.result()
    assert result.outcome == FAILED and "step took longer" in result.detail, result.detail


async def test_code_that_raises_anything_as_it_is_imported_is_refused_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "odd.py"
    file.write_text("class Stop(BaseException): ...\nraise Stop('no')\n")
    async with staged() as stage:
        with pytest.raises(ShoalError, match=r"odd\.py .*Stop at odd\.py:2: no"):
            await stage.configure({"name": "odd", "source": f"{file}:Odd"})


@pytest.mark.parametrize(
    ("tool", "why"),
    [
        ('"x", "", {"required": {"a"}}', "Object of type set is not JSON serializable"),
        ('"x", "", {"maximum": float("inf")}', "Out of range float values"),
        ('"x\\ud800", "", {}', "surrogates not allowed"),
        ('5, "", {}', ""),
        ('"x", "", nested', ""),
    ],
)
async def test_tools_that_cannot_travel_are_refused_at_once(tool: str, why: str, tmp_path: Path) -> None:
    file = tmp_path / "odd.py"
    file.write_text(
        "from shoal.conversation import ToolDefinition\nfrom shoal.environment import Environment\n"
        "nested = {}\nfor _ in range(60):\n    nested = {'a': nested}\n"
        f"class Odd(Environment):\n    tools = (ToolDefinition({tool}),)\n"
    )
    async with staged() as stage, asyncio.timeout(60):
        with pytest.raises(InvalidArgument, match=rf"^environments\.odd\.source: .*tools.*{why}"):
            await stage.configure({"name": "odd", "source": f"{file}:Odd"})
