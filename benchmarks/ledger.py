"""Measures what a checkpoint of the ledger costs, early and late in a run of long completions.

    python benchmarks/ledger.py                        # 200 steps of 8 groups of 16 completions of 8k tokens
    python benchmarks/ledger.py --num-steps 50 --num-tokens 2048

The ledger and the checkpoints are the coordinator's own; completions, scores and the learner are scripted, and the
learner writes nothing. While a checkpoint is written the next step's first group is issued again and again, as in a
run that samples ahead; "issued" is the longest that one of them took. One line a checkpoint: its wall time, its bytes,
those of the database, of the segments of texts, of used-up groups and of tokens, all in MB of 10**6 bytes. At the end
rollouts are listed, as `shoal run rollouts` does, with the time that each listing took.
"""

import argparse
import asyncio
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from services.coordinator.run.checkpoints import Checkpoints
from services.coordinator.store.ledger import Ledger
from services.coordinator.store.progress import Progress
from services.coordinator.store.rollouts import list_rollouts
from services.coordinator.store.rows import TrainedGroup
from services.coordinator.store.segments.series import Series
from shoal.rollout import Completion, FinishReason, Prompt, Rollout, VersionSpan, WeightVersion
from shoal.scores import Score, ScoreOutcome, VerifierScore
from shoal.v1 import coordinator_pb2 as pb
from shoal.v1 import learner_pb2
from tests.support.whole_checkpoints import save_whole

PROMPT = Prompt("questions:7", np.arange(200, dtype=np.int32), "How many eggs does she sell? " * 20, ())
QUESTIONS = {
    "step 1": pb.ListRolloutsRequest(step=1),
    "the last 50 groups": pb.ListRolloutsRequest(last=50, page_size=50),
    "the best 50 groups": pb.ListRolloutsRequest(order=pb.ROLLOUT_ORDER_REWARD, page_size=50),
    "dropped groups": pb.ListRolloutsRequest(dropped=True),
}


class Learner:
    """Saves nothing, at once."""

    async def write_checkpoint(self, checkpoint_id: str, version: Any, keep: Any) -> None:
        pass

    async def finish_checkpoint(self, checkpoint_id: str, version: Any, keep: Any) -> Sequence[learner_pb2.FileDigest]:
        return ()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-steps", type=int, default=200)
    parser.add_argument("--every-steps", type=int, default=10, help="steps between checkpoints")
    parser.add_argument("--num-groups", type=int, default=8, help="groups of a step")
    parser.add_argument("--group-size", type=int, default=16)
    parser.add_argument("--num-tokens", type=int, default=8192, help="of a completion")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ledger-") as folder:
        asyncio.run(measure(Path(folder), options))


async def measure(folder: Path, options: argparse.Namespace) -> None:
    """Takes the steps of a run, and prints a line for each checkpoint."""
    ledger, checkpoints = Ledger(folder / "ledger.sqlite", attempt=0), Checkpoints(folder)
    await ledger.open()
    print(" step  checkpoint_s  issued_ms  checkpoint_MB  database_MB  texts_MB  groups_MB  tokens_MB  step_s")
    began = time.monotonic()
    for step in range(1, options.num_steps + 1):
        await take_step(ledger, step, options)
        if step % options.every_steps:
            continue
        step_s = (time.monotonic() - began) / options.every_steps
        began = time.monotonic()
        saving = asyncio.create_task(save_whole(checkpoints, Learner(), ledger))
        issued_s = await longest_issue(ledger, step * options.num_groups, saving)
        checkpoint_id, _ = await saving
        duration_s = time.monotonic() - began
        saved, database = (megabytes(folder, path) for path in (f"checkpoints/{checkpoint_id}/*", "ledger.sqlite*"))
        segments = {series: megabytes(folder, f"segments/{series}-*") for series in Series}
        print(
            f"{step:5} {duration_s:13.3f} {issued_s * 1e3:10.1f} {saved:14.3f} {database:12.2f} "
            f"{segments[Series.TEXT]:9.0f} {segments[Series.GROUPS]:10.2f} {segments[Series.TOKENS]:10.0f} "
            f"{step_s:7.2f}",
            flush=True,
        )
        began = time.monotonic()
    await ledger.close()
    for name, request in QUESTIONS.items():
        began = time.monotonic()
        count = len(list_rollouts(folder, request).groups)
        print(f"{name}: {count} groups in {time.monotonic() - began:.3f} s")


async def take_step(ledger: Ledger, step: int, options: argparse.Namespace) -> None:
    """Issues, samples, scores and trains on the groups of a step."""
    first = (step - 1) * options.num_groups
    trained = []
    for order_number in range(first, first + options.num_groups):
        completions = [completion(step, index, options.num_tokens) for index in range(options.group_size)]
        scores = [
            Score(
                index,
                ScoreOutcome.SCORED,
                1.0,
                (VerifierScore("math", ScoreOutcome.SCORED, 1.0, "extracted: 18", 0.01),),
            )
            for index in range(options.group_size)
        ]
        await ledger.issued(order_number, order_number, f"group-{order_number:08d}", PROMPT, "ab" * 16, step - 1, "")
        await ledger.sampled(order_number, completions, step - 1, "generator-0")
        await ledger.scored(order_number, scores, step - 1)
        trained.append(TrainedGroup(order_number, 1, tuple(Rollout(each, 0.5, reward=1.0) for each in completions)))
    progress = Progress(step, first + options.num_groups, step * options.num_groups * options.group_size)
    await ledger.step_done(progress, trained=trained, dropped=())


def completion(step: int, index: int, num_tokens: int) -> Completion:
    """Makes a completion of four characters a token."""
    tokens = np.arange(index, index + num_tokens, dtype=np.int32)
    return Completion(
        sample_index=index,
        token_ids=tokens,
        behavior_logprobs=-tokens.astype(np.float32),
        finish_reason=FinishReason.LENGTH,
        version_spans=(VersionSpan(WeightVersion(0, step - 1), 0, num_tokens),),
        seed=2**50 + index,
        text=f"{step} + {index} " * (num_tokens * 4 // 8),
    )


async def longest_issue(ledger: Ledger, number: int, saving: "asyncio.Task[Any]") -> float:
    """Issues a group until a checkpoint is written; returns the longest time that it took, in seconds."""
    longest_s = 0.0
    while not saving.done():
        began = time.monotonic()
        await ledger.issued(number, number, f"group-{number:08d}", PROMPT, "ab" * 16, 0, "")
        longest_s = max(longest_s, time.monotonic() - began)
        await asyncio.sleep(0.001)
    return longest_s


def megabytes(folder: Path, pattern: str) -> float:
    """Returns the size of the files that a pattern names."""
    return sum(path.stat().st_size for path in folder.glob(pattern) if path.is_file()) / 1e6


if __name__ == "__main__":
    main()
