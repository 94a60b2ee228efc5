"""`python -m services.reward`: a reward service process."""

import argparse
import asyncio
import importlib.util
import sys
from functools import partial

from services.reward.allowed import Allowed, add_allowed_options, allowed_by
from shoal.worker.arguments import WorkerArguments, add_grace_option, add_worker_options, worker_arguments

EXTRA_MISSING = 3
GRACE_S = 10.0


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m services.reward", description="Scores completions, and plays episodes."
    )
    add_worker_options(parser)
    add_grace_option(parser, "the completions that are being scored", default_s=GRACE_S)
    add_allowed_options(parser)
    namespace = parser.parse_args()
    if importlib.util.find_spec("math_verify") is None:
        print("the reward service needs math_verify: pip install 'shoal[reward]'", file=sys.stderr)
        return EXTRA_MISSING
    return asyncio.run(_run(worker_arguments(namespace), allowed_by(namespace), namespace.grace_s))


async def _run(arguments: WorkerArguments, allowed: Allowed, grace_s: float) -> int:
    from services.reward.service import RewardService
    from shoal.worker.process import run_worker

    service = RewardService(allowed)
    return await run_worker(service, arguments, drain=partial(service.drain, grace_s), beside=[service.environments])


if __name__ == "__main__":
    sys.exit(main())
