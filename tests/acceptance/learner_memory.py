"""A learner rank that takes steps; writes what memory they took. Started by the tests of suggested memory.

Usage: python learner_memory.py FOLDER CONFIG, the configuration as JSON; under torchrun for several ranks. Writes
FOLDER/memory-<rank>.json: bytes beyond what the process had before it held a model.
"""

import json
import sys
from pathlib import Path

import numpy as np

from services.learner.launch import limit_threads
from services.learner.rank import LearnerRank
from services.learner.ranks import Ranks
from shoal.config import RunConfig, parse_config
from shoal.rollout import TrainGroup
from tests.train_batches import make_batch, make_group

RUNTIME_BYTES = 140 << 20
"""What libraries and communication take on the host between the start and the second step, whatever the model."""


def resident_bytes(name: str) -> int:
    """`VmRSS` now, or `VmHWM`, the most since `forget_peak`, of this process; without what it only maps from files."""
    lines = Path("/proc/self/status").read_text().splitlines()
    kib = {line.partition(":")[0]: int(line.split()[1]) for line in lines if line.startswith(("Vm", "Rss"))}
    return (kib[name] - kib["RssFile"]) * 1024


def forget_peak() -> None:
    """Lets `VmHWM` begin again at what is resident now."""
    Path("/proc/self/clear_refs").write_text("5")


def full_groups(config: RunConfig) -> list[TrainGroup]:
    """A step's groups, all of the greatest length."""
    rng = np.random.default_rng(0)
    lengths = [config.sampling.max_completion_tokens] * config.grpo.group_size
    return [
        make_group(f"g{n}", num_prompt_tokens=config.data.max_prompt_tokens, completion_lengths=lengths, rng=rng)
        for n in range(config.grpo.groups_per_step)
    ]


def main() -> None:
    limit_threads(1)
    folder, config = Path(sys.argv[1]), parse_config(json.loads(sys.argv[2]))
    rank = LearnerRank(Ranks.connect(), folder)
    before = resident_bytes("VmRSS")
    rank.configure("memory", config)
    groups = full_groups(config)
    peaks, applied = [], []
    # The optimizer's state is made in the first step: only the second has all that a step ever has.
    for step in range(2):
        forget_peak()
        applied.append(rank.learner.step(make_batch(f"step-{step}", rank.learner.version, groups=groups)).applied)
        peaks.append(resident_bytes("VmHWM") - before)
    held = resident_bytes("VmRSS") - before
    rank.learner.engine.close()
    result = {"peak": max(peaks), "peaks": peaks, "held": held, "applied": all(applied)}
    (folder / f"memory-{rank.ranks.rank}.json").write_text(json.dumps(result))
    rank.ranks.leave()


if __name__ == "__main__":
    main()
