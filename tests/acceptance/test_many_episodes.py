"""Two thousand episodes at once, over real sockets: the memory that they take, and the time of a turn."""

import json
import time
from pathlib import Path

import psutil
import pytest

from shoal.v1 import coordinator_pb2 as pb
from tests.support.cluster import Cluster, kinds
from tests.support.scripted_environment import ScriptedPolicy, ScriptedStage
from tests.support.scripted_workers import arithmetic_config
from tests.support.waiting import eventually

GROUPS, GROUP_SIZE = 40, 50
MAX_MEMORY_BYTES = 1 << 30
MAX_TURN_S = 0.02
"""CPU time of a turn in coordinator, scripted environment and scripted generator together."""


@pytest.mark.timeout(900)
async def test_two_thousand_episodes_at_once_take_less_than_a_gibibyte(
    cluster: Cluster, model: Path, tmp_path: Path
) -> None:
    rows = tmp_path / "questions.jsonl"
    rows.write_text("".join(json.dumps({"messages": f"Question {number}"}) + "\n" for number in range(GROUPS)))
    config = arithmetic_config(
        model,
        data={"sources": [{"path": str(rows), "environment": "counter"}]},
        sampling={"max_completion_tokens": 1000},
        run={"num_steps": 1},
        grpo={"group_size": GROUP_SIZE, "groups_per_step": GROUPS, "max_staleness": 0},
        generator={"max_num_seqs": GROUPS * GROUP_SIZE},
        episodes={"tool_parser": "tag"},
    ) | {"environments": [{"name": "counter", "server": "127.0.0.1:1"}]}
    stage, policy = ScriptedStage(), ScriptedPolicy(cluster.plane)
    stage.holds_at = 2
    await cluster.add_all(policy, rewards=(stage,))
    process = psutil.Process()
    before, began_s = process.memory_info().rss, time.process_time()
    await cluster.start(config)

    await eventually(lambda: stage.num_held == GROUPS * GROUP_SIZE, "all are open", timeout_s=600)
    memory = process.memory_info().rss - before
    stage.may_answer.set()
    run, events = await cluster.end(600)
    assert run.state == pb.RUN_STATE_FINISHED, (run.message, kinds(events))
    turn_s = (time.process_time() - began_s) / (3 * GROUPS * GROUP_SIZE)
    print(
        f"{GROUPS * GROUP_SIZE} episodes open at once: {memory / 2**20:.0f} MiB; {1000 * turn_s:.2f} ms of CPU a turn"
    )
    assert memory < MAX_MEMORY_BYTES, f"{memory / 2**20:.0f} MiB"
    assert turn_s < MAX_TURN_S, f"{1000 * turn_s:.2f} ms"
    assert {len(completion.episode.turns) for completion in stage.episodes} == {3} and stage.num_open == 0
