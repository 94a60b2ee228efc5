"""Exports of a learner over real gRPC: one rank, real DeepSpeed, a tiny model."""

from pathlib import Path

import numpy as np
import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from shoal.errors import (
    InvalidArgument,
    ResourceExhausted,
)
from shoal.paths import step_name
from shoal.v1 import learner_pb2, worker_pb2
from shoal.wire import version_from_wire
from shoal.worker.lifecycle import Lifecycle
from tests.support.learner_client import CANARY, TIMEOUT_S, Client
from tests.support.real_generator import logprobs_of
from tests.support.served_learner import client as client
from tests.support.small_disk import small_disk

pytestmark = pytest.mark.asyncio(loop_scope="module")


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
