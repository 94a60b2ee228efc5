"""A learner rank that takes one step; writes what memory it took. Started by test_suggested_memory.py.

Usage: python learner_memory.py FOLDER CONFIG, the configuration as JSON.
"""

import json
import sys
from pathlib import Path

import numpy as np

from services.learner.launch import limit_threads
from services.learner.rank import LearnerRank
from services.learner.ranks import Ranks
from shoal.config import parse_config
from tests.train_batches import make_batch, make_group


def resident_bytes(name: str) -> int:
    """`VmRSS` now, or `VmHWM`, the most so far, of this process."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) * 1024


def main() -> None:
    limit_threads(2)
    folder, config = Path(sys.argv[1]), parse_config(json.loads(sys.argv[2]))
    rank = LearnerRank(Ranks.connect(), folder)
    before = resident_bytes("VmRSS")
    rank.configure("memory", config)
    rng = np.random.default_rng(0)
    lengths = [config.sampling.max_completion_tokens] * config.grpo.group_size
    groups = [
        make_group(f"g{n}", num_prompt_tokens=config.data.max_prompt_tokens, completion_lengths=lengths, rng=rng)
        for n in range(config.grpo.groups_per_step)
    ]
    outcome = rank.learner.step(make_batch("first", rank.learner.version, groups=groups))
    peak = resident_bytes("VmHWM") - before
    rank.learner.engine.close()
    rank.ranks.leave()
    (folder / "memory.json").write_text(json.dumps({"peak": peak, "applied": outcome.applied}))


if __name__ == "__main__":
    main()
