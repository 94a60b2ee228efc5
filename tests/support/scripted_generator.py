"""A generator process with a scripted engine: `python -m tests.support.scripted_generator ...`.

Each completion waits with 7 tokens until the request is dropped.
"""

import argparse
import asyncio
import sys

from services.generator.service import GeneratorService
from shoal.config import RunConfig
from shoal.worker.arguments import add_worker_options, worker_arguments
from shoal.worker.process import run_worker
from shoal.worker.reexec import Program, Reexec
from tests.support.scripted_engine import ScriptedEngine


async def _start(_: RunConfig) -> ScriptedEngine:
    engine = ScriptedEngine()
    engine.sample_gate, engine.tokens_at_gate = asyncio.Event(), 7
    return engine


def main() -> int:
    parser = argparse.ArgumentParser()
    add_worker_options(parser)
    reexec = Reexec(Program.of_this_process())
    servicer = GeneratorService(_start, reexec)

    async def drain() -> None:
        await servicer.drain(0.2)

    arguments = worker_arguments(parser.parse_args())
    return reexec.finish(asyncio.run(run_worker(servicer, arguments, reexec, drain=drain)))


if __name__ == "__main__":
    sys.exit(main())
