"""Contract tests of what a person sees of a custom verifier: what it prints, and that it hangs."""

import asyncio
import logging
from pathlib import Path

import pytest

from shoal.rollout import GroundTruth
from shoal.scores import ScoreOutcome
from shoal.v1 import worker_pb2
from tests.contract.reward.test_custom_verifiers import write
from tests.support.reward_client import Client

TALKS = """
import logging, os, sys, time
print("imported")
def score(completion):
    print("scoring", completion)
    print("to stderr", file=sys.stderr)
    logging.getLogger("of.mine").warning("a warning about %s", completion)
    os.write(1, b"written\\n")
    if completion == "hang":
        print("last words")
        time.sleep(3600)
    print("no end of line", end="")
    return 1
"""
HANGS = "import time\ndef score(completion): time.sleep(3600)\n"


async def test_what_a_verifier_prints_is_in_the_log_with_its_name(
    client: Client, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    path = write(tmp_path / "score.py", TALKS)
    await client.configured(num_processes=1, timeout_s=2.5, custom={"mine": {"file": path}})
    truth = [GroundTruth("mine", "")]
    (first,) = await client.score(truth, ["five"])
    assert first.reward == 1.0, first
    await client.score([GroundTruth("gsm8k", "5")], ["5"])
    (second,) = await client.score(truth, ["hang"])
    assert second.outcome is ScoreOutcome.FAILED

    def heard() -> list[str]:
        return [record.getMessage() for record in caplog.records if record.name == "services.reward.pool.output"]

    await client.until(lambda _: "mine: last words" in heard())
    assert heard() == [
        "mine: imported",
        "mine: scoring five",
        "mine: to stderr",
        "mine: a warning about five",
        "mine: written",
        "mine: no end of line",
        "mine: scoring hang",
        "mine: to stderr",
        "mine: a warning about hang",
        "mine: written",
        "mine: last words",
    ]


async def test_a_hanging_verifier_is_named_in_the_status_before_its_time_is_up(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.reward.pool.pool.STAGES_S", (0.2, 0.5))
    path = write(tmp_path / "score.py", HANGS)
    await client.configured(num_processes=2, timeout_s=600.0, custom={"mine": {"file": path}})
    scoring = asyncio.create_task(client.score([GroundTruth("mine", "")], ["x"]))
    await client.until(lambda status: "the verifier mine has been judging one completion" in status.status.message)
    status = (await client.status()).status
    assert status.state == worker_pb2.WORKER_STATE_READY and "reward.timeout_s (600 s)" in status.message, status
    assert not scoring.done()
    scoring.cancel()
