"""The learner over real gRPC: one rank, real DeepSpeed, a tiny model."""

import asyncio
import contextlib
import errno
import gzip
import json
import shutil
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from services.learner import step_profiler
from services.learner.commands import LearnerCommands
from services.learner.ranks.process_group import ProcessGroup
from services.learner.service import LearnerService
from services.learner.storage import atomic_folder, finishing
from services.learner.storage.checkpoint_export import export_checkpoint
from services.learner.storage.checkpoints import FileDigest
from shoal.config.load import config_digest, config_struct, parse_config
from shoal.error_reasons import ErrorReason
from shoal.errors import (
    DataLoss,
    DeadlineExceeded,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    Unavailable,
)
from shoal.paths import step_name
from shoal.rollout import HandedGroup, WeightVersion
from shoal.rpc.channel import connect
from shoal.telemetry import learner_metric_table
from shoal.telemetry.run_metric_table import DISTANCE, TABLE
from shoal.telemetry.run_metrics import missing, undocumented
from shoal.v1 import learner_pb2, worker_pb2
from shoal.v1.learner_pb2_grpc import LearnerServiceStub
from shoal.weights.board import open_store
from shoal.weights.group import BroadcastGroup
from shoal.weights.manifest import Manifest, hashes_to_wire
from shoal.weights.rendezvous import Rendezvous
from shoal.weights.transfer import receive_weights
from shoal.wire import batch_to_wire, float32_from_wire, handed_group_to_wire, version_from_wire
from shoal.worker.lifecycle import Lifecycle
from tests.support.learner_client import CANARY, RUN_ID, TIMEOUT_S, Client
from tests.support.loopback import LEARNER, serving
from tests.support.real_generator import logprobs_of
from tests.support.small_disk import small_disk
from tests.support.tiny_model import make_tiny_model
from tests.support.train_batches import make_batch, make_groups, with_behavior
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Client]:
    """A learner that is configured once for the module. Tests query its version, since earlier tests raise it."""
    folder = make_tiny_model(tmp_path_factory.mktemp("model"))
    data_dir = tmp_path_factory.mktemp("data")
    config = {
        "model": {"path": str(folder)},
        "data": {"sources": [{"task": "arithmetic"}], "max_prompt_tokens": 64},
        "grpo": {"groups_per_step": 4, "num_mini_batches": 2},
        "kl": {"coef": 0.1},
        "learner": {"zero_stage": 2, "compute_dtype": "float32", "learning_rate": 1e-3, "pack_tokens": 64},
        "weights": {"timeout_s": 3.0},
    }
    service = LearnerService(lambda: LearnerCommands(ProcessGroup.connect(), data_dir), lambda: "127.0.0.1")
    async with serving(service, LEARNER) as address, connect(address, LEARNER) as channel:
        client = Client(LearnerServiceStub(channel), data_dir, config, service)
        assert (await client.status()).status.state == worker_pb2.WORKER_STATE_IDLE
        status = await client.configure()
        assert status.state == worker_pb2.WORKER_STATE_LOADING
        assert await client.loaded() == worker_pb2.WORKER_STATE_READY, await client.status()
        yield client
    await service.close()


async def test_after_a_missing_model_another_configuration_can_be_loaded(client: Client, tmp_path: Path) -> None:
    # A second learner in the process group of the first: `client` exists for that.
    service = LearnerService(
        lambda: LearnerCommands(ProcessGroup(rank=0, size=1, device=torch.device("cpu")), tmp_path), lambda: "127.0.0.1"
    )
    async with serving(service, LEARNER) as address, connect(address, LEARNER) as channel:
        other = Client(LearnerServiceStub(channel), tmp_path, client.config, service)
        await other.configure(model={"path": str(tmp_path / "nowhere")})
        assert await other.loaded() == worker_pb2.WORKER_STATE_FAILED
        message = (await other.status()).status.message
        assert message.startswith("model.path: "), message
        with pytest.raises(FailedPrecondition, match=r"FAILED.*model\.path") as refused:
            await other.logprobs(CANARY)
        assert refused.value.reason == "NOT_READY"
        await other.configure()
        assert await other.loaded() == worker_pb2.WORKER_STATE_READY


async def test_the_same_configuration_again_changes_nothing_and_another_is_refused(client: Client) -> None:
    status = await client.configure()
    assert status.state == worker_pb2.WORKER_STATE_READY
    assert status.config_digest == config_digest(parse_config(client.config))
    with pytest.raises(FailedPrecondition, match="another configuration") as caught:
        await client.configure(run={"seed": 1})
    assert caught.value.reason == "OTHER_CONFIGURATION"


async def test_new_hyperparameters_hold_from_the_next_step_on_and_the_model_stays(client: Client) -> None:
    def request(config: dict[str, Any]) -> learner_pb2.SetHyperparametersRequest:
        return learner_pb2.SetHyperparametersRequest(run_id=RUN_ID, config=config_struct(parse_config(config)))

    before = await client.train(await client.batch("before"))
    digest = (await client.status()).status.config_digest
    learner = client.config.get("learner", {}) | {"learning_rate": 0.0123}
    changed = client.config | {"learner": learner}
    try:
        assert (await client.stub.SetHyperparameters(request(changed), timeout=60)).version == before.version
        after = await client.train(await client.batch("after"))
        assert before.metrics["lr"] != 0.0123 == after.metrics["lr"], (before.metrics["lr"], after.metrics["lr"])
        again = await client.configure(learner=learner)
        assert again.state == worker_pb2.WORKER_STATE_READY and again.config_digest != digest, again
        with pytest.raises(InvalidArgument, match=r"sampling\.temperature"):
            await client.stub.SetHyperparameters(request(changed | {"sampling": {"temperature": 0.5}}), timeout=60)
    finally:
        await client.stub.SetHyperparameters(request(client.config), timeout=60)


async def test_a_step_raises_the_version_by_one_however_many_optimizer_steps_it_takes(client: Client) -> None:
    before = await client.status()
    response = await client.train(await client.batch("one"))
    assert response.applied and response.skip_reason == ""
    assert response.version.policy_version == before.version.policy_version + 1
    assert response.num_optimizer_steps == before.num_optimizer_steps + 2
    after = await client.status()
    assert (after.version, after.num_optimizer_steps) == (response.version, response.num_optimizer_steps)
    assert 0 < response.metrics["optim/grad_norm"] < 100
    assert response.metrics["val/num_missing_behavior_logprobs"] == 0
    assert response.metrics["objective/kl3"] >= 0
    assert undocumented(response.metrics, TABLE) == [], "add to shoal/telemetry/learner_metric_table.py"
    of_learner = (*learner_metric_table.LEARNER, DISTANCE)
    assert missing(response.metrics, parse_config(client.config), of_learner) == [], sorted(response.metrics)


async def test_a_repeated_step_returns_its_result_and_is_not_applied_again(client: Client) -> None:
    batch = await client.batch("repeated")
    first, joined = await asyncio.gather(client.train(batch), client.train(batch))
    repeated = await client.train(batch)
    assert first == joined == repeated
    assert await client.version() == version_from_wire(first.version)


async def test_a_batch_for_another_version_is_refused(client: Client) -> None:
    version = await client.version()
    stale = replace(version, policy_version=version.policy_version + 1)
    with pytest.raises(FailedPrecondition, match=f"the learner has version {version}") as caught:
        await client.train(make_batch("early", stale))
    assert caught.value.reason == "VERSION_MISMATCH"
    assert (await client.train(make_batch("early", version))).applied, "a refused step may be sent again"


async def test_a_stream_that_is_not_half_closed_applies_nothing(client: Client) -> None:
    batch = await client.batch("broken-off")
    sent = asyncio.Event()

    async def stream() -> AsyncIterator[learner_pb2.TrainStepRequest]:
        for message in batch_to_wire(batch):
            yield message
        sent.set()
        await asyncio.Event().wait()

    call = asyncio.ensure_future(client.stub.TrainStep(stream(), timeout=TIMEOUT_S))
    await asyncio.wait_for(sent.wait(), TIMEOUT_S)
    call.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await call
    assert await client.version() == batch.expected_version
    assert (await client.train(batch)).applied


async def test_a_step_runs_to_its_end_when_the_caller_goes_away_and_status_answers_meanwhile(client: Client) -> None:
    batch = await client.batch("abandoned", make_groups(num_groups=32, group_size=16))
    call = asyncio.ensure_future(client.train(batch))
    while (await client.status()).status.load.num_running == 0:
        assert not call.done(), "the step was over before it could be abandoned"
        await asyncio.sleep(0.002)
    call.cancel()
    num_answers = 0
    while await client.version() == batch.expected_version:
        num_answers += 1
        await asyncio.sleep(0.01)
    assert num_answers >= 3, f"GetStatus answered {num_answers} times during the step"
    result = await client.train(batch)
    assert result.version.policy_version == batch.expected_version.policy_version + 1


async def test_messages_out_of_order_and_batches_without_tokens_are_refused(client: Client) -> None:
    header, *rest = list(batch_to_wire(await client.batch("malformed")))
    with pytest.raises(InvalidArgument, match=r"^part: .*header"):
        await client.send(rest)
    with pytest.raises(InvalidArgument, match="announced"):
        await client.send([header])
    with pytest.raises(InvalidArgument, match="no completion token"):
        await client.train(await client.batch("empty", []))


async def test_a_step_that_is_not_finite_is_not_applied_and_leaves_everything_as_it_was(client: Client) -> None:
    version, before = await client.version(), await client.logprobs(CANARY)
    steps = (await client.status()).num_optimizer_steps
    poisoned = [with_behavior(group, -1e30) for group in make_groups()]
    response = await client.train(make_batch("poisoned", version, groups=poisoned))
    assert not response.applied
    assert response.skip_reason.endswith("is not finite")
    assert version_from_wire(response.version) == version
    assert (await client.status()).num_optimizer_steps == steps
    assert np.array_equal(before, await client.logprobs(CANARY))
    # One mini-batch of two is sound: that one is applied, and the version rises.
    half = [with_behavior(group, -1e30) if index < 2 else group for index, group in enumerate(make_groups())]
    response = await client.train(make_batch("half-poisoned", version, groups=half))
    assert response.applied
    assert response.metrics["optim/num_refused"] == 1
    assert response.version.policy_version == version.policy_version + 1
    assert np.isfinite(list(response.metrics.values())).all(), response.metrics


@pytest.mark.parametrize("sequence", [[], [5]])
async def test_a_sequence_of_fewer_than_two_tokens_cannot_be_scored(client: Client, sequence: list[int]) -> None:
    with pytest.raises(InvalidArgument, match=r"^token_ids\[0\]: "):
        await client.logprobs(np.array(sequence, dtype=np.int32))


async def test_an_epoch_must_be_newer_and_the_same_one_again_changes_nothing(client: Client) -> None:
    first = await client.create_group(10, 1)
    assert await client.create_group(10, 1) == first
    assert first.rendezvous.store_host == "127.0.0.1"
    assert first.manifest.digest == Manifest.from_wire(first.manifest).digest
    names = [tensor.name for tensor in first.manifest.tensors]
    assert "model.embed_tokens.weight" in names
    assert "lm_head.weight" not in names, "the tied head travels once"
    for epoch, world_size in ((9, 1), (10, 2)):
        with pytest.raises(FailedPrecondition, match="not newer") as caught:
            await client.create_group(epoch, world_size)
        assert caught.value.reason == "EPOCH_NOT_NEWER"
    with pytest.raises(FailedPrecondition, match="epoch 11 ") as caught:
        await client.publish(11)
    assert caught.value.reason == "NOT_CURRENT_EPOCH"


async def test_a_publish_without_generators_hashes_and_scores_the_canary(client: Client) -> None:
    await client.create_group(20, 1)
    first, again = await client.publish(20), await client.publish(20)
    assert first.hashes == again.hashes and len(first.hashes) > 0
    assert first.num_bytes == sum(np.prod(t.shape) * 4 for t in (await client.create_group(20, 1)).manifest.tensors)
    canary = float32_from_wire(first.canary.logprobs, "canary")
    np.testing.assert_allclose(canary, await client.logprobs(CANARY), atol=1e-6)


async def test_a_member_receives_the_weights_that_were_published(client: Client) -> None:
    created = await client.create_group(30, 2)
    rendezvous, manifest = Rendezvous.from_wire(created.rendezvous), Manifest.from_wire(created.manifest)

    def receive() -> list[Any]:
        store = open_store(rendezvous.store_host, rendezvous.store_port, timeout_s=10)
        group = BroadcastGroup(rendezvous, rank=1, store=store)
        group.connect()
        received = [(digest, tensor.clone()) for _, tensor, digest in receive_weights(group, manifest)]
        group.close()
        return received

    received, sent = await asyncio.gather(asyncio.to_thread(receive), client.publish(30))
    assert hashes_to_wire(digest for digest, _ in received) == list(sent.hashes)
    lm = AutoModelForCausalLM.from_pretrained(client.config["model"]["path"])
    lm.load_state_dict({digest.name: tensor for digest, tensor in received}, strict=False)
    expected = logprobs_of(lm, CANARY)
    np.testing.assert_allclose(float32_from_wire(sent.canary.logprobs, "canary"), expected, atol=1e-5)


async def test_a_publish_ends_in_time_when_a_member_does_not_come_and_when_its_epoch_is_replaced(
    client: Client,
) -> None:
    await client.create_group(40, 2)
    with pytest.raises(DeadlineExceeded):
        await client.publish(40)
    await client.create_group(41, 2)
    waiting = asyncio.ensure_future(client.publish(41))
    await asyncio.sleep(0.2)
    await client.create_group(42, 1)
    with pytest.raises(Unavailable, match="epoch 42 begins"):
        await waiting
    assert (await client.publish(42)).hashes


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


async def test_a_step_of_groups_that_were_handed_over_is_bit_identical(client: Client) -> None:
    saved = await client.save("before")
    version, groups = version_from_wire(saved.version), make_groups(seed=9)
    first = await client.train(make_batch("whole", version, groups=groups))
    logprobs = await client.logprobs(CANARY)
    restored = await client.load("before", saved.files, version.attempt + 1)
    digests = {}
    for number, group in enumerate(groups):
        completions = tuple(rollout.completion for rollout in group.rollouts)
        handed = HandedGroup(restored.attempt, number, group.group_id, group.prompt_token_ids, completions)
        handed, messages = handed_group_to_wire(handed)
        await client.stub.HandOverGroup(iter(messages), timeout=TIMEOUT_S)
        digests[group.group_id] = handed.digest
    again = await client.send(batch_to_wire(make_batch("named", restored, groups=groups), digests))
    for name in ("objective/loss", "optim/grad_norm", "objective/kl3", "lr"):
        assert first.metrics[name] == again.metrics[name], name
    np.testing.assert_array_equal(await client.logprobs(CANARY), logprobs)


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


async def test_exports_of_steps_stay_while_they_are_kept_and_the_trained_model_always(client: Client) -> None:
    def export(name: str, *keep: str) -> learner_pb2.ExportModelRequest:
        return learner_pb2.ExportModelRequest(export_name=name, keep_export_names=keep)

    await client.stub.ExportModel(learner_pb2.ExportModelRequest(), timeout=TIMEOUT_S)
    for request in (export(step_name(1)), export(step_name(2), step_name(1)), export(step_name(3), step_name(1))):
        response = await client.stub.ExportModel(request, timeout=TIMEOUT_S)
        assert response.path == str(client.run_dir / "exports" / request.export_name)
    exports = {path.name: sorted(file.name for file in path.iterdir()) for path in client.run_dir.glob("exports/*")}
    assert set(exports) == {step_name(1), step_name(3)}, exports
    assert exports[step_name(1)] == sorted(file.name for file in (client.run_dir / "model").iterdir()), exports
    with pytest.raises(InvalidArgument, match="export_name"):
        await client.stub.ExportModel(export("../s4"), timeout=TIMEOUT_S)


async def test_a_full_disk_leaves_nothing_of_an_export(client: Client) -> None:
    run_dir = client.run_dir
    with small_disk(run_dir, "256k"):
        with pytest.raises(ResourceExhausted, match="is full"):
            await client.stub.ExportModel(learner_pb2.ExportModelRequest(), timeout=TIMEOUT_S)
        assert list(run_dir.iterdir()) == []


async def test_the_status_says_what_long_work_does_and_is_empty_afterwards(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[str] = []
    progress = Lifecycle.progress

    def record(lifecycle: Lifecycle, message: str) -> None:
        progress(lifecycle, message)
        shown.append(lifecycle.status(worker_pb2.WorkerLoad()).message)

    monkeypatch.setattr(Lifecycle, "progress", record)
    saved = await client.save("shown")
    await client.load("shown", saved.files, attempt=(await client.version()).attempt + 1)
    await client.stub.ExportModel(learner_pb2.ExportModelRequest(), timeout=TIMEOUT_S)
    assert shown[:2] == ["writing weights and optimizer", ""], shown
    assert "digests" in shown[2] and shown[3:5] == ["reading weights and optimizer", ""], shown
    assert any("0.0 GiB" in text for text in shown[5:]) and shown[-1] == "", shown
    assert (await client.status()).status.message == ""


async def test_the_exported_model_is_the_policy_with_its_tokenizer(client: Client) -> None:
    response = await client.stub.ExportModel(learner_pb2.ExportModelRequest(), timeout=TIMEOUT_S)
    assert version_from_wire(response.version) == await client.version()
    lm = AutoModelForCausalLM.from_pretrained(response.path)
    expected = logprobs_of(lm, CANARY)
    np.testing.assert_allclose(await client.logprobs(CANARY), expected, atol=1e-5)
    original = Path(client.config["model"]["path"])
    question = [{"role": "user", "content": "What is 2 + 2?"}]
    texts = [
        AutoTokenizer.from_pretrained(folder).apply_chat_template(question, tokenize=False)
        for folder in (response.path, original)
    ]
    assert texts[0] == texts[1]
    assert (Path(response.path) / "generation_config.json").is_file()
    again = await client.stub.ExportModel(learner_pb2.ExportModelRequest(), timeout=TIMEOUT_S)
    assert again.path == response.path


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
    monkeypatch.setattr(step_profiler, "MAX_LAYER_ROWS", 4)  # Two rows of two layers.
    first = (await client.version()).policy_version + 1
    recording = await begin_profile(client, num_steps=5)
    await train_once(client, "many rows")
    response = await recording
    assert response.is_partial and version_from_wire(response.version).policy_version == first, response
    names = [event["name"] for event in events_of(response.paths[0])]
    assert names.count("TokenLogprobsBackward") == 2, "it has the backward passes of two rows"
    assert "aten::_fused_adamw_" not in names, "it has the optimizer's step after all rows"


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


# The last tests: the learner takes no configuration any more.


async def test_a_learner_that_is_told_to_end_waits_for_the_checkpoint_of_its_last_step(client: Client) -> None:
    assert (await client.train(await client.batch("last"))).applied
    draining = asyncio.create_task(client.service.departure.drain())
    await asyncio.sleep(0)  # It begins.
    assert (await client.status()).status.state == worker_pb2.WORKER_STATE_LEAVING
    with pytest.raises(Unavailable) as caught:
        await client.configure()
    assert caught.value.reason == ErrorReason.ENDING
    assert not draining.done(), "the step would be lost"
    await client.save("last")
    await asyncio.wait_for(draining, TIMEOUT_S)


async def test_a_learner_whose_last_step_no_checkpoint_has_in_time_says_so_and_ends(client: Client) -> None:
    assert (await client.train(await client.batch("lost"))).applied
    client.service.departure._grace_s = 0.0
    await asyncio.wait_for(client.service.departure.drain(), TIMEOUT_S)
    status = (await client.status()).status
    assert status.state == worker_pb2.WORKER_STATE_FAILED
    assert "--grace-s (0 s)" in status.message, status
