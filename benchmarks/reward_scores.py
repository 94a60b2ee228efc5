"""Measures how many completions a reward service scores per second, through gRPC.

    taskset -c 0,1 python benchmarks/reward_scores.py --verifier gsm8k
    taskset -c 0,1 python benchmarks/reward_scores.py --verifier math

The service runs in a process of its own, with its pool; this process is the client and shares the cores with them. Each
stream scores one group, as the coordinator does: prompt, completions, scores back as they are ready; several streams
are open at once. Prints completions per second over all repeats and, for comparison, bare calls of the verifier per
second on one core: the difference is the cost of gRPC and the pool. On a busy machine only the CPU time is meaningful.
Half of the answers are right. No group comes twice; the first repeat, in which verifiers are imported, does not count.
"""

import argparse
import asyncio
import multiprocessing
import os
import resource
import statistics
import time
from collections.abc import AsyncIterator
from multiprocessing.connection import Connection

from google.protobuf.struct_pb2 import Struct

from services.reward.allowed import Allowed
from services.reward.service import RewardService
from services.reward.verifiers.registry import VERIFIERS
from shoal.rollout import GroundTruth, Prompt
from shoal.rpc.channel import connect
from shoal.rpc.server import RpcServer
from shoal.v1 import reward_pb2, rollout_pb2, worker_pb2
from shoal.v1.reward_pb2_grpc import RewardServiceStub
from shoal.wire import prompt_to_wire

_REASONING = "She sells 16 - 3 - 4 = 9 eggs a day, and makes 9 * 2 = 18 dollars. " * 4

# Label and wrong answer, as MATH has them; N is the group's number, K changes within the group.
_ANSWERS = [
    ("N", "N5K"),
    ("1N", "-N"),
    ("\\frac{N}{7}", "\\frac{N}{1K}"),
    ("x^2+\\frac{N}{7}", "x^2-\\frac{N}{1K}"),
    ("[0,N)", "(0,N]"),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--verifier", choices=["gsm8k", "math"], default="gsm8k")
    parser.add_argument("--num-groups", type=int, default=64)
    parser.add_argument("--group-size", type=int, default=16)
    parser.add_argument("--num-streams", type=int, default=16)
    parser.add_argument("--num-processes", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    ours, theirs = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(target=_serve, args=(theirs,), daemon=True)
    server.start()
    before = time.process_time()
    try:
        rates = asyncio.run(_client(ours.recv(), options))
    finally:
        ours.send("stop")
        server.join(30)
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = time.process_time() - before + children.ru_utime + children.ru_stime
    total = options.num_groups * options.group_size
    print(f"{options.verifier}: {total} completions a repeat, {options.num_processes} pool processes, ", end="")
    print(f"{len(os.sched_getaffinity(0))} cores for client, service and pool")
    print(f"through gRPC: median {statistics.median(rates):.0f} completions/s", [round(rate) for rate in rates])
    per_completion_ms = 1e3 * cpu_s / (total * (options.repeats + 1))
    print(f"CPU of client, service and pool, their start included: {per_completion_ms:.2f} ms a completion")
    print(f"bare verifier on one core: {_bare_rate(options.verifier):.0f} completions/s")


def _serve(pipe: Connection) -> None:
    async def serve() -> None:
        service = RewardService(Allowed())
        server = RpcServer(listen="127.0.0.1:0")
        server.add(service.add_to_server, service, service.full_name)
        await server.start()
        pipe.send(server.port)
        await asyncio.to_thread(pipe.recv)
        await server.stop(0)
        await service.close()

    asyncio.run(serve())


async def _client(port: int, options: argparse.Namespace) -> list[float]:
    async with connect(f"127.0.0.1:{port}", RewardService.full_name) as channel:
        stub = RewardServiceStub(channel)
        config = Struct()
        config.update({"model": {"path": "m"}, "data": {"sources": [{"path": "p"}]}})
        config.update({"reward": {"num_processes": options.num_processes, "max_queued": 100_000}})
        await stub.Configure(reward_pb2.RewardServiceConfigureRequest(run_id="benchmark", config=config), timeout=60)
        while True:
            status = await stub.GetStatus(reward_pb2.RewardServiceGetStatusRequest(), timeout=5)
            if status.status.state == worker_pb2.WORKER_STATE_READY:
                break
            await asyncio.sleep(0.05)
        rates = []
        for repeat in range(options.repeats + 1):
            first = repeat * options.num_groups
            numbers = range(first, first + options.num_groups)
            groups = [_group(options.verifier, number, options.group_size) for number in numbers]
            started = time.perf_counter()
            await _score_all(stub, groups, options.num_streams)
            rates.append(options.num_groups * options.group_size / (time.perf_counter() - started))
        return rates[1:]


async def _score_all(stub: RewardServiceStub, groups: list[list[reward_pb2.ScoreGroupRequest]], streams: int) -> None:
    waiting = list(groups)

    async def work() -> None:
        while waiting:
            group = waiting.pop()

            async def requests(group: list[reward_pb2.ScoreGroupRequest] = group) -> AsyncIterator[object]:
                for request in group:
                    yield request

            rewards = [response.score.reward async for response in stub.ScoreGroup(requests(), timeout=300)]
            assert sum(rewards) == len(group) // 2, rewards

    await asyncio.gather(*(work() for _ in range(streams)))


def _group(verifier: str, number: int, size: int) -> list[reward_pb2.ScoreGroupRequest]:
    import numpy as np

    label, texts = _label_and_texts(verifier, number, size)
    prompt = Prompt(f"benchmark:{number}", np.zeros(0, np.int32), "", (GroundTruth(verifier, label),))
    answers = [
        rollout_pb2.Completion(sample_index=index, text=text, finish_reason=rollout_pb2.FINISH_REASON_STOP)
        for index, text in enumerate(texts)
    ]
    return [
        reward_pb2.ScoreGroupRequest(prompt=prompt_to_wire(prompt)),
        *(reward_pb2.ScoreGroupRequest(completion=answer) for answer in answers),
    ]


def _label_and_texts(verifier: str, number: int, size: int) -> tuple[str, list[str]]:
    """Every other answer is right; no two are written alike."""
    if verifier == "gsm8k":
        return str(1000 + number), [
            f"{_REASONING}Sample {index}.\n#### {1000 + number + index % 2}" for index in range(size)
        ]
    label, wrong = _ANSWERS[number % len(_ANSWERS)]
    label, wrong = label.replace("N", str(number + 3)), wrong.replace("N", str(number + 3))
    answers = [wrong.replace("K", str(index // 4)) if index % 2 else label for index in range(size)]
    return label, [f"{_REASONING}Sample {index}. It is $\\boxed{{{answer}}}$." for index, answer in enumerate(answers)]


def _bare_rate(verifier: str) -> float:
    VERIFIERS[verifier].load()
    cases = [_label_and_texts(verifier, number, 16) for number in range(100, 116)]
    started = time.perf_counter()
    for label, texts in cases:
        for text in texts:
            VERIFIERS[verifier].verify(text, label)
    return len(cases) * 16 / (time.perf_counter() - started)


if __name__ == "__main__":
    main()
