"""Kill -9 in mid-episode, at random moments: of environments, of the reward services they belong to, of generators.

`SHOAL_KILLS_SEED` chooses other moments.
"""

import asyncio
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from shoal.conversation import ChatMessage, ToolCall, ToolCallStatus
from shoal.grpo.seeds import environment_seed
from shoal.v1 import coordinator_pb2 as pb
from shoal.v1 import rollout_pb2
from tests.support.cluster import Cluster, kinds
from tests.support.environment_client import Stage, staged
from tests.support.guessing_policy import HIGHEST, LOWEST, guess_after, guesses_for
from tests.support.processes import ONE_THREAD
from tests.support.scripted_workers import arithmetic_config
from tests.support.tiny_model import make_tiny_model
from tests.support.waiting import eventually

ENVIRONMENT = {"name": "guess_number", "settings": {"min_val": LOWEST, "max_val": HIGHEST}}
SCORED = rollout_pb2.SCORE_OUTCOME_SCORED

NUM_GAMES, NUM_AT_ONCE, TURNS_PER_KILL = 600, 32, 60
NUM_KILLS, NUM_SERVICES, NUM_GENERATORS = 50, 2, 3
GROUPS_PER_STEP, GROUP_SIZE = 8, 4
WAIT_S = 900
"""For a machine that other programs fill: turns go on while processes start, and these take minutes then."""
SEED = int(os.environ.get("SHOAL_KILLS_SEED", "3"))


def number_of(seed: int) -> int:
    """Returns the number that the environment draws."""
    return random.Random(seed).randint(LOWEST, HIGHEST)


async def _play(stage: Stage, seed: int, on_turn: Callable[[], None]) -> None:
    player = stage.play("guess_number", seed=seed, call_timeout_s=60)
    observation, hints, num_turns = await player.observe(), [], 0
    while not observation.done:
        guess = guess_after(hints)
        call = ToolCall(f"call-{num_turns}", "guess", json.dumps({"number": guess}), ToolCallStatus.OK, "")
        player.send(ChatMessage("assistant", "", (call,)))
        on_turn()
        observation = await player.observe()
        num_turns += 1
        hints.append(("higher" if "higher" in observation.messages[0].content else "lower", guess))
    result = await player.result()
    assert result.outcome == SCORED, result.detail
    assert num_turns == result.metrics["guesses"] == len(guesses_for(number_of(seed))), (seed, num_turns, result)


@pytest.mark.timeout(900)
async def test_kills_of_environments_in_mid_turn_change_no_game() -> None:
    # Kills follow turns and not time: on a busy machine no process would finish its start before a kill.
    chance, num_kills = random.Random(SEED), 0

    def kill_at_random() -> None:
        nonlocal num_kills
        pids = list(stage.service.pids)
        if pids and chance.random() < 1 / TURNS_PER_KILL:
            with contextlib.suppress(ProcessLookupError):
                os.kill(chance.choice(pids), signal.SIGKILL)
                num_kills += 1

    async with staged() as stage:
        await stage.configure(ENVIRONMENT | {"episodes_per_process": 8})
        room = asyncio.Semaphore(NUM_AT_ONCE)

        async def play(seed: int) -> None:
            async with room:
                await _play(stage, seed, kill_at_random)

        async with asyncio.TaskGroup() as tasks:
            for seed in range(NUM_GAMES):
                tasks.create_task(play(seed))
        assert stage.service.num_open == 0
    print(f"{NUM_GAMES} games, {num_kills} kills")
    assert num_kills > 20, num_kills


class Processes:
    def __init__(self, coordinator: str, folder: Path) -> None:
        self._folder = folder
        self.log = folder / "turns.jsonl"
        self._commands = {
            "generator": [sys.executable, "-m", "tests.support.guessing_policy", coordinator, str(self.log)],
            "reward": [
                *(sys.executable, "-m", "services.reward"),
                *("--coordinator", coordinator, "--listen", "127.0.0.1:0"),
            ],
        }
        self._running: dict[str, list[subprocess.Popen[bytes]]] = {"generator": [], "reward": []}

    def start(self, kind: str) -> None:
        output = tempfile.NamedTemporaryFile(dir=self._folder, prefix=f"{kind}-", suffix=".log", delete=False)  # noqa: SIM115
        with output:
            process = subprocess.Popen(self._commands[kind], env=ONE_THREAD, stdout=output, stderr=output)
        self._running[kind].append(process)

    def kill_one(self, kind: str, chance: random.Random) -> bool:
        """Kills a process at random; returns False where there is none."""
        if kind == "environment":
            children = [child for process in self._running["reward"] for child in _environments(process.pid)]
            if children:
                chance.choice(children).kill()
            return bool(children)
        victim = self._running[kind].pop(chance.randrange(len(self._running[kind])))
        victim.kill()
        victim.wait()
        self.start(kind)
        return True

    def end(self) -> None:
        for process in (process for running in self._running.values() for process in running):
            process.kill()
            process.wait()


def _environments(pid: int) -> list[psutil.Process]:
    found = []
    with contextlib.suppress(psutil.Error):
        for child in psutil.Process(pid).children():
            with contextlib.suppress(psutil.Error):
                if "services.reward.environments.inside" in " ".join(child.cmdline()):
                    found.append(child)
    return found


def _config(folder: Path) -> dict[str, Any]:
    rows = folder / "games.jsonl"
    rows.write_text("".join(json.dumps({"messages": f"Game {number}"}) + "\n" for number in range(100)))
    return arithmetic_config(
        make_tiny_model(folder / "model"),
        data={"sources": [{"path": str(rows), "environment": "guess_number"}]},
        sampling={"max_completion_tokens": 1600},
        run={"num_steps": 10_000},
        grpo={
            "group_size": GROUP_SIZE,
            "groups_per_step": GROUPS_PER_STEP,
            "max_staleness": 1,
            "keep_zero_signal": True,
        },
        generator={"max_num_seqs": 32, "report_every_tokens": 4},
        reward={"num_processes": 1},
        episodes={"tool_parser": "tag", "max_turns": 20},
        checkpoint={"every_steps": 1000},
        coordinator={"worker_timeout_s": 300},
    ) | {"environments": [ENVIRONMENT | {"episodes_per_process": 8}]}


@pytest.mark.timeout(7200)
async def test_fifty_kills_of_all_kinds_in_one_run_lose_repeat_and_spoil_no_episode(
    cluster: Cluster, tmp_path: Path
) -> None:
    config = _config(tmp_path)
    processes, chance, killed = Processes(cluster.address, tmp_path), random.Random(SEED), Counter[str]()
    try:
        await cluster.add(cluster.learner, "learner-0")
        for kind, count in (("reward", NUM_SERVICES), ("generator", NUM_GENERATORS)):
            for _ in range(count):
                processes.start(kind)
        await cluster.start(config)
        await cluster.until(lambda event: event.kind == "step", WAIT_S)
        while killed.total() < NUM_KILLS:
            kind = chance.choice(("environment", "generator", "reward"))
            killed[kind] += processes.kill_one(kind, chance)
            # Kills follow turns and not time: on a busy machine a process may take long to start.
            wanted = _lines(processes.log) + chance.randint(20, 150)
            await eventually(lambda wanted=wanted: _lines(processes.log) > wanted, "turns are played", timeout_s=WAIT_S)
            await asyncio.sleep(chance.uniform(0.0, 0.5))
        await cluster.stop(pb.STOP_MODE_DRAIN)
        run, events = await cluster.end(WAIT_S)
        assert run.state == pb.RUN_STATE_STOPPED, (run.message, kinds(events)[-20:])
        groups = await cluster.groups()
    finally:
        processes.end()
    seen = Counter(kinds(events))
    print(dict(killed), {kind: seen[kind] for kind in ("worker_lost", "episode_replayed", "environment_outage")})
    assert min(killed.values()) >= 8, f"kills of each kind: {killed}"
    assert seen["episode_replayed"] > 0 and not seen["environment_outage"], seen
    _check_ledger(cluster, groups)
    _check_turns(processes.log)


def _lines(log: Path) -> int:
    return log.read_bytes().count(b"\n") if log.exists() else 0


def _check_ledger(cluster: Cluster, groups: list[pb.RolloutGroup]) -> None:
    """Every group once, every episode as it would have been without a kill, and each trained on once."""
    orders = sorted(group.order_number for group in groups)
    assert orders == list(range(len(groups))) and len(groups) >= 2 * GROUPS_PER_STEP, orders
    for group in groups:
        assert len(group.rollouts) == GROUP_SIZE and group.state == "TRAINED", (group.order_number, group.state)
        number = number_of(environment_seed(0, group.order_number))
        for rollout in group.rollouts:
            episode, name = rollout.episode, (group.order_number, rollout.sample_index)
            calls = [call.arguments_json for turn in episode.turns for call in turn.message.tool_calls]
            assert episode.outcome == SCORED, (name, episode.stop_reason, episode.detail)
            assert [json.loads(call)["number"] for call in calls] == guesses_for(number), (name, calls)
            assert episode.stop_reason == "done", (name, episode)
            assert episode.metrics["guesses"] == len(episode.turns) and episode.metrics["solved"] == 1, name
            paid = [1 - abs(guess - number) / (HIGHEST - LOWEST) for guess in guesses_for(number)]
            assert rollout.score.reward == pytest.approx(sum(paid)), name
    trained = sum(message.HasField("rollout") for batch in cluster.learner.batches for message in batch)
    assert trained == GROUP_SIZE * len(groups), f"{trained} rollouts in train steps, {len(groups)} groups in the ledger"


def _check_turns(log: Path) -> None:
    """No turn is sampled once more when the turn behind it has been asked for."""
    furthest: dict[str, int] = {}
    num_again = 0
    for line in map(json.loads, log.read_text().splitlines()):
        episode, _, rest = line["request"].partition("/turn-")
        number, call = (int(part) for part in rest.split("/call-"))
        assert number >= furthest.get(episode, 1), f"{line['request']} comes after turn {furthest[episode]}"
        furthest[episode] = number
        num_again += call > 0
    print(f"{sum(1 for _ in log.open())} turns asked for, {num_again} of them again, in {len(furthest)} episodes")
    assert num_again > 0, "no kill hit a turn"
