"""Weight groups of the learner."""

from collections.abc import Iterator
from contextlib import ExitStack, closing
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from services.learner.publish import WeightPublisher, make_manifest, published_tensors
from shoal.errors import InvalidArgument, Unavailable
from shoal.models import compute_dtype
from shoal.models.file_names import FileNames
from shoal.rpc.options import MAX_MESSAGE_BYTES
from shoal.weights.board import open_store
from shoal.weights.group import BroadcastGroup
from shoal.weights.manifest import Manifest, TensorSpec
from tests.support.configs import run_config

CPU = torch.device("cpu")


def publisher_on(
    device: torch.device, host: str = "127.0.0.1", interface: str | None = "127.0.0.1", **sections: Any
) -> WeightPublisher:
    return WeightPublisher(run_config(**sections), run_id="r", host=host, interface=interface, device=device)


def join(publisher: WeightPublisher) -> BroadcastGroup:
    """Makes a group of the publisher and one member, which it returns."""
    rendezvous = publisher.create_group(1, 2, 0)
    store = open_store("127.0.0.1", rendezvous.store_port, timeout_s=60)
    member = BroadcastGroup(rendezvous, rank=1, store=store, hostname="127.0.0.1")
    member.connect()
    publisher.connected(1).result(60)
    return member


@pytest.mark.parametrize(
    ("sections", "device", "backend"),
    [
        ({}, "cpu", "gloo"),
        ({}, "cuda", "nccl"),
        ({"launch": {"single_gpu": True}, "generator": {"gpu_memory_utilization": 0.4}}, "cuda", "gloo"),
        ({"weights": {"backend": "gloo"}}, "cuda", "gloo"),
        ({"learner": {"lora": {"rank": 4}}}, "cuda", "nccl"),
        ({"learner": {"lora": {"rank": 4}}, "generator": {"lora": "adapter"}}, "cuda", "gloo"),
    ],
)
def test_the_backend_is_one_that_the_devices_support(sections: dict[str, Any], device: str, backend: str) -> None:
    with closing(publisher_on(torch.device(device), **sections)) as publisher:
        assert publisher.create_group(1, 1, 0).backend == backend


def listening() -> set[Any]:
    return {found.laddr for found in psutil.Process().net_connections("inet") if found.status == psutil.CONN_LISTEN}


def test_the_weight_plane_listens_on_the_given_interface_alone() -> None:
    before = listening()
    with ExitStack() as closed:
        publisher = closed.enter_context(closing(publisher_on(CPU, host="localhost", interface="127.0.0.1")))
        closed.enter_context(closing(join(publisher)))
        opened = listening() - before
        assert len(opened) >= 2 and {address.ip for address in opened} == {"127.0.0.1"}, opened


def test_a_store_on_every_interface_is_one_that_was_asked_for() -> None:
    before = listening()
    with closing(publisher_on(CPU, interface=None)):
        assert {address.ip for address in listening() - before} <= {"0.0.0.0", "::"}


def test_nccl_without_a_gpu_is_refused_with_the_cure() -> None:
    with pytest.raises(InvalidArgument, match=r"weights\.backend: nccl .*auto"):
        publisher_on(CPU, weights={"backend": "nccl"})


@pytest.mark.parametrize(("way", "published"), [("merged", "model.up.weight"), ("adapter", "up.lora_A.weight")])
def test_a_publish_carries_the_whole_model_or_the_adapters_alone(way: str, published: str) -> None:
    config = run_config(learner={"lora": {"rank": 4}}, generator={"lora": way, "dtype": "bfloat16"})
    whole, adapter = torch.ones(3, 2), torch.ones(4, 2)
    engine: Any = SimpleNamespace(
        device=torch.device("cpu"),
        compute_dtype="bfloat16",
        file_names=FileNames(LlamaForCausalLM(LlamaConfig(hidden_size=32, num_hidden_layers=1, vocab_size=8))),
        shapes={"model.up.weight": (3, 2)},
        float32_shapes={},
        adapter_shapes={"up.lora_A.weight": (4, 2)},
        full_parameters=lambda dtype: iter([("model.up.weight", whole)]),
        adapter_parameters=lambda: iter([("up.lora_A.weight", adapter)]),
    )
    model: Any = SimpleNamespace(dtype="float32")
    manifest = make_manifest(engine, config, model)
    assert [(spec.name, spec.dtype) for spec in manifest.tensors] == [(published, "bfloat16")]
    tensors = dict(published_tensors(engine, config, manifest))
    assert {name: tuple(tensor.shape) for name, tensor in tensors.items()} == {
        spec.name: spec.shape for spec in manifest.tensors
    }


@pytest.mark.parametrize(
    ("has_bfloat16", "device", "sent"),
    [(True, "cpu", "bfloat16"), (False, "cpu", "float32"), (False, "cuda", "bfloat16")],
)
def test_a_learner_whose_cpu_computes_in_float32_sends_what_it_computes_with(
    has_bfloat16: bool, device: str, sent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compute_dtype, "has_instructions", lambda dtype: has_bfloat16)
    config = run_config()
    names = SimpleNamespace(shapes=lambda shapes: shapes)
    engine: Any = SimpleNamespace(
        device=torch.device(device),
        compute_dtype=sent,
        shapes={"up.weight": (3, 2)},
        float32_shapes={},
        file_names=names,
    )
    model: Any = SimpleNamespace(dtype="bfloat16")
    assert [spec.dtype for spec in make_manifest(engine, config, model).tensors] == [sent]


def test_more_tensors_than_a_message_can_name_are_refused_with_their_number() -> None:
    config = run_config()
    name = "model.layers.61.block_sparse_moe.experts.255.w1.weight"
    shapes = {f"{name}{number}": (1536, 3072) for number in range(62 * 256 * 3)}
    engine: Any = SimpleNamespace(
        device=torch.device("cpu"),
        compute_dtype="bfloat16",
        shapes=shapes,
        float32_shapes={},
        file_names=SimpleNamespace(shapes=lambda shapes: shapes),
    )
    model: Any = SimpleNamespace(dtype="bfloat16")
    with pytest.raises(InvalidArgument, match=r"model\.path: .* 47616 tensors"):
        make_manifest(engine, config, model)
    fewer = {name: shapes[name] for name in list(shapes)[: 48 * 128 * 3]}
    engine.shapes = fewer
    manifest = make_manifest(engine, config, model)
    assert manifest.to_wire().ByteSize() < MAX_MESSAGE_BYTES, "a model of 48 layers with 128 experts"


def test_a_publish_that_breaks_takes_every_tensor_all_the_same() -> None:
    """The other ranks take part in each gather, so rank 0 must not leave one out."""
    manifest = Manifest(tuple(TensorSpec(f"layer.{index}", "float32", (1_500_000,)) for index in range(8)))
    gathered: list[str] = []

    def gathers() -> Iterator[tuple[str, torch.Tensor]]:
        for spec in manifest.tensors:
            gathered.append(spec.name)
            if len(gathered) == 3:
                member.abort("it is ending")
            yield spec.name, torch.zeros(spec.shape)

    with closing(publisher_on(CPU)) as publisher:
        member = join(publisher)
        with pytest.raises(Unavailable):
            publisher.send(1, manifest, gathers())
        assert gathered == [spec.name for spec in manifest.tensors], gathered
