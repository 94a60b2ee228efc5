"""Whole runs on this machine: real vLLM, real DeepSpeed, real gloo, and kill -9.

One run suffers every loss of a worker without state that it has to survive; the tests look at its files.
tests/acceptance/test_disturbed_run.py has such a run with two generators and two learner ranks.
"""

import asyncio
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pytest

from services.coordinator.store.rollouts import whole_ledger
from shoal.rpc.channel import connect
from shoal.v1 import coordinator_pb2, coordinator_pb2_grpc, reward_pb2, reward_pb2_grpc, worker_pb2
from tests.support.local_stack import STARTING_S, LocalStack, free_port, guessing_config, run_of_call, write_config
from tests.support.otlp_collector import Collector, collecting
from tests.support.waiting import block_until

pytestmark = pytest.mark.integration

NUM_STEPS = 12


@dataclass
class Outcome:
    stack: LocalStack
    collector: Collector
    exit_code: int
    paused: dict[str, Any]
    paused_for_steps: int
    killed_generator: int
    killed_pool_process: int
    killed_reward: int


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    """Collects in a thread, since the tests wait without an event loop."""
    ready, done = threading.Event(), threading.Event()
    found: list[Collector] = []

    async def collect() -> None:
        async with collecting() as opened:
            found.append(opened)
            ready.set()
            await asyncio.to_thread(done.wait)

    thread = threading.Thread(target=lambda: asyncio.run(collect()))
    thread.start()
    ready.wait(30)
    yield found[0]
    done.set()
    thread.join(30)


@pytest.fixture(scope="module")
def launch() -> dict[str, int]:
    return {"num_generators": 1, "num_learner_ranks": 1, "num_rewards": 2}


@pytest.fixture(scope="module")
def outcome(
    tmp_path_factory: pytest.TempPathFactory, collector: Collector, launch: dict[str, int]
) -> Iterator[Outcome]:
    folder = tmp_path_factory.mktemp("disturbed")
    config = guessing_config(folder, run={"num_steps": NUM_STEPS}, launch=launch | {"coordinator_port": free_port()})
    with LocalStack(
        folder / "runs",
        "disturbed",
        str(write_config(folder / "run.toml", config)),
        environment={"OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint},
    ) as stack:
        stack.until_step(2)
        address = f"127.0.0.1:{config['launch']['coordinator_port']}"
        generator = stack.services("generator")[-1]
        generator.send_signal(signal.SIGKILL)
        stack.until_step(4)
        pool_process = asyncio.run(kill_a_pool_process(address))
        stack.until_step(6)
        reward = stack.services("reward")[1]
        reward.send_signal(signal.SIGKILL)
        stack.until_step(8)
        paused = run_of_call(address, "PauseRun")
        first = run_of_call(address, "GetRun")
        time.sleep(2)
        last = run_of_call(address, "GetRun")
        # An engine takes a minute to start again on a busy machine; without the pause the run might end before.
        until_a_new_generator_serves(stack)
        run_of_call(address, "ResumeRun")
        yield Outcome(
            stack=stack,
            collector=collector,
            exit_code=stack.wait(300),
            paused=paused,
            paused_for_steps=int(last["policyVersion"]) - int(first["policyVersion"]),
            killed_generator=generator.pid,
            killed_pool_process=pool_process,
            killed_reward=reward.pid,
        )


def until_a_new_generator_serves(stack: LocalStack) -> None:
    """Waits until a generator that joined after the first loss of one has the weights."""

    def of_a_generator(event: dict[str, Any], kind: str) -> bool:
        return event["kind"] == kind and event["attributes"].get("worker_kind") == "generator"

    lost = stack.until("a generator is lost", lambda e: of_a_generator(e, "worker_lost"), STARTING_S)["sequence"]
    joined = stack.until(
        "it is back", lambda e: of_a_generator(e, "worker_joined") and e["sequence"] > lost, STARTING_S
    )
    name = f"generator {joined['attributes']['address']}"
    stack.until(
        "it is caught up",
        lambda e: e["kind"] == "publish" and e["sequence"] > lost and name in e["attributes"]["generators"],
        STARTING_S,
    )


async def kill_a_pool_process(coordinator: str) -> int:
    async with connect(coordinator, "shoal.v1.CoordinatorService") as channel:
        stub = coordinator_pb2_grpc.CoordinatorServiceStub(channel)
        workers = (await stub.ListWorkers(coordinator_pb2.ListWorkersRequest(), timeout=60)).workers
    address = next(worker.address for worker in workers if worker.kind == worker_pb2.WORKER_KIND_REWARD)
    async with connect(address, "shoal.v1.RewardService") as channel:
        reward = reward_pb2_grpc.RewardServiceStub(channel)
        status = await reward.GetStatus(reward_pb2.RewardServiceGetStatusRequest(), timeout=60)
    pid = status.pool_pids[0]
    os.kill(pid, signal.SIGKILL)
    return pid


def ledger(stack: LocalStack, query: str) -> list[tuple[Any, ...]]:
    with closing(whole_ledger(stack.folder)) as connection:
        return connection.execute(query).fetchall()


@pytest.mark.timeout(900)
def test_the_run_survives_what_kills_its_workers(outcome: Outcome) -> None:
    assert outcome.exit_code == 0, outcome.stack.tail()
    steps = [int(row["step"]) for row in outcome.stack.metrics()]
    assert steps == list(range(1, NUM_STEPS + 1))


def test_the_event_log_names_lost_workers_and_reissued_groups(outcome: Outcome) -> None:
    lost = [event["attributes"]["worker_kind"] for event in outcome.stack.of_kind("worker_lost")]
    assert "generator" in lost and "reward service" in lost, lost
    assert outcome.stack.of_kind("group_reissued") or outcome.stack.of_kind("publish_failed"), (
        "no event shows the killed generator"
    )


def test_a_restarted_generator_is_caught_up(outcome: Outcome, launch: dict[str, int]) -> None:
    lost = next(e for e in outcome.stack.of_kind("worker_lost") if e["attributes"]["worker_kind"] == "generator")
    full = [
        e
        for e in outcome.stack.of_kind("publish")
        if len(e["attributes"]["generators"]) == launch["num_generators"] and e["sequence"] > lost["sequence"]
    ]
    assert full, "after the kill no publish reached all generators"


def test_every_publish_ended_on_the_learners_bytes(outcome: Outcome, launch: dict[str, int]) -> None:
    """The coordinator compares each tensor's hash, taken from the received bytes, before a generator serves."""
    last = outcome.stack.of_kind("publish")[-1]["attributes"]
    assert len(last["generators"]) == launch["num_generators"] and last["num_bytes"] > 0, last
    assert last["canary_gap"] < 1e-3, f"the canary differs by {last['canary_gap']}"
    corrupt = [e for e in outcome.stack.of_kind("publish_failed") if "CORRUPT" in e["attributes"]["reason"]]
    assert not corrupt, corrupt


def test_engine_and_learner_agree_on_log_probabilities(outcome: Outcome) -> None:
    gaps = [row["val/logprob_gap_mean"] for row in outcome.stack.metrics()]
    assert max(gaps) < 1e-4, f"mean absolute gap up to {max(gaps)} at staleness 0 in float32"


def test_no_group_was_trained_on_twice_or_skipped(outcome: Outcome) -> None:
    rows = ledger(outcome.stack, "SELECT order_number, state, staleness FROM groups ORDER BY order_number")
    assert [row[0] for row in rows] == list(range(len(rows)))
    assert {row[1] for row in rows} <= {"TRAINED", "DROPPED"}, rows
    assert max(row[2] for row in rows if row[1] == "TRAINED") == 0
    double = ledger(
        outcome.stack, "SELECT order_number FROM transitions WHERE state = 'TRAINED' GROUP BY 1 HAVING COUNT(*) > 1"
    )
    assert not double, double


def test_a_run_is_paused_and_resumed_with_any_grpc_client(outcome: Outcome) -> None:
    assert outcome.paused["state"] == "RUN_STATE_PAUSED"
    # The step that was under way when the pause came may still be counted.
    assert outcome.paused_for_steps <= 1, f"{outcome.paused_for_steps} steps were taken in a pause"


def test_one_trace_follows_a_group_through_all_services(outcome: Outcome) -> None:
    by_trace: dict[str, dict[str, set[str]]] = {}
    for span in outcome.collector.spans:
        by_trace.setdefault(span.trace_id, {}).setdefault(span.name, set()).add(span.service)
    wanted = {"group.issue", "group.sample", "group.score", "train.step", "weights.publish"}
    whole = [spans for spans in by_trace.values() if wanted <= spans.keys()]
    assert whole, f"no trace has {wanted}; some have {[sorted(s) for s in list(by_trace.values())[:3]]}"
    everybody = {"shoal-coordinator", "shoal-generator", "shoal-reward", "shoal-learner"}
    # A killed generator takes the spans along that it had not sent yet.
    through = [set().union(*spans.values()) for spans in whole]
    assert any(everybody <= services for services in through), through[:3]
    trained = ledger(outcome.stack, "SELECT trace_id FROM groups WHERE state = 'TRAINED'")
    complete = sum(wanted <= by_trace.get(trace_id, {}).keys() for (trace_id,) in trained)
    assert complete >= 0.99 * len(trained), f"{complete} of {len(trained)} trained groups have a whole trace"


def test_the_exported_model_can_be_loaded(outcome: Outcome) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = outcome.stack.folder / "model"
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert model.num_parameters() > 0 and tokenizer.decode(tokenizer.encode("7")) == "7"


def test_no_process_is_left(outcome: Outcome) -> None:
    # What a service had started ends with it, a moment later.
    block_until(lambda: not outcome.stack.left_over(), "every process has ended with shoal train")
