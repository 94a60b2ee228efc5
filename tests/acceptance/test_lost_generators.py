"""Generators that are lost in the middle of completions, with real engines: what they reported is not sampled again.

A run has two generators. One is killed (SIGKILL) in the middle of its completions; the next one, which takes its place,
is told to end (SIGTERM) in the middle of its own. Every completion has LENGTH tokens, so the tokens can be counted.
"""

import asyncio
import contextlib
import json
import signal
import time
import urllib.request
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.kills import problems_of_ledger
from services.coordinator.store.rollouts import whole_ledger
from shoal.errors import ShoalError
from shoal.rpc.channel import connect
from shoal.v1 import coordinator_pb2 as pb
from shoal.v1 import generator_pb2, generator_pb2_grpc, worker_pb2
from shoal.v1.coordinator_pb2_grpc import CoordinatorServiceStub
from tests.support.local_stack import LocalStack, free_port, guessing_config, write_config
from tests.support.tiny_model import IM_END, make_tiny_model, make_tokenizer

LENGTH, EVERY = 400, 16
"""Tokens of a completion, and between two reports."""
NUM_STEPS, GROUPS, GROUP_SIZE = 5, 4, 4
SHARE = GROUPS * GROUP_SIZE // 2
"""Completions that each of two generators has in a step."""
WAIT_S = 600
"""Longest wait for the next event. On two cores that many others use, two engines took over four minutes to start."""


@dataclass
class Sampled:
    """What one generator process says of itself."""

    address: str
    num_running: int = 0
    num_tokens: int = 0


class Observer:
    """The counters of all generators of a run, and of its coordinator, as of their last answers."""

    def __init__(self, coordinator: str, metrics_port: int) -> None:
        self._coordinator = coordinator
        self._metrics = f"http://127.0.0.1:{metrics_port}/metrics"
        self.generators: dict[str, Sampled] = {}
        """By worker id."""
        self.num_resumed = 0
        """Tokens after which completions went on, by the coordinator's counter."""

    async def follow(self) -> None:
        async with connect(self._coordinator, "shoal.v1.CoordinatorService") as channel:
            stub = CoordinatorServiceStub(channel)
            while True:
                with contextlib.suppress(ShoalError, OSError):
                    await self._look(stub)
                await asyncio.sleep(0.02)

    async def _look(self, stub: Any) -> None:
        workers = (await stub.ListWorkers(pb.ListWorkersRequest(), timeout=10)).workers
        for worker in workers:
            if worker.kind == worker_pb2.WORKER_KIND_GENERATOR and worker.state != worker_pb2.WORKER_STATE_LOST:
                found = self.generators.setdefault(worker.worker_id, Sampled(worker.address))
                with contextlib.suppress(ShoalError):
                    async with connect(worker.address, "shoal.v1.GeneratorService") as channel:
                        request = generator_pb2.GeneratorServiceGetStatusRequest()
                        status = await generator_pb2_grpc.GeneratorServiceStub(channel).GetStatus(request, timeout=10)
                    found.num_running = status.status.load.num_running
                    found.num_tokens = status.num_sampled_tokens
        # A coordinator that ends serves an empty page for a moment.
        self.num_resumed = max(self.num_resumed, await asyncio.to_thread(self._resumed))

    def _resumed(self) -> int:
        with urllib.request.urlopen(self._metrics, timeout=10) as answer:
            families = text_string_to_metric_families(answer.read().decode())
            return sum(
                int(sample.value)
                for family in families
                for sample in family.samples
                if sample.name == "shoal_run_tokens_resumed_total"
            )

    async def until_in_the_middle(self, worker_id: str | None = None) -> str:
        """Waits until a generator has sampled a part of each of its completions; returns its worker id.

        It is one without earlier completions: its tokens are all of unfinished ones.
        """
        give_up = time.monotonic() + WAIT_S
        while time.monotonic() < give_up:
            for name, sampled in self.generators.items():
                is_in_the_middle = SHARE * LENGTH // 4 <= sampled.num_tokens < SHARE * LENGTH * 3 // 4
                if worker_id in (None, name) and sampled.num_running == SHARE and is_in_the_middle:
                    return name
            await asyncio.sleep(0.005)
        raise AssertionError(f"no generator was seen in the middle of its completions: {self.generators}")


@asynccontextmanager
async def observing(coordinator: str, metrics_port: int) -> AsyncIterator[Observer]:
    observer = Observer(coordinator, metrics_port)
    async with asyncio.TaskGroup() as tasks:
        following = tasks.create_task(observer.follow())
        yield observer
        following.cancel()


def endless_model(folder: Path) -> Path:
    """Makes a tiny model that never ends a turn: one feature of all its states is 1, and rules out that token."""
    import torch
    from transformers import LlamaForCausalLM

    make_tiny_model(folder, heads=8, tie_embeddings=False)
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        model.model.embed_tokens.weight[:, 0] = 1.0
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight[0] = 0.0
            layer.mlp.down_proj.weight[0] = 0.0
        model.lm_head.weight[make_tokenizer().convert_tokens_to_ids(IM_END), 0] = -1000.0
    model.save_pretrained(folder)
    return folder


def listening_at(processes: list[psutil.Process], address: str) -> psutil.Process:
    """Returns the process that listens at an address."""
    port = int(address.rpartition(":")[2])
    (found,) = [
        process
        for process in processes
        if any(c.status == psutil.CONN_LISTEN and c.laddr.port == port for c in process.net_connections("tcp"))
    ]
    return found


def of(kind: str, **attributes: Any) -> Callable[[dict[str, Any]], bool]:
    return lambda event: event["kind"] == kind and attributes.items() <= event["attributes"].items()


async def run(stack: LocalStack, metrics_port: int) -> tuple[Observer, dict[str, int]]:
    """Lets a run lose two generators; returns what was seen of them, and the lost ones with their last counts."""
    await asyncio.to_thread(stack.until, "the generators serve", of("publish"), WAIT_S)
    async with observing(stack.coordinator_address(), metrics_port) as observer:
        killed = await observer.until_in_the_middle()
        seen = {killed: observer.generators[killed].num_tokens}
        listening_at(stack.services("generator"), observer.generators[killed].address).send_signal(signal.SIGKILL)
        await asyncio.to_thread(stack.until, "the first step", of("step", step=1), WAIT_S)
        address = stack.coordinator_address()
        async with connect(address, "shoal.v1.CoordinatorService") as channel:
            stub = CoordinatorServiceStub(channel)
            await stub.PauseRun(pb.PauseRunRequest(), timeout=60)  # Else the run might end before.
            serving = await asyncio.to_thread(until_another_serves, stack)
            await stub.ResumeRun(pb.ResumeRunRequest(), timeout=60)
        leaving = await observer.until_in_the_middle(serving)
        seen[leaving] = observer.generators[leaving].num_tokens
        listening_at(stack.services("generator"), observer.generators[leaving].address).send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(stack.wait, WAIT_S) == 0, stack.tail()
        return observer, seen


def until_another_serves(stack: LocalStack) -> str:
    """Waits until a generator that came after the loss of one has the weights; returns its worker id."""
    lost = stack.until("a generator is lost", of("worker_lost", worker_kind="generator"), WAIT_S)["sequence"]
    joined = of("worker_joined", worker_kind="generator")
    event = stack.until("it is back", lambda event: joined(event) and event["sequence"] > lost, WAIT_S)
    name = f"generator {event['attributes']['address']}"
    stack.until(
        "it has the weights",
        lambda e: e["kind"] == "publish" and e["sequence"] > lost and name in e["attributes"]["generators"],
        WAIT_S,
    )
    return str(event["attributes"]["worker_id"])


@pytest.mark.timeout(2400)
async def test_completions_go_on_elsewhere_when_their_generator_is_killed_and_when_it_is_told_to_end(
    tmp_path: Path,
) -> None:
    endless_model(tmp_path / "model")
    config = guessing_config(
        tmp_path,
        sampling={"max_completion_tokens": LENGTH},
        grpo={"group_size": GROUP_SIZE, "groups_per_step": GROUPS, "max_staleness": 0, "keep_zero_signal": True},
        generator={"report_every_tokens": EVERY},
        coordinator={"max_group_losses": 2},
        checkpoint={"every_steps": 100},
        launch={"num_generators": 2},
        run={"num_steps": NUM_STEPS},
    )
    metrics_port = free_port()
    stack = LocalStack(
        tmp_path / "runs",
        "lost",
        str(write_config(tmp_path / "run.toml", config)),
        "--name",
        "lost",
        environment={"SHOAL_METRICS_PORT": str(metrics_port), "SHOAL_GRACE_S": "0.1"},
    )
    try:
        observer, seen = await run(stack, metrics_port)
    finally:
        await asyncio.to_thread(stack.end)
    check(stack, observer, seen)


def check(stack: LocalStack, observer: Observer, seen: dict[str, int]) -> None:
    events, (killed, leaving) = stack.events(), seen
    ends = [(e["kind"], e["attributes"]["worker_id"]) for e in events if e["kind"] in ("worker_lost", "worker_left")]
    assert ends == [("worker_lost", killed), ("worker_left", leaving)], ends
    assert not [event for event in events if event["kind"] == "group_dropped"]

    # What was sampled before is not sampled again.
    (first, second) = (kept_after(events, end) for end in ("worker_lost", "worker_leaving"))
    assert len(first) == len(second) == SHARE // GROUP_SIZE, (first, second)
    num_killed, num_left = sum(first), sum(second)
    print(f"of {seen[killed]} tokens, seen just before the SIGKILL, {num_killed} were kept")
    print(f"of {seen[leaving]} tokens, seen just before the SIGTERM, {num_left} were kept")
    assert num_killed >= seen[killed] - SHARE * EVERY, "more is lost than the tokens since the last reports"
    assert num_left >= seen[leaving], "a generator that leaves hands all its tokens back"
    assert observer.num_resumed == num_killed + num_left, "completions went on after other tokens than were kept"
    others = {name: one.num_tokens for name, one in observer.generators.items() if name not in seen}
    with closing(whole_ledger(stack.folder)) as connection:
        lengths = [length for (length,) in connection.execute("SELECT num_tokens FROM completions")]
        states = connection.execute("SELECT state, staleness FROM groups").fetchall()
    assert lengths == [LENGTH] * (NUM_STEPS * GROUPS * GROUP_SIZE), (
        f"{len(lengths)} completions of {set(lengths)} tokens"
    )
    assert sum(others.values()) + num_killed + num_left == sum(lengths), (others, num_killed, num_left)

    # Both parts of each completion have the log-probabilities that the learner computes.
    rows = stack.metrics()
    assert [int(row["step"]) for row in rows] == list(range(1, NUM_STEPS + 1))
    gaps = [row["val/logprob_gap_max"] for row in rows]
    print(f"largest differences of log-probabilities, by step: {', '.join(f'{gap:.1e}' for gap in gaps)}")
    assert 0.0 < max(gaps) < 1e-4, gaps

    # Exactly once.
    assert set(states) == {("TRAINED", 0)}, set(states)
    assert not problems_of_ledger(stack.folder, NUM_STEPS)
    assert json.loads((stack.folder / "run.json").read_text())["state"] == "FINISHED"


def kept_after(events: list[dict[str, Any]], end: str) -> list[int]:
    """Returns the tokens that groups went on from after the first event of a kind, until the next step."""
    kept: list[int] = []
    begins = next(index for index, event in enumerate(events) if event["kind"] == end)
    while begins and events[begins - 1]["kind"] != "step":  # A group may be issued again before the loss is noticed.
        begins -= 1
    for event in events[begins:]:
        if event["kind"] == "step":
            break
        if event["kind"] == "group_reissued":
            assert event["attributes"]["num_kept_completions"] == 0, event
            kept.append(int(event["attributes"]["num_kept_tokens"]))
    return kept
