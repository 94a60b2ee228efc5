"""Decays of recurrent layers stay float32 in a publish to real vLLM that is bfloat16 otherwise."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from services.generator.vllm_engine import VllmEngine
from services.learner.publish import make_manifest
from shoal.models.file_names import FileNames
from shoal.rollout import WeightVersion
from shoal.weights.board import serve_store
from shoal.weights.group import BroadcastGroup
from shoal.weights.manifest import Manifest, TensorSpec
from shoal.weights.rendezvous import Rendezvous
from shoal.weights.transfer import send_weights
from tests.support.configs import run_config
from tests.support.packages import skip_without
from tests.support.real_generator import CANARY, logprobs_of
from tests.support.tiny_experts import move, published
from tests.support.tiny_families import save_family

pytestmark = pytest.mark.timeout(900)

torch = pytest.importorskip("torch")
skip_without("vllm")
from services.learner.model.weights import list_weights  # noqa: E402  (torch may be missing)

FAMILIES: dict[str, tuple[dict[str, Any], Callable[[Any], Any]]] = {
    # vLLM's kernel on a CPU takes no other head size.
    "qwen3.5": ({"linear_key_head_dim": 128, "linear_value_head_dim": 128}, lambda decay: decay),
    "falcon-h1": ({}, lambda decay: -torch.exp(decay)),
}
"""Changes of the configuration, and what vLLM keeps of `A_log`."""


def manifest_of(model: Any) -> Manifest:
    weights = list_weights(model)
    engine: Any = SimpleNamespace(
        device=torch.device("cpu"),
        compute_dtype="bfloat16",
        file_names=FileNames(model),
        shapes={weight.name: weight.shape for weight in weights},
        float32_shapes={weight.name: weight.shape for weight in weights if weight.is_float32},
    )
    described: Any = SimpleNamespace(dtype="bfloat16")
    return make_manifest(engine, run_config(weights={"dtype": "bfloat16"}), described)


async def publish(engine: VllmEngine, store: Any, model: Any, manifest: Manifest, epoch: int) -> None:
    rendezvous = Rendezvous("run", epoch, "127.0.0.1", store.port, 2, "gloo", 60.0)
    group = BroadcastGroup(rendezvous, rank=0, store=store)
    await asyncio.gather(engine.join_group(rendezvous, 1, manifest), asyncio.to_thread(group.connect))
    tensors = published(model)
    ready = asyncio.Event()
    loading = asyncio.create_task(engine.load_weights(WeightVersion(0, epoch), ready.set))
    await ready.wait()
    sent = ((spec.name, tensors[spec.name]) for spec in manifest.tensors)
    await asyncio.to_thread(send_weights, group, manifest, sent)
    await loading
    await engine.leave_group()
    group.close()


def decays_of(worker: Any) -> dict[str, list[float]]:
    named = worker.model_runner.model.named_parameters()
    return {name: value.tolist() for name, value in named if name.endswith(("A_log", "mamba.A"))}


@pytest.mark.parametrize(
    ("family", "dtype"), [("qwen3.5", "bfloat16"), ("falcon-h1", "bfloat16"), ("falcon-h1", "float32")]
)
async def test_an_engine_gets_the_decays_of_the_learner_unrounded_and_all_else_in_bfloat16(
    family: str, dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_ALLOW_INSECURE_SERIALIZATION", "1")
    changes, kept = FAMILIES[family]
    model = save_family(family, tmp_path / "model", **changes)
    config = run_config(
        str(tmp_path / "model"),
        data={"sources": [{"task": "arithmetic"}], "max_prompt_tokens": 64},
        sampling={"max_completion_tokens": 64},
        generator={"dtype": dtype, "cpu_kv_cache_gib": 0.25, "max_num_seqs": 16},
    )
    engine, store = await VllmEngine.start(config), serve_store("127.0.0.1", 0, timeout_s=60.0)
    move(model)
    for weight in list_weights(model):
        if not weight.is_float32:
            weight.parameter.data = weight.parameter.data.bfloat16().float()
    expected = [kept(value.detach()) for name, value in model.named_parameters() if name.endswith("A_log")]
    manifest = manifest_of(model)
    assert {spec.dtype for spec in manifest.tensors} == {"bfloat16", "float32"}
    rounded = Manifest(tuple(TensorSpec(spec.name, "bfloat16", spec.shape) for spec in manifest.tensors))
    errors, gaps = [], []
    try:
        for epoch, sent in enumerate((rounded, manifest), start=1):
            await publish(engine, store, model, sent, epoch)
            received = (await engine._llm.collective_rpc(decays_of))[0]
            decays = [torch.tensor(values) for values in received.values()]
            assert len(decays) == len(expected)
            errors.append(max(float((ours - its).abs().max()) for ours, its in zip(expected, decays, strict=True)))
            distance = np.abs(await engine.score(CANARY.tolist()) - logprobs_of(model, CANARY))
            gaps.append(float(distance.mean()))
            print(f"{family} in {dtype}: decays off by {errors[-1]:.2g}, the canary by {gaps[-1]:.2g} on average")
    finally:
        await engine.close()
    assert errors[0] > 1e-4 and errors[1] == 0, errors
    if dtype == "float32":
        assert gaps[0] > 1e-4 and gaps[1] < 1e-5, gaps
