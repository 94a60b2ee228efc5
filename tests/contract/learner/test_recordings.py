"""Recordings of train steps over real gRPC: one rank, real DeepSpeed, a tiny model."""

import asyncio
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from services.learner import learner, step_profiler
from shoal.error_reasons import ErrorReason
from shoal.errors import (
    DeadlineExceeded,
    FailedPrecondition,
    InvalidArgument,
    ResourceExhausted,
)
from shoal.v1 import learner_pb2
from shoal.wire import version_from_wire
from tests.support.learner_client import CANARY, TIMEOUT_S, Client
from tests.support.served_learner import client as client
from tests.support.small_disk import small_disk
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def profile(client: Client, num_steps: int = 1, timeout_s: float = TIMEOUT_S) -> learner_pb2.ProfileResponse:
    return await client.stub.Profile(learner_pb2.ProfileRequest(num_steps=num_steps), timeout=timeout_s)


async def begin_profile(client: Client, num_steps: int = 1) -> "asyncio.Task[learner_pb2.ProfileResponse]":
    """Returns a call whose recording begins with the next step."""
    recording = asyncio.create_task(profile(client, num_steps))
    assert client.service is not None
    profiles = client.service._profiles
    await eventually(lambda: profiles._is_recording, "the recording is accepted")
    return recording


async def train_once(client: Client, name: str) -> learner_pb2.TrainStepResponse:
    return await client.train(await client.batch(name))


def events_of(path: str) -> list[dict[str, Any]]:
    return json.loads(gzip.decompress(Path(path).read_bytes()))["traceEvents"]


async def test_a_trace_has_the_recorded_steps_with_their_operations_and_no_others(client: Client) -> None:
    await train_once(client, "before")
    first = (await client.version()).policy_version + 1
    recording = await begin_profile(client, num_steps=2)
    await train_once(client, "first")
    assert not recording.done(), "it ended after one of two steps"
    await train_once(client, "second")
    response = await recording
    await train_once(client, "after")
    assert version_from_wire(response.first_version).policy_version == first - 1
    assert version_from_wire(response.version).policy_version == first + 1
    assert not response.is_partial
    [path] = response.paths
    assert Path(path) == client.run_dir / "profiles" / f"step-{first:08d}-rank-0.json.gz"
    assert [file.name for file in Path(path).parent.iterdir()] == [Path(path).name], "another file is left"
    names = {event["name"] for event in events_of(path)}
    steps = sorted(name for name in names if name.startswith("train step"))
    assert steps == [f"train step {first}", f"train step {first + 1}"], steps
    needed = {"aten::embedding", "aten::linear", "aten::silu", "TokenLogprobsBackward", "aten::_fused_adamw_"}
    assert needed <= names, f"the trace lacks {needed - names}"


async def test_a_recording_of_too_many_rows_ends_within_a_step(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_profiler, "MAX_LAYER_ROWS", 8)  # Policy and reference read two rows; they have two layers.
    first = (await client.version()).policy_version + 1
    recording = await begin_profile(client, num_steps=5)
    await train_once(client, "many rows")
    response = await recording
    assert response.is_partial and version_from_wire(response.version).policy_version == first, response
    names = [event["name"] for event in events_of(response.paths[0])]
    assert names.count("TokenLogprobsBackward") == 2, "it has the backward passes of two rows"
    assert "aten::_fused_adamw_" not in names, "it has the optimizer's step after all rows"


async def test_rows_of_a_survey_and_of_a_reference_count_in_a_recording(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    for surveys in (True, False):
        monkeypatch.setattr(learner, "needs_survey", lambda config, surveys=surveys: surveys)
        monkeypatch.setattr(step_profiler, "MAX_LAYER_ROWS", 2)  # One row of two layers.
        recording = await begin_profile(client)
        await train_once(client, f"surveys-{surveys}")
        response = await recording
        assert response.is_partial, response
        names = {event["name"] for event in events_of(response.paths[0])}
        assert "aten::embedding" in names, "it has the first pass"
        assert "TokenLogprobsBackward" not in names, "it has a row that is trained on after the first pass"


async def test_log_probabilities_between_two_steps_count_and_end_a_recording(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_profiler, "MAX_LAYER_ROWS", 200)
    first = (await client.version()).policy_version + 1
    recording = await begin_profile(client, num_steps=2)
    await train_once(client, "recorded once")
    assert not recording.done(), "it ended after one of two steps"
    for _ in range(100):
        await client.logprobs(CANARY)
        if recording.done():
            break
    response = await recording
    assert response.is_partial and version_from_wire(response.version).policy_version == first, response
    names = [event["name"] for event in events_of(response.paths[0])]
    assert "aten::_fused_adamw_" in names, "it lacks the step"
    await train_once(client, "not recorded")


@pytest.mark.parametrize("num_steps", [-1, 0, 11])
async def test_another_number_of_steps_is_refused(client: Client, num_steps: int) -> None:
    with pytest.raises(InvalidArgument, match="1 to 10") as refused:
        await profile(client, num_steps)
    assert [violation.field for violation in refused.value.violations] == ["num_steps"]


async def test_one_recording_is_under_way_at_a_time(client: Client) -> None:
    recording = await begin_profile(client)
    with pytest.raises(FailedPrecondition) as refused:
        await profile(client)
    assert refused.value.reason == ErrorReason.PROFILE_UNDER_WAY
    await train_once(client, "once")
    assert len((await recording).paths) == 1


@pytest.mark.parametrize("is_running", [False, True])
async def test_a_canceled_recording_is_dropped_and_leaves_no_file(client: Client, is_running: bool) -> None:
    before = set((client.run_dir / "profiles").iterdir())
    recording = await begin_profile(client, num_steps=2)
    if is_running:
        await train_once(client, "recorded")
    recording.cancel()
    assert client.service is not None
    profiles = client.service._profiles
    await eventually(lambda: not profiles._is_recording, "the recording is dropped")
    for number in range(2):
        assert (await train_once(client, f"dropped-{is_running}-{number}")).applied
    assert set((client.run_dir / "profiles").iterdir()) == before
    again = await begin_profile(client)
    await train_once(client, f"again-{is_running}")
    assert len((await again).paths) == 1, "the next recording is another one"


async def test_a_deadline_drops_the_recording(client: Client) -> None:
    with pytest.raises(DeadlineExceeded):
        await profile(client, timeout_s=0.2)
    assert client.service is not None
    profiles = client.service._profiles
    await eventually(lambda: not profiles._is_recording, "the recording is dropped")


async def test_a_folder_that_cannot_be_written_fails_the_recording_and_not_the_step(client: Client) -> None:
    folder = client.run_dir / "profiles"
    folder.rename(folder.with_name("kept"))
    folder.write_text("not a folder")
    try:
        recording = await begin_profile(client)
        assert (await train_once(client, "no folder")).applied
        with pytest.raises(FailedPrecondition) as failed:
            await recording
    finally:
        folder.unlink()
        folder.with_name("kept").rename(folder)
    assert failed.value.reason == ErrorReason.STORAGE_NOT_WRITABLE, failed.value


async def test_a_full_disk_fails_the_recording_and_leaves_nothing_of_a_file(client: Client) -> None:
    with small_disk(client.run_dir / "profiles", "64k") as disk:
        recording = await begin_profile(client)
        assert (await train_once(client, "full disk")).applied
        with pytest.raises(ResourceExhausted) as failed:
            await recording
        assert failed.value.reason == ErrorReason.DISK_FULL, failed.value
        assert list(disk.folder.iterdir()) == []
