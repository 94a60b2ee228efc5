"""What vLLM's workers do on a GPU to join a group, recorded on a CPU; for joins that work see test_weights.py."""

import os
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.library_source import class_of, source_of
from tests.support.packages import skip_without

torch = pytest.importorskip("torch")
skip_without("vllm")
pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def weight_transfer() -> Any:
    """The module, whose import of vLLM takes seconds: only where these tests run."""
    from services.generator.workers import weight_transfer

    return weight_transfer


def test_a_worker_joins_from_its_own_gpu_and_without_the_nccl_settings_of_vllm(
    monkeypatch: pytest.MonkeyPatch, weight_transfer: Any
) -> None:
    nccl = pytest.importorskip("vllm.utils.nccl")
    monkeypatch.setattr(nccl, "_unpinned_env", None)
    monkeypatch.setattr(nccl, "_nccl_has_no_cache", lambda: True)
    monkeypatch.setenv("NCCL_NO_CACHE", "")
    monkeypatch.setenv("NCCL_PROTO", "the user's")
    nccl.pin_nccl_env({"NCCL_PROTO": "Simple"})
    joined: list[object] = []
    monkeypatch.setattr(torch.cuda, "set_device", joined.append)

    class Group:
        rank = 3
        board = SimpleNamespace(post=lambda stage, rank: joined.append(rank))

        def connect(self) -> None:
            joined.append(os.environ["NCCL_PROTO"])

    group: Any = Group()
    weight_transfer._connect(group, torch.device("cuda", 1))
    assert joined == [torch.device("cuda", 1), "the user's", 3]
    assert os.environ["NCCL_PROTO"] == "Simple", "vLLM's own communicators keep its settings"


@pytest.mark.parametrize(("backend", "receives_on"), [("nccl", "cuda:1"), ("gloo", "cpu")])
def test_the_ranks_of_an_engine_follow_one_another_and_receive_where_the_backend_does(
    monkeypatch: pytest.MonkeyPatch, weight_transfer: Any, backend: str, receives_on: str
) -> None:
    joining: list[tuple[Any, Any]] = []
    started = threading.Event()

    def connect(group: Any, device: Any) -> None:
        joining.append((group, device))
        started.set()

    monkeypatch.setattr(weight_transfer, "_connect", connect)
    monkeypatch.setattr(weight_transfer, "open_store", lambda *_, **__: torch.distributed.HashStore())
    engine = object.__new__(weight_transfer.BroadcastWeightTransferEngine)
    engine._group = None
    engine.device = torch.device("cuda", 1)
    # The second worker of a tensor-parallel engine of two.
    engine.parallel_config = SimpleNamespace(data_parallel_index=0, world_size=2, rank=1)
    rendezvous = {"run_id": "r", "epoch": 1, "store_host": "h", "store_port": 1, "world_size": 5, "backend": backend}
    info = weight_transfer.JoinInfo({**rendezvous, "timeout_s": 5.0}, 3, None, [("w", "bfloat16", [2])])
    engine.init_transfer_engine(info)
    assert started.wait(60)
    group, device = joining[0]
    assert (group.rank, group.device, device) == (4, receives_on, torch.device("cuda", 1))


def test_layers_with_weights_that_received_none_are_named_but_not_a_head_that_shares_its_weight(
    monkeypatch: pytest.MonkeyPatch, weight_transfer: Any
) -> None:
    """As the experts and sinks of gpt-oss, whose loader copies past those that a reload wraps."""

    class Head(torch.nn.Linear):
        pass

    rotary = torch.nn.Module()
    rotary.register_buffer("cos_sin_cache", torch.zeros(2))
    layers = {"loaded": torch.nn.Linear(2, 2), "partly": torch.nn.Linear(2, 2), "experts": torch.nn.Linear(2, 2)}
    model = torch.nn.ModuleDict(layers | {"rotary": rotary, "head": Head(2, 2)})
    # A layer that has all of its weights is complete: it can load no more.
    state = {id(layers["loaded"]): (False, 0), id(layers["partly"]): (True, 3)}

    def info(layer: Any) -> Any:
        can_load, load_numel = state.get(id(layer), (True, 0))
        return SimpleNamespace(can_load=lambda: can_load, load_numel=load_numel)

    monkeypatch.setattr(weight_transfer, "get_layerwise_info", info)
    monkeypatch.setattr(weight_transfer, "ParallelLMHead", Head)
    engine = object.__new__(weight_transfer.BroadcastWeightTransferEngine)
    engine.model = model
    for is_tied, missed in ((True, ["experts"]), (False, ["experts", "head"])):
        engine.model_config = SimpleNamespace(hf_config=SimpleNamespace(tie_word_embeddings=is_tied))
        assert engine._missed_layers() == missed


def test_no_method_that_shoal_adds_to_a_worker_is_one_of_vllms(weight_transfer: Any) -> None:
    """vLLM refuses an extension whose methods hide the worker's; on a CPU it starts another worker."""
    added = {name for name in vars(weight_transfer.WorkerExtension) if not name.startswith("__")}
    assert added == {"take_load_report", "abandon_load", "begin_adapter", "take_adapter_report", "used_tensors"}
    for file, name in (("v1/worker/gpu_worker.py", "Worker"), ("v1/worker/worker_base.py", "WorkerBase")):
        methods = {getattr(node, "name", "") for node in class_of(source_of("vllm", file), name).body}
        assert not added & methods, added & methods
