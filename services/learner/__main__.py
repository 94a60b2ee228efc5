"""`python -m services.learner`: a learner process with all its ranks on this machine.

Under `torchrun --nproc-per-node 8 -m services.learner` each process is one rank. Rank 0 serves, the others follow.
"""

import argparse
import asyncio
import importlib.util
import logging
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING

from services.learner.ranks.launch import Followers, is_launched, let_segments_grow, limit_threads
from shoal.worker.arguments import WorkerArguments, add_grace_option, add_worker_options, worker_arguments
from shoal.worker.parent import die_with_parent
from shoal.worker.reexec import RESTART_EXIT_CODE, Program, Reexec

if TYPE_CHECKING:
    from services.learner.ranks.process_group import ProcessGroup

EXTRA_MISSING = 3
GRACE_S = 60.0


def main() -> int:
    """Runs until SIGTERM (rank 0), or until rank 0 leaves (other ranks). Returns the exit code of the process."""
    reexec = _reexec()
    parser = argparse.ArgumentParser(prog="python -m services.learner", description="Trains the policy.")
    add_worker_options(parser)
    parser.add_argument(
        "--num-ranks",
        type=int,
        metavar="N",
        help="processes to train with on this machine (default: 1); leave the option out under torchrun, which sets "
        "the number",
    )
    add_grace_option(parser, "the step under way and its checkpoint", default_s=GRACE_S)
    options = parser.parse_args()
    arguments = worker_arguments(options)
    num_ranks = options.num_ranks
    if num_ranks is not None and num_ranks < 1:
        parser.error(f"--num-ranks must be at least 1 (given: {num_ranks})")
    missing = [
        name
        for name in ("torch", "deepspeed", "safetensors", "xxhash", "peft", "bitsandbytes")
        if importlib.util.find_spec(name) is None
    ]
    if missing:
        print(f"the learner needs {', '.join(missing)}: run pip install 'shoal[learner]'", file=sys.stderr)
        return EXTRA_MISSING
    let_segments_grow()
    if is_launched():
        world_size = os.environ.get("WORLD_SIZE", "1")
        if num_ranks is not None and str(num_ranks) != world_size:
            parser.error(
                f"--num-ranks is {num_ranks}, but RANK and WORLD_SIZE in the environment make this process one of "
                f"{world_size} ranks: under torchrun leave --num-ranks out; without torchrun unset RANK"
            )
        limit_threads(int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
        if "TORCHELASTIC_RUN_ID" in os.environ:
            # A rank that outlives its torchrun would keep its place, and the machine's next torchrun could not join.
            die_with_parent()
        return _lead(arguments, None, reexec, options.grace_s) if os.environ["RANK"] == "0" else _follow(arguments)
    limit_threads(num_ranks or 1)
    followers = Followers(num_ranks, sys.argv[1:]) if num_ranks and num_ranks > 1 else None
    return _lead(arguments, followers, reexec, options.grace_s)


def _reexec() -> Reexec | None:
    """Returns how the learner restarts for another run (shoal/worker/reexec.py); None if it cannot."""
    if not is_launched():
        return Reexec(Program.of_this_process())
    left = int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")) - int(
        os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    )
    return Reexec(Program.of_this_process(), exit_code=RESTART_EXIT_CODE) if left > 0 else None


def _lead(arguments: WorkerArguments, followers: Followers | None, reexec: Reexec | None, grace_s: float) -> int:
    from services.learner.commands import LearnerCommands
    from services.learner.ranks.process_group import ProcessGroup
    from services.learner.service import LearnerService
    from shoal.worker.address import advertised_address, listening_interface
    from shoal.worker.process import run_worker

    def make_commands() -> LearnerCommands:
        return LearnerCommands(ProcessGroup.connect(followers.store if followers else None), arguments.data_dir)

    def find_host() -> str:
        address = advertised_address(
            listen=arguments.listen, port=0, advertise=arguments.advertise, coordinator=arguments.coordinator
        )
        return address.rpartition(":")[0].strip("[]")

    async def run() -> int:
        service = LearnerService(
            make_commands,
            find_host,
            interface=listening_interface(arguments.listen),
            num_ranks=int(os.environ.get("WORLD_SIZE", "1")),
            follower_pids=followers.pids if followers else (),
            explain=followers.explain if followers else str,
            reexec=reexec,
            grace_s=grace_s,
        )
        if followers:
            followers.watch(service.fail)
        # One rank has no other to watch.
        watches = (service.departure.watch_ranks(), service.watch_beats()) if service.num_ranks > 1 else ()
        watching = [asyncio.create_task(watch) for watch in watches]
        try:
            return await run_worker(service, arguments, reexec, drain=service.departure.drain)
        finally:
            for task in watching:
                task.cancel()

    exit_code = asyncio.run(run())
    if followers:
        followers.close()
    if reexec:
        exit_code = reexec.finish(exit_code)
    # Interpreter shutdown under a torch thread that still works may crash.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)


def _follow(arguments: WorkerArguments) -> int:
    from shoal.telemetry import setup as telemetry

    if arguments.parent_pid is not None:
        die_with_parent(parent_pid=arguments.parent_pid)
    # A signal may reach all ranks. Rank 0 handles it; the others leave when it tells them to, or when it ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Block SIGTERM in all threads but one, which waits for it: in a collective Python runs no handler.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    telemetry.setup("shoal-learner", instance_id=f"rank-{os.environ['RANK']}", log_file=arguments.log_file)
    from services.learner.commands import LearnerCommands
    from services.learner.follower import follow
    from services.learner.ranks.beats import begin_beats
    from services.learner.ranks.process_group import ProcessGroup

    try:
        process_group = ProcessGroup.connect()
        threading.Thread(target=_pass_on_sigterm, args=(process_group,), daemon=True).start()
        begin_beats(process_group)
        is_restarting = follow(LearnerCommands(process_group, arguments.data_dir))
    except Exception:
        logging.getLogger(__name__).critical("learner rank %s ends", os.environ["RANK"], exc_info=True)
        return 1
    finally:
        telemetry.shutdown()
    return RESTART_EXIT_CODE if is_restarting else 0


def _pass_on_sigterm(process_group: "ProcessGroup") -> None:
    """Tells rank 0 when this rank is told to end. It is possible that only the node of this rank is going away."""
    signal.sigwait({signal.SIGTERM})
    process_group.ask_to_leave()


if __name__ == "__main__":
    sys.exit(main())
