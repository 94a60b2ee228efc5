"""Runs through their coordinator and in their folder: the same answers, filtered in the same way."""

import asyncio
from pathlib import Path
from typing import Any

from services.coordinator.store.events import EVENTS
from services.coordinator.store.rollouts import list_rollouts
from services.coordinator.store.run_folders import RunFolders, describe, list_runs
from shoal.v1 import coordinator_pb2 as pb
from shoal.v1 import rollout_pb2
from shoal.wire.json_form import json_line
from tests.support.cluster import Cluster
from tests.support.scripted_workers import ScriptedGenerator, ScriptedReward, arithmetic_config

NUM_STEPS = 4


async def listed(cluster: Cluster, **fields: Any) -> list[pb.RolloutGroup]:
    response = await cluster.stub.ListRollouts(pb.ListRolloutsRequest(page_size=100, **fields), timeout=60)
    return list(response.groups)


async def test_folder_and_coordinator_agree_and_every_filter_shows_what_the_run_did(
    cluster: Cluster, model: Path
) -> None:
    reward = ScriptedReward(failing=True)
    await cluster.add_all(ScriptedGenerator(cluster.plane, delay_s=0.01), rewards=(reward,))
    config = arithmetic_config(model, run={"num_steps": NUM_STEPS}, reward={"max_failed_share": 1.0})
    await cluster.start(config, run_id="sums")
    await cluster.until("step_skipped")
    reward.failing = False
    _, events = await cluster.finish()

    await assert_folder_and_coordinator_agree(cluster, events)
    groups = await listed(cluster)
    await assert_steps_part_the_groups(cluster, groups)
    failed = await listed(cluster, failed=True, dropped=True)
    # The last of them may have been half scored, and so without a signal.
    assert failed and {group.drop_reason for group in failed} <= {"not_scored", "no_signal"}, failed
    assert failed[0].drop_reason == "not_scored", failed[0]
    for group in failed:
        assert all(rollout.score.verifier_scores for rollout in group.rollouts), group
        assert any(rollout.score.outcome == rollout_pb2.SCORE_OUTCOME_FAILED for rollout in group.rollouts), group
    assert await listed(cluster, last=3) == groups[-3:]
    rewards = [
        sum(scored) / len(scored)
        for group in await listed(cluster, order=pb.ROLLOUT_ORDER_REWARD, step=NUM_STEPS)
        if (scored := [rollout.score.reward for rollout in group.rollouts])
    ]
    assert rewards and rewards == sorted(rewards, reverse=True), rewards


async def assert_folder_and_coordinator_agree(cluster: Cluster, events: list[pb.RunEvent]) -> None:
    folders = RunFolders(cluster.data_dir)
    record = await asyncio.to_thread(folders.find, "")
    assert describe(record) == await cluster.run()
    assert list_runs(folders, pb.ListRunsRequest()) == await cluster.stub.ListRuns(pb.ListRunsRequest(), timeout=60)
    assert (record.folder / EVENTS).read_text().splitlines() == [json_line(event) for event in events]
    request = pb.ListRolloutsRequest(page_size=2, last=5, order=pb.ROLLOUT_ORDER_REWARD)
    while True:
        page = await cluster.stub.ListRollouts(request, timeout=60)
        assert list_rollouts(record.folder, request) == page
        if not page.next_page_token:
            break
        request.page_token = page.next_page_token


async def assert_steps_part_the_groups(cluster: Cluster, groups: list[pb.RolloutGroup]) -> None:
    """Steps take groups in the order of issue, so each has the groups between its neighbors', skipped attempts too."""
    parts = [await listed(cluster, step=step) for step in range(1, NUM_STEPS + 1)]
    for step, part in enumerate(parts, 1):
        assert {group.train_step for group in part} == {0, step} or {group.train_step for group in part} == {step}, part
    together = [group.order_number for part in parts for group in part]
    used_up = [group.order_number for group in groups if group.state in ("TRAINED", "DROPPED")]
    assert together == used_up, f"the steps have {together}, the run used up {used_up}"
    assert len(parts[0]) > len(parts[-1]) == 4, f"{len(parts[0])} groups in the step with skipped attempts"
