"""`python -m tests.simulation SEED...`: plays schedules, and prints what happened and what does not hold.

`python -m tests.simulation --dump SEED` prints the schedule of a seed, as `failing/` keeps those that once failed.
"""

import random
import sys
import tempfile
from pathlib import Path

from tests.simulation.schedule import drawn
from tests.simulation.simulation import simulate
from tests.support.tiny_model import make_tiny_model


def main() -> int:
    if sys.argv[1] == "--dump":
        print(drawn(random.Random(f"{sys.argv[2]}/scenario")).dump(), end="")
        return 0
    num_failed = 0
    with tempfile.TemporaryDirectory() as folder:
        model = make_tiny_model(Path(folder))
        for seed in map(int, sys.argv[1:]):
            outcome = simulate(seed, model)
            print("\n".join(outcome.trace))
            print(outcome if outcome.violations else f"seed {seed}: all is well")
            num_failed += bool(outcome.violations)
    return int(bool(num_failed))


if __name__ == "__main__":
    sys.exit(main())
