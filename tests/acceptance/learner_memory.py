"""A learner rank that takes steps and writes their memory. Started by test_suggested_memory.py.

Usage: python learner_memory.py FOLDER CONFIG, the configuration as JSON; under torchrun for several ranks. Writes
FOLDER/memory-<rank>.json: bytes beyond those of the process before it had a model.
"""

import json
import sys
from pathlib import Path

import numpy as np

from services.learner.commands import LearnerCommands
from services.learner.ranks.launch import limit_threads
from services.learner.ranks.process_group import ProcessGroup
from shoal.config import RunConfig, parse_config
from shoal.rollout import TrainGroup
from tests.support.train_batches import make_batch, make_group

RUNTIME_BYTES = 140 << 20
"""Host memory of libraries and communication from the start to the second step, whatever the model."""


def resident_bytes(name: str) -> int:
    """Returns `VmRSS`, or `VmHWM` (the peak since `forget_peak`), of this process, without memory mapped from files."""
    lines = Path("/proc/self/status").read_text().splitlines()
    kib = {line.partition(":")[0]: int(line.split()[1]) for line in lines if line.startswith(("Vm", "Rss"))}
    return (kib[name] - kib["RssFile"]) * 1024


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def full_groups(config: RunConfig) -> list[TrainGroup]:
    rng = np.random.default_rng(0)
    lengths = [config.sampling.max_completion_tokens] * config.grpo.group_size
    return [
        make_group(f"g{n}", num_prompt_tokens=config.data.max_prompt_tokens, completion_lengths=lengths, rng=rng)
        for n in range(config.grpo.groups_per_step)
    ]


def main() -> None:
    limit_threads(1)
    folder, config = Path(sys.argv[1]), parse_config(json.loads(sys.argv[2]))
    commands = LearnerCommands(ProcessGroup.connect(), folder)
    before = resident_bytes("VmRSS")
    commands.configure("memory", config)
    groups = full_groups(config)
    peaks, applied = [], []
    # The optimizer's state is made in the first step: only the second has all that a step ever has.
    for step in range(2):
        forget_peak()
        applied.append(
            commands.learner.step(make_batch(f"step-{step}", commands.learner.version, groups=groups)).applied
        )
        peaks.append(resident_bytes("VmHWM") - before)
    resident = resident_bytes("VmRSS") - before
    commands.learner.engine.close()
    result = {"peak": max(peaks), "peaks": peaks, "resident": resident, "applied": all(applied)}
    (folder / f"memory-{commands.process_group.rank}.json").write_text(json.dumps(result))
    commands.process_group.leave()


if __name__ == "__main__":
    main()
