"""Checkpoints of a learner over real gRPC: one rank, real DeepSpeed, a tiny model."""

import asyncio
import errno
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoModelForCausalLM

from services.learner.storage import atomic_folder, finishing
from services.learner.storage.checkpoint_export import export_checkpoint
from services.learner.storage.checkpoints import FileDigest
from shoal.config.load import parse_config
from shoal.error_reasons import ErrorReason
from shoal.errors import (
    DataLoss,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
)
from shoal.paths import step_name
from shoal.rollout import WeightVersion
from shoal.v1 import learner_pb2
from shoal.wire import version_from_wire
from tests.support.learner_client import CANARY, TIMEOUT_S, Client
from tests.support.real_generator import logprobs_of
from tests.support.served_learner import client as client
from tests.support.small_disk import small_disk
from tests.support.train_batches import make_batch, make_groups

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_a_restored_checkpoint_takes_the_same_next_step(client: Client) -> None:
    saved = await client.save("c1")
    assert (client.run_dir / "checkpoints" / "c1" / "learner" / "learner.json").is_file()
    version = version_from_wire(saved.version)
    groups = make_groups(seed=7)
    first = await client.train(make_batch("next", version, groups=groups))
    restored = await client.load("c1", saved.files, version.attempt + 1)
    assert restored == WeightVersion(version.attempt + 1, version.policy_version)
    again = await client.train(make_batch("next", restored, groups=groups))
    assert again.num_optimizer_steps == first.num_optimizer_steps
    for name in ("objective/loss", "optim/grad_norm", "objective/kl3", "lr"):
        assert first.metrics[name] == again.metrics[name], name
    with pytest.raises(InvalidArgument, match="attempt"):
        await client.load("c1", saved.files, version.attempt)


async def test_a_checkpoint_gives_the_same_model_folder_as_the_learner(client: Client, tmp_path: Path) -> None:
    saved = await client.save("whole")
    response = await client.stub.ExportModel(learner_pb2.ExportModelRequest(), timeout=TIMEOUT_S)
    files = [FileDigest(file.path, file.num_bytes, file.sha256) for file in saved.files]
    checkpoint = client.run_dir / "checkpoints" / "whole" / "learner"
    await asyncio.to_thread(export_checkpoint, parse_config(client.config), checkpoint, files, tmp_path)
    written = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert written == {path.name: path.read_bytes() for path in Path(response.path).iterdir()}
    (checkpoint / files[0].path).write_bytes(b"damaged")
    with pytest.raises(DataLoss, match=files[0].path):
        export_checkpoint(parse_config(client.config), checkpoint, files, tmp_path)


async def test_a_late_repeat_does_not_replace_a_checkpoint(client: Client) -> None:
    version = await client.version()
    saved = await client.save("late", version=version)
    folder = client.run_dir / "checkpoints" / "late"
    written = (folder / "learner" / "learner.json").stat().st_ino
    assert await client.save("late", version=version) == saved
    assert (folder / "learner" / "learner.json").stat().st_ino == written, "the checkpoint was written again"
    with pytest.raises(FailedPrecondition, match="checkpoint late ") as caught:
        await client.save("late", version=WeightVersion(version.attempt, version.policy_version + 1))
    assert caught.value.reason == "VERSION_MISMATCH"
    shutil.rmtree(folder)
    assert {file.path for file in (await client.save("late", version=version)).files} == {f.path for f in saved.files}
    assert (folder / "learner").is_dir(), "a checkpoint that was deleted was not written again"


@pytest.fixture
def held_sync(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Keeps the files of checkpoints from the disk until it is set."""
    may_sync = threading.Event()

    def sync(path: Path) -> None:
        assert may_sync.wait(TIMEOUT_S)
        atomic_folder.sync(path)

    monkeypatch.setattr(finishing, "sync", sync)
    yield may_sync
    may_sync.set()


async def test_steps_are_taken_while_a_checkpoint_is_brought_to_disk_and_are_not_in_it(
    client: Client, held_sync: threading.Event
) -> None:
    version, before = await client.version(), await client.logprobs(CANARY)
    begun = await client.save("beside", version=version, return_when_written=True)
    assert version_from_wire(begun.version) == version and not begun.files
    assert (await client.train(await client.batch("beside-1"))).applied
    assert (await client.train(await client.batch("beside-2"))).applied
    folder = client.run_dir / "checkpoints" / "beside"
    assert [path.name for path in folder.iterdir()] == ["learner.partial"], "it is on disk already"
    assert client.service.departure.has_unsaved_step
    held_sync.set()
    saved = await client.save("beside", version=version)
    assert version_from_wire(saved.version) == version
    assert client.service.departure.has_unsaved_step, "the checkpoint does not have the steps after it"
    restored = await client.load("beside", saved.files, version.attempt + 1)
    assert restored == WeightVersion(version.attempt + 1, version.policy_version)
    np.testing.assert_array_equal(await client.logprobs(CANARY), before)


async def test_a_restore_waits_for_a_checkpoint_that_is_brought_to_disk(
    client: Client, held_sync: threading.Event
) -> None:
    held_sync.set()
    saved = await client.save("first")
    held_sync.clear()
    version = await client.version()
    await client.save("second", ["first"], version, return_when_written=True)
    loading = asyncio.create_task(client.load("first", saved.files, version.attempt + 1))
    await asyncio.wait([loading], timeout=0.2)
    assert not loading.done(), "its files could be deleted under it"
    held_sync.set()
    assert (await loading).attempt == version.attempt + 1


async def test_a_disk_that_gets_full_after_the_state_is_written_leaves_nothing_of_a_checkpoint(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    version = await client.version()
    with monkeypatch.context() as patch:
        patch.setattr(finishing, "sync", full)
        await client.save("no-room", version=version, return_when_written=True)
        assert (await client.train(await client.batch("no-room"))).applied
        for _ in range(2):  # A repeat learns why, though the learner has another version by now.
            with pytest.raises(ResourceExhausted, match="is full") as caught:
                await client.save("no-room", version=version)
            assert caught.value.reason == ErrorReason.DISK_FULL
    assert not (client.run_dir / "checkpoints" / "no-room").exists()
    assert (await client.save("room")).files


async def test_old_checkpoints_are_deleted_when_a_new_one_is_written(client: Client) -> None:
    await client.save(step_name(1))
    await client.save(step_name(2), keep=[step_name(1)])
    await client.save(step_name(3), keep=[step_name(2)])
    # Other tests leave theirs under names of their own, which are never deleted.
    left = sorted(path.name for path in (client.run_dir / "checkpoints").glob("step-*"))
    assert left == [step_name(2), step_name(3)], left


async def test_a_missing_or_damaged_checkpoint_is_refused(client: Client) -> None:
    attempt = (await client.version()).attempt + 1
    with pytest.raises(NotFound, match="checkpoint nothing"):
        await client.load("nothing", [], attempt)
    saved = await client.save("damaged")
    elsewhere = learner_pb2.FileDigest(path="../../../../secret", sha256="00")
    with pytest.raises(DataLoss, match="secret"):
        await client.load("damaged", [elsewhere, *saved.files], attempt)
    folder = client.run_dir / "checkpoints" / "damaged" / "learner"
    before = await client.logprobs(CANARY)
    victim = folder / max(saved.files, key=lambda file: file.num_bytes).path
    content = victim.read_bytes()
    victim.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(DataLoss, match=victim.name) as refused:
        await client.load("damaged", saved.files, attempt)
    assert refused.value.reason == "CHECKPOINT_DAMAGED"
    victim.unlink()
    with pytest.raises(DataLoss, match="is missing"):
        await client.load("damaged", saved.files, attempt)
    assert np.array_equal(before, await client.logprobs(CANARY))


async def test_the_reference_computes_like_the_initial_model(client: Client) -> None:
    attempt = (await client.version()).attempt + 1
    await client.load("", [], attempt)
    begun = await client.logprobs(CANARY)
    assert np.array_equal(begun, await client.logprobs(CANARY, model=learner_pb2.MODEL_REFERENCE))
    await client.train(make_batch("for-the-reference", await client.version()))
    assert not np.array_equal(begun, await client.logprobs(CANARY, model=learner_pb2.MODEL_POLICY))
    assert np.array_equal(begun, await client.logprobs(CANARY, model=learner_pb2.MODEL_REFERENCE))
    with pytest.raises(InvalidArgument, match=r"MODEL_POLICY .*\(given: 7\)"):
        await client.logprobs(CANARY, model=7)  # type: ignore[arg-type]  # no such model


async def test_a_load_without_a_checkpoint_restores_the_initial_model(client: Client) -> None:
    lm = AutoModelForCausalLM.from_pretrained(client.config["model"]["path"])
    begun = logprobs_of(lm, CANARY)
    attempt = (await client.version()).attempt + 1
    assert np.abs(begun - await client.logprobs(CANARY)).max() > 1e-3
    assert await client.load("", [], attempt) == WeightVersion(attempt, 0)
    np.testing.assert_allclose(await client.logprobs(CANARY), begun, atol=1e-5)
    assert (await client.status()).num_optimizer_steps == 0
    response = await client.train(make_batch("anew", WeightVersion(attempt, 0)))
    assert response.version.policy_version == 1


async def test_a_full_disk_leaves_nothing_of_a_checkpoint(client: Client) -> None:
    checkpoints = client.run_dir / "checkpoints"
    with small_disk(checkpoints, "256k"):
        with pytest.raises(ResourceExhausted, match="is full") as caught:
            await client.save("too-much")
        assert caught.value.reason == "DISK_FULL"
        assert list(checkpoints.iterdir()) == []
    assert (await client.save("fits")).files
