"""What is lost with a generator: the tokens since its last report, and nothing else."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from services.coordinator.store import long_work
from services.coordinator.workers import lost_work
from shoal.error_reasons import ErrorReason
from shoal.errors import Aborted
from shoal.v1 import coordinator_pb2 as pb
from shoal.v1 import generator_pb2, rollout_pb2, worker_pb2
from tests.support.cluster import Cluster, kinds
from tests.support.scripted_workers import Plane, ScriptedGenerator, arithmetic_config
from tests.support.waiting import eventually

LENGTH, EVERY, HELD_AT = 12, 4, 10
"""Tokens of a completion, between two reports, and at which a generator holds."""


class ReportingGenerator(ScriptedGenerator):
    """Samples completions of LENGTH tokens; when it holds, it finishes the first of a group and no other."""

    def __init__(self, plane: Plane, *, holds: bool) -> None:
        super().__init__(plane)
        self.holds = holds
        self.num_tokens = 0
        self.num_held = 0
        self.leaves = asyncio.Event()

    async def GenerateGroup(
        self, request: generator_pb2.GenerateGroupRequest, context: Any
    ) -> AsyncIterator[generator_pb2.GenerateGroupResponse]:
        self.requests.append(request)
        yield generator_pb2.GenerateGroupResponse(has_begun=True)
        prefixes = {prefix.sample_index: len(prefix.token_ids) // 4 for prefix in request.prefixes}
        held: list[generator_pb2.CompletionPart] = []
        for index, seed in enumerate(request.seeds):
            count = LENGTH - prefixes.get(index, 0)
            if index and self.holds:
                self.num_tokens += HELD_AT
                if request.report_every_tokens:
                    reported = HELD_AT // request.report_every_tokens * request.report_every_tokens
                    held.append(generator_pb2.CompletionPart(sample_index=index, **self._fields(reported)))
                continue
            self.num_tokens += count
            fields = self._fields(count) | {"finish_reason": rollout_pb2.FINISH_REASON_STOP, "seed": seed}
            yield generator_pb2.GenerateGroupResponse(
                completion=rollout_pb2.Completion(sample_index=index, **fields),
                num_prefix_tokens=prefixes.get(index, 0),
            )
        if self.holds:
            if held:
                yield generator_pb2.GenerateGroupResponse(parts=held)
            self.num_held += 1
            await self.leaves.wait()
            reported = len(held[0].token_ids) // 4
            for part in held:
                rest = generator_pb2.CompletionPart(start=reported, **self._fields(HELD_AT - reported))
                rest.sample_index = part.sample_index
                yield generator_pb2.GenerateGroupResponse(parts=[rest])
            raise Aborted("the generator is shutting down", reason=ErrorReason.SHUTTING_DOWN)

    def _fields(self, count: int) -> dict[str, Any]:
        span = rollout_pb2.VersionSpan(version=self.plane.version(), start=0, end=count)
        tokens, logprobs = np.full(count, 40, "<i4"), np.full(count, -1.0, "<f4")
        return {"token_ids": tokens.tobytes(), "behavior_logprobs": logprobs.tobytes(), "version_spans": [span]}


@pytest.mark.parametrize("every", [EVERY, 0])
async def test_a_killed_generator_costs_the_tokens_since_its_last_report(
    cluster: Cluster, model: Path, monkeypatch: pytest.MonkeyPatch, every: int
) -> None:
    monkeypatch.setattr(lost_work, "FIRST_PAUSE_S", 0.05)
    lost, other = (ReportingGenerator(cluster.plane, holds=holds) for holds in (True, False))
    await cluster.add_all(other)
    await cluster.add(lost, "lost")
    grpo = {"max_staleness": 0, "group_size": 3, "groups_per_step": 4, "keep_zero_signal": True}
    sections = {"run": {"num_steps": 1}, "generator": {"report_every_tokens": every}}
    await cluster.start(arithmetic_config(model, grpo=grpo, **sections))
    await eventually(lambda: lost.num_held and lost.num_held + len(other.requests) == 4, "all groups are being sampled")
    await cluster.kill("lost")
    _, events = await cluster.finish(1)
    reissued = [event.attributes for event in events if event.kind == "group_reissued"]
    assert len(reissued) == lost.num_held
    groups = await cluster.groups()
    assert [group.state for group in groups] == ["TRAINED"] * 4
    for group in groups:
        assert [rollout.num_tokens for rollout in group.rollouts] == [LENGTH] * 3, group
        assert [span.end for rollout in group.rollouts for span in rollout.version_spans] == [LENGTH] * 3, group
    again = other.requests[-lost.num_held :]
    if every:
        assert {(a["num_kept_completions"], a["num_kept_tokens"]) for a in reissued} == {(1, 2 * 8)}
        assert {len(request.seeds) for request in again} == {2}, "a finished completion was sampled again"
        assert {len(prefix.token_ids) // 4 for request in again for prefix in request.prefixes} == {8}
        spent = 4 * 3 * LENGTH + lost.num_held * 2 * (HELD_AT - 8)
    else:
        assert {(len(request.seeds), len(request.prefixes)) for request in again} == {(3, 0)}
        spent = 4 * 3 * LENGTH + lost.num_held * (LENGTH + 2 * HELD_AT)
    assert lost.num_tokens + other.num_tokens == spent, "tokens were sampled twice"


async def test_a_generator_that_was_told_to_end_costs_no_token_and_counts_as_no_loss(
    cluster: Cluster, model: Path
) -> None:
    leaving, other = (ReportingGenerator(cluster.plane, holds=holds) for holds in (True, False))
    cluster.learner.may_step.clear()  # So that the end of the process is seen before the end of the run.
    await cluster.add_all(other)
    await cluster.add(leaving, "leaving")
    grpo = {"max_staleness": 0, "group_size": 3, "groups_per_step": 4, "keep_zero_signal": True}
    sections = {"generator": {"report_every_tokens": EVERY}, "coordinator": {"max_group_losses": 1}}
    await cluster.start(arithmetic_config(model, grpo=grpo, run={"num_steps": 3}, **sections))
    await eventually(lambda: leaving.num_held and leaving.num_held + len(other.requests) == 4, "groups are sampled")
    status = worker_pb2.WorkerStatus(state=worker_pb2.WORKER_STATE_LEAVING)
    await cluster.stub.Heartbeat(pb.HeartbeatRequest(worker_id="leaving", status=status), timeout=60)
    await cluster.until("worker_leaving")
    leaving.leaves.set()
    await cluster.until("group_reissued")
    await cluster.kill("leaving")
    await cluster.until("worker_left")
    cluster.learner.may_step.set()
    _, events = await cluster.finish(3)
    assert not {"worker_lost", "worker_out_of_reach", "group_dropped"} & set(kinds(events)), kinds(events)
    assert kinds(events).count("worker_left") == 1
    reissued = [event.attributes for event in events if event.kind == "group_reissued"]
    assert {(a["num_kept_completions"], a["num_kept_tokens"]) for a in reissued} == {(1, 2 * HELD_AT)}
    assert leaving.num_tokens + other.num_tokens == 3 * 4 * 3 * LENGTH, "tokens were sampled twice"
    assert leaving.num_loads == 1, "it got weights while it was leaving"


async def test_a_run_that_waits_for_groups_names_the_generator_that_it_lacks(
    cluster: Cluster, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(long_work, "SLOW_STEP_S", 0.2)
    monkeypatch.setattr(long_work, "EVERY_S", 0.1)
    await cluster.add_all()
    generator = ScriptedGenerator(cluster.plane, delay_s=0.02)
    await cluster.add(generator, "first")
    await cluster.start(arithmetic_config(model, run={"num_steps": 1000}))
    await cluster.until("step")
    await cluster.kill("first")

    def names_it(event: pb.RunEvent) -> bool:
        return event.kind == "progress" and "no generator" in event.message

    events = await cluster.until(names_it)
    assert "groups of step" in events[-1].attributes["work"], events[-1]
    await cluster.add(ScriptedGenerator(cluster.plane), "second")
    furthest = max(event.attributes["step"] for event in events if event.kind == "step")
    await cluster.until(lambda event: event.kind == "step" and event.attributes["step"] > furthest + 2)
