"""EnvironmentService over real gRPC, with environments in real processes."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.environment_client import Player, RewardStage, Stage, staged, staged_with_rewards

SCRIPTED = '''
import asyncio, os, subprocess, sys, time
from shoal.environment import Environment, InvalidTask, Observation, Unscorable

def near(): ...
def far(): ...

class Scripted(Environment):
    """Does what the turns say."""

    is_deterministic = DETERMINISTIC
    tools = (near, far)

    def reset(self, task, seed):
        if task.get("bad"):
            raise InvalidTask("it is bad")
        self.offered_at_reset = self.offered_tools
        self.heard = []
        self.fresh = str(os.getpid()) if task.get("tells_pid") else ""
        return f"seed {seed} {self.fresh}".strip()

    def step(self, turn):
        self.heard.append(turn.text)
        self.metrics["turns"] = len(self.heard)
        verb, _, rest = turn.text.partition(" ")
        if verb == "hang":
            time.sleep(3600)
        if verb == "wait":
            return self.wait()
        if verb == "nap":
            return self.nap()
        if verb == "naps":
            return self.naps(rest)
        if verb == "compute":
            time.sleep(float(rest))
        if verb == "raise":
            raise ValueError("the dice are gone")
        if verb == "die" and not os.path.exists(rest):
            open(rest, "w").close()
            os._exit(3)
        if verb == "always_die":
            os._exit(3)
        if verb == "print":
            for _ in range(int(rest)):
                print("x" * 1000)
        if verb == "big":
            return "a" * int(rest) + "z"
        if verb == "nonsense":
            return object()
        if verb == "unscorable":
            raise Unscorable("no answer is known")
        if verb == "leave":
            subprocess.Popen(["sleep", "3600"], start_new_session=True)
        if verb == "tools":
            assert self.offered_tools is self.offered_at_reset
            return "all" if self.offered_tools is None else ",".join(sorted(self.offered_tools)) or "none"
        if verb == "done":
            self.reward, self.detail = 1.5, "finished"
            return Observation(reward=0.5, done=True)
        return Observation(",".join(self.heard), reward=float(len(self.heard)))

    async def wait(self):
        await asyncio.sleep(3600)

    async def nap(self):
        await asyncio.sleep(0.5)
        return ",".join(self.heard)

    async def naps(self, begun):
        open(begun, "w").close()
        for _ in range(10):
            await asyncio.sleep(0.01)
        return ",".join(self.heard)
'''


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    async with staged() as stage:
        yield stage


@pytest.fixture
async def reward() -> AsyncIterator[RewardStage]:
    async with staged_with_rewards() as stage:
        yield stage


def _table(folder: Path, name: str, *, is_deterministic: bool) -> dict[str, Any]:
    file = folder / f"{name}.py"
    file.write_text(SCRIPTED.replace("DETERMINISTIC", str(is_deterministic)))
    return {"name": name, "source": f"{file}:Scripted"}


@pytest.fixture
def scripted(tmp_path: Path) -> dict[str, Any]:
    return _table(tmp_path, "scripted", is_deterministic=True)


@pytest.fixture
def forgetful(tmp_path: Path) -> dict[str, Any]:
    return _table(tmp_path, "forgetful", is_deterministic=False)


@pytest.fixture
async def player(stage: Stage, scripted: dict[str, Any]) -> Player:
    await stage.configure(scripted)
    return await stage.begin("scripted")
