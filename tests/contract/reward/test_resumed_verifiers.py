"""Contract tests of custom verifiers that are corrected while their run is paused, or before it is resumed."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from services.reward.service import RewardService
from shoal.errors import InvalidArgument
from shoal.rollout import GroundTruth
from shoal.scores import ScoreOutcome
from shoal.v1 import coordinator_pb2 as pb
from shoal.v1 import reward_pb2
from tests.contract.reward.test_custom_verifiers import write
from tests.contract.reward.test_runs_with_custom_verifiers import MINE
from tests.support.cluster import Cluster, kinds
from tests.support.reward_client import TIMEOUT_S, Client
from tests.support.scripted_workers import ScriptedGenerator, arithmetic_config

BROKEN = "def score(completion): return 'good'\n"
CORRECTED = "def score(completion): return len(completion)\n"
RELOAD = reward_pb2.ReloadVerifiersRequest()


def is_outage(event: pb.RunEvent) -> bool:
    return event.kind == "reward_outage"


@pytest.fixture
async def paused(cluster: Cluster, model: Path, tmp_path: Path, reward: RewardService) -> AsyncIterator[Path]:
    """A run that its broken verifier has paused; yields the verifier's file."""
    path = tmp_path / "score.py"
    write(path, BROKEN)
    await cluster.add_all(ScriptedGenerator(cluster.plane), rewards=(reward,))
    sections = {"run": {"name": "mine", "num_steps": 2}, "grpo": {"group_size": 4, "groups_per_step": 3}}
    custom = {"num_processes": 2, "custom": {"mine": {"file": str(path)}}}
    await cluster.start(arithmetic_config(model, data=MINE, reward=custom, **sections))
    events = await cluster.until(is_outage)
    assert "score returned 'good'" in events[-1].message, events[-1].message
    await cluster.until("state", state="PAUSED")
    yield path


async def test_a_resume_scores_with_the_corrected_file_and_drops_nothing(cluster: Cluster, paused: Path) -> None:
    write(paused, CORRECTED)
    await cluster.resume()
    _, events = await cluster.finish()
    assert kinds(events).count("reward_outage") == 1 and "group_dropped" not in kinds(events), kinds(events)
    digest = hashlib.sha256(CORRECTED.encode()).hexdigest()
    parts = [part for group in await cluster.groups() for r in group.rollouts for part in r.score.verifier_scores]
    assert parts and {part.code_digest for part in parts} == {digest}


async def test_a_second_failure_pauses_again_and_drops_nothing(cluster: Cluster, paused: Path) -> None:
    for number in (2, 3):
        await cluster.resume()
        seen: list[pb.RunEvent] = []

        def is_next_outage(event: pb.RunEvent, seen: list[pb.RunEvent] = seen, number: int = number) -> bool:
            seen.append(event)
            return sum(map(is_outage, seen)) == number

        events = await cluster.until(is_next_outage)
        assert "failed again" in events[-1].message, events[-1].message
    write(paused, CORRECTED)
    await cluster.resume()
    _, events = await cluster.finish()
    assert kinds(events).count("reward_outage") == 3 and "group_dropped" not in kinds(events), kinds(events)
    trained = [group for group in await cluster.groups() if group.state == "TRAINED"]
    assert sorted(group.order_number for group in trained) == list(range(6)), "a prompt was lost in an outage"


async def test_code_that_cannot_be_used_leaves_the_run_paused_and_says_why(cluster: Cluster, paused: Path) -> None:
    write(paused, "def score(completion:\n")
    with pytest.raises(InvalidArgument, match=r"reward\.custom\.mine\.file: .*SyntaxError at .*score\.py:1"):
        await cluster.resume()
    assert (await cluster.run()).state == pb.RUN_STATE_PAUSED
    write(paused, CORRECTED)
    await cluster.resume()
    await cluster.finish()


async def test_a_resumed_attempt_scores_with_the_corrected_file_on_the_same_service(
    cluster: Cluster, paused: Path
) -> None:
    await cluster.stop(pb.STOP_MODE_NOW)
    run, _ = await cluster.end()
    assert run.state == pb.RUN_STATE_STOPPED, run.message
    write(paused, CORRECTED)
    _, events = await cluster.run_to_end({}, run.run_id, resume=True)
    assert kinds(events).count("reward_outage") == 1, kinds(events)


async def test_modules_that_the_file_imports_are_read_again_too(client: Client, tmp_path: Path) -> None:
    path = write(tmp_path / "score.py", "import weights_of_mine\ndef score(completion): return weights_of_mine.VALUE\n")
    write(tmp_path / "weights_of_mine.py", "VALUE = 0.25\n")
    await client.configured(num_processes=2, custom={"mine": {"file": path}})
    truth = [GroundTruth("mine", "")]
    assert {score.reward for score in await client.score(truth, ["x"] * 8)} == {0.25}
    write(tmp_path / "weights_of_mine.py", "VALUE = 0.75  # Another size, so that no compiled module is taken.\n")
    await client.stub.ReloadVerifiers(RELOAD, timeout=TIMEOUT_S)
    assert {score.reward for score in await client.score(truth, ["x"] * 8)} == {0.75}


async def test_a_reload_judges_what_is_being_judged_again_and_changes_nothing_if_a_file_is_broken(
    client: Client, tmp_path: Path
) -> None:
    started = tmp_path / "started"
    hanging = f"import time\ndef score(completion):\n    open({str(started)!r}, 'w').close()\n    time.sleep(3600)\n"
    path = tmp_path / "score.py"
    write(path, hanging)
    await client.configured(num_processes=1, timeout_s=600.0, custom={"mine": {"file": str(path)}})
    scoring = asyncio.create_task(client.score([GroundTruth("mine", "")], ["four"]))
    await client.until(lambda _: started.exists())
    pids = (await client.status()).pool_pids
    write(path, "def scores(completion): ...\n")
    with pytest.raises(InvalidArgument, match=r"reward\.custom\.mine\.function: .*'score'"):
        await client.stub.ReloadVerifiers(RELOAD, timeout=TIMEOUT_S)
    assert (await client.status()).pool_pids == pids and not scoring.done()
    write(path, CORRECTED)
    await client.stub.ReloadVerifiers(RELOAD, timeout=TIMEOUT_S)
    (score,) = await scoring
    assert (score.outcome, score.reward) == (ScoreOutcome.SCORED, 4.0), score
