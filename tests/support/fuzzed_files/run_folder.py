"""The folder of a run with every kind of file in it, as a coordinator leaves it."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path

from services.coordinator.run.checkpoints import _sha256
from services.coordinator.store.events import EVENTS, EventLog
from services.coordinator.store.files.manifest import SNAPSHOT, CheckpointManifest, write_manifest
from services.coordinator.store.ledger import Ledger
from services.coordinator.store.progress import Progress
from services.coordinator.store.rollouts import LEDGER
from services.coordinator.store.rows import TrainedGroup
from services.coordinator.store.run_record import RunRecord, RunState
from shoal.config import load_config
from shoal.paths import step_name
from shoal.rollout import Rollout
from shoal.scores import Score, ScoreOutcome, VerifierScore
from shoal.v1 import learner_pb2
from tests.support.repository import ROOT
from tests.support.sampled import PROMPT, completion
from tests.support.whole_checkpoints import write_snapshot

RUN = "sums"


def make_run_folder(data_dir: Path) -> Path:
    """Makes the run "sums" of two steps, with a checkpoint of the second; returns its folder."""
    folder = data_dir / RUN
    folder.mkdir(parents=True)
    record = RunRecord(RUN, folder, state=RunState.STOPPED, policy_version=2, num_steps=4, furthest_step=2)
    record.last_checkpoint_id, record.metrics = step_name(2), {"scores": 0.5}
    record.save()
    record.save_config(load_config(ROOT / "configs/quickstart.toml"))
    events = EventLog(folder / EVENTS)
    events.add("state", "the run is accepted", state="STARTING", policy_version=0)
    events.add("restored", "restored step 1", policy_version=1, attempt=1)
    events.close()
    row = {"time/step": 2.0, "scores": 0.5, "val/sequence_lengths": 9.0, "loss/policy_avg": 0.1}
    (folder / "metrics.jsonl").write_text("".join(json.dumps({"step": step, **row}) + "\n" for step in (1, 2)))
    rates = {"correct_rates": {"sums:0": 1.0, "sums:1": 0.0}}
    (folder / "evaluations.jsonl").write_text("".join(json.dumps({"step": step, **rates}) + "\n" for step in (0, 2)))
    asyncio.run(_fill(folder))
    return folder


async def _fill(folder: Path) -> None:
    ledger = Ledger(folder / LEDGER, attempt=1)
    await ledger.open()
    for number in range(4):
        prompt = replace(PROMPT, prompt_id=f"sums:{number}")
        await ledger.issued(number, number, f"g{number}", prompt, "", 0, "")
        if number < 3:
            await ledger.sampled(
                number, [completion(index, "It is 2.", num_tokens=2) for index in range(2)], 0, "generator-a"
            )
            await ledger.scored(number, [_score(index) for index in range(2)], 0)
    trained = [
        TrainedGroup(0, 0, tuple(Rollout(completion(index, "It is 2.", num_tokens=2), 0.5) for index in range(2)))
    ]
    await ledger.step_done(Progress(2, 3, 4), trained=trained, dropped=[(1, "no signal")])
    at = folder / "checkpoints" / step_name(2)
    at.mkdir(parents=True)
    segments = tuple(await write_snapshot(ledger, at / SNAPSHOT))
    file = learner_pb2.FileDigest(path="rank-0.pt", num_bytes=4, sha256="0" * 64)
    digest = _sha256(at / SNAPSHOT)
    write_manifest(at, CheckpointManifest(step_name(2), 1, 2, 3, SNAPSHOT, digest, (file,), segments))
    await ledger.close()


def _score(index: int) -> Score:
    verdict = VerifierScore("gsm8k", ScoreOutcome.SCORED, 1.0, "2")
    return Score(sample_index=index, outcome=ScoreOutcome.SCORED, reward=1.0, verifier_scores=(verdict,))
