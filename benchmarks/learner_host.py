"""The learner's work on the host before a step's first forward, in nanoseconds of CPU time per token of the step.

    make bench NAME=learner_host
    make bench NAME=learner_host ARGS="--groups 64 --group-size 8 --completion-tokens 1024 --ranks 8"

Runs `Learner.step` on made-up groups with an engine that stops it at the first forward, as one of `--ranks` ranks.
"read" is the work of rank 0 on the messages of the step, "named" the same if all groups of the step but the last were
handed over before, and "step" the work from the call of `Learner.step` to the
first forward: checks, the packing plan, the values of the mini-batch and the first row. "share" is what rank 0 sends
the followers, without the network. "rows" is the packing of the rank's rows and the values of their tokens: of all but
the first row this happens during the step, beside a GPU's work on the row before.

"socket" is the time from the last completion of the step to the first forward, without the plan of the step: a process
with the learner's service gets the step over gRPC on loopback. "whole" sends all groups with the step. "handed over"
hands all groups but the last to the learner before. `--lengths all` makes all completions as long as the longest.
"""

import argparse
import asyncio
import multiprocessing
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import numpy as np
import torch

from services.coordinator.workers.hand_over import HandOver
from services.learner.commands import LearnerCommands
from services.learner.learner import Learner, StepResult
from services.learner.loss.loss_tokens import LossTokens
from services.learner.loss.mini_batch import plan_mini_batches
from services.learner.loss.policy_loss import pick_tokens
from services.learner.model.flops import Work
from services.learner.model.packing import _plan
from services.learner.ranks.shares import send_shares
from services.learner.request_checks import take_all
from services.learner.service import LearnerService
from shoal.config import parse_config
from shoal.rollout import HandedGroup, TrainBatch, WeightVersion
from shoal.rpc.channel import connect
from shoal.v1 import learner_pb2
from shoal.v1.learner_pb2_grpc import LearnerServiceStub
from shoal.wire import batch_from_wire, batch_to_wire, handed_group_to_wire
from tests.support.loopback import LEARNER, serving
from tests.support.train_batches import make_group

ResultT = TypeVar("ResultT")


class _FirstForward(Exception):
    pass


class _Ranks:
    """A rank without others."""

    rank = data_rank = 0
    device = torch.device("cpu")

    def __init__(self, size: int) -> None:
        self.size = self.data_size = size

    def data_rank_of(self, rank: int) -> int:
        return rank

    def send_bytes(self, body: bytearray, rank: int) -> None: ...

    def send_command(self, *_: Any) -> None: ...

    def leave(self) -> None: ...


class _Engine:
    """An engine that computes nothing."""

    kept_copies = nullcontext

    def forward(self, *_: Any) -> Any:
        raise _FirstForward


class _Commands(LearnerCommands):
    """Commands whose train step ends at the first forward, and returns when that was."""

    def __init__(self, learner: Learner) -> None:
        super().__init__(learner.process_group, Path())
        self._learner = learner

    def train_step(self, batch: TrainBatch) -> StepResult:
        with suppress(_FirstForward):
            super().train_step(batch)
        times = {"reached": time.monotonic(), "cpu": time.process_time()}
        return StepResult(True, "", self.learner.version, 0, times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=64, help="groups of a step (default: %(default)s)")
    parser.add_argument("--group-size", type=int, default=8, help="completions of a group (default: %(default)s)")
    parser.add_argument("--prompt-tokens", type=int, default=200, help="tokens of a prompt (default: %(default)s)")
    parser.add_argument("--completion-tokens", type=int, default=8192, help="longest of them (default: %(default)s)")
    parser.add_argument(
        "--lengths", choices=("mixed", "all"), default="mixed", help="of the completions (default: mixed)"
    )
    parser.add_argument("--pack-tokens", type=int, default=16384, help="learner.pack_tokens (default: %(default)s)")
    parser.add_argument("--ranks", type=int, default=1, help="ranks of the learner (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=5, help="timed steps (default: %(default)s)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    batch = make_step(options)
    learner = make_learner(options)
    num_tokens = batch.num_tokens
    taken = [measure(learner, batch) for _ in range(options.repeats + 1)][1:]  # The first one warms up.
    print(f"{num_tokens} tokens, {options.ranks} ranks: ns of CPU time a token of the step, fastest of {len(taken)}")
    for name in taken[0]:
        print(f"  {name:5} {min(parts[name] for parts in taken) / num_tokens * 1e9:7.1f}")
    for name, read in (("whole", "read"), ("handed over", "named")):
        first = min(parts[read] + parts["share"] + parts["step"] for parts in taken)
        print(f"  before the first forward, {name}: {first / num_tokens * 1e9:.1f} ns a token, {first:.3f} s")
    asyncio.run(measure_socket(options, batch))


def make_step(options: argparse.Namespace) -> TrainBatch:
    """Makes a step of groups; with mixed lengths, completions have between a quarter and all of the longest length."""
    rng, longest = np.random.default_rng(0), options.completion_tokens
    shortest = longest // 4 if options.lengths == "mixed" else longest
    groups = tuple(
        make_group(
            f"g{number}", num_prompt_tokens=options.prompt_tokens, rng=rng,
            completion_lengths=rng.integers(shortest, longest + 1, size=options.group_size).tolist(),
        )
        for number in range(options.groups)
    )  # fmt: skip
    return TrainBatch("step", WeightVersion(0, 0), 1.0, groups)


def handed_of(batch: TrainBatch, number: int) -> HandedGroup:
    """Returns what is handed over of one group of the step."""
    group = batch.groups[number]
    completions = tuple(rollout.completion for rollout in group.rollouts)
    return HandedGroup(0, number, group.group_id, group.prompt_token_ids, completions)


def make_learner(options: argparse.Namespace) -> Learner:
    config = parse_config(
        {
            "model": {"path": "none"},
            "data": {"sources": [{"task": "arithmetic"}]},
            "grpo": {"groups_per_step": options.groups, "group_size": options.group_size},
            "sampling": {"max_completion_tokens": options.completion_tokens},
            "learner": {"pack_tokens": options.pack_tokens},
        }
    )
    model: Any = type("Model", (), {"vocab_size": 256, "max_context_tokens": None})
    ranks: Any = _Ranks(options.ranks)
    engine: Any = _Engine()
    learner = Learner(config, ranks, engine, None, lm=None, model=model, pack_tokens=options.pack_tokens)
    counter: Any = SimpleNamespace(of=lambda row, **_: Work())
    learner.flops = counter
    return learner


def measure(learner: Learner, batch: TrainBatch) -> dict[str, float]:
    """Returns the seconds of CPU time of each part."""
    handed = [handed_group_to_wire(handed_of(batch, number))[0] for number in range(len(batch.groups) - 1)]
    held = {group.group_id: group for group in handed}
    bodies = [message.SerializeToString() for message in batch_to_wire(batch)]
    short_bodies = [
        message.SerializeToString()
        for message in batch_to_wire(batch, {name: group.digest for name, group in held.items()})
    ]
    parts: dict[str, float] = {}

    def timed(name: str, work: Callable[[], ResultT]) -> ResultT:
        started = time.process_time()
        result = work()
        parts[name] = time.process_time() - started
        return result

    def read(bodies: Sequence[bytes], held: Mapping[str, HandedGroup]) -> TrainBatch:
        return batch_from_wire(take_all([learner_pb2.TrainStepRequest.FromString(body) for body in bodies]), held)

    def share() -> None:
        if learner.process_group.size > 1:
            send_shares(learner.process_group, received, learner.rollouts_of_parts(received.groups))

    def step() -> None:
        learner.check(received)
        with suppress(_FirstForward):
            learner.step(received)

    def rows() -> None:
        for mini_batch in plan_mini_batches(received.groups, None, learner.config):
            packed, _ = learner._pack(mini_batch.groups)
            for row in packed:
                pick_tokens(mini_batch, LossTokens.of(row.stretches, mini_batch.num_completions), row.at_C)

    received = timed("read", lambda: read(bodies, {}))
    timed("named", lambda: read(short_bodies, held))
    _plan.cache_clear()
    timed("share", share)
    timed("step", step)
    timed("rows", rows)
    return parts


async def measure_socket(options: argparse.Namespace, batch: TrainBatch) -> None:
    """Prints the seconds from the last completion to the first forward, with and without hand-over of the others."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    server = context.Process(target=_serve, args=(options, theirs), daemon=True)
    server.start()
    async with connect(await asyncio.to_thread(ours.recv), LEARNER) as channel:
        stub = LearnerServiceStub(channel)
        for name, num_handed in (("whole", 0), ("handed over", len(batch.groups) - 1)):
            taken = [await _send(stub, batch, f"{name}-{n}", num_handed) for n in range(options.repeats + 1)][1:]
            wall_s, cpu_s, num_bytes = min(taken)
            print(
                f"  socket, {name}: {wall_s:.3f} s to the first forward, {cpu_s:.3f} s of CPU time of both processes, "
                f"{num_bytes / 1e6:.1f} MB (fastest of {len(taken)})"
            )
    ours.send(None)
    await asyncio.to_thread(server.join)


async def _send(stub: Any, batch: TrainBatch, step_id: str, num_handed: int) -> tuple[float, float, int]:
    """Returns seconds, CPU seconds of both processes, and bytes of a step."""
    fleet: Any = SimpleNamespace(learner=SimpleNamespace(stub=stub))
    hand_over, num_bytes = HandOver(fleet), 0
    for number in range(num_handed):
        await hand_over.give(handed_of(batch, number))
    before = await stub.GetStatus(learner_pb2.LearnerServiceGetStatusRequest(), timeout=60)

    async def messages() -> Any:
        nonlocal num_bytes
        for message in batch_to_wire(step, hand_over.begin_step(step)):
            num_bytes += message.ByteSize()
            yield message

    step = replace(batch, train_step_id=step_id)
    began, cpu = time.monotonic(), time.process_time()
    times = (await stub.TrainStep(messages(), timeout=600)).metrics
    cpu_s = time.process_time() - cpu + times["cpu"] - before.num_optimizer_steps / 1e6
    return times["reached"] - began, cpu_s, num_bytes


def _serve(options: argparse.Namespace, connection: Connection) -> None:
    """Serves a learner that stops at the first forward of each step, until the connection says so."""
    torch.set_num_threads(1)
    commands = _Commands(make_learner(options))

    class Service(LearnerService):
        async def GetStatus(self, request: Any, context: Any) -> learner_pb2.LearnerServiceGetStatusResponse:
            microseconds = round(time.process_time() * 1e6)
            return learner_pb2.LearnerServiceGetStatusResponse(num_optimizer_steps=microseconds)

    async def serve() -> None:
        service = Service(lambda: commands, lambda: "127.0.0.1")
        publisher: Any = None
        service._served.require_ready = lambda: (commands, publisher)  # type: ignore[method-assign]
        async with serving(service, LEARNER) as address:
            connection.send(address)
            await asyncio.to_thread(connection.recv)

    asyncio.run(serve())


if __name__ == "__main__":
    main()
