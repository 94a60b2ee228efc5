"""The calls that a group makes of NCCL, held to torch's signatures. For groups that work see test_transfer.py."""

import inspect
import os
import threading
from datetime import timedelta
from typing import Any

import pytest

from shoal.errors import Unavailable
from shoal.weights.board import serve_store
from shoal.weights.group import BroadcastGroup
from shoal.weights.rendezvous import Rendezvous
from tests.support.library_source import class_of, signature_of, source_of

torch = pytest.importorskip("torch")

_STUBS = "_C/_distributed_c10d.pyi"


class NcclWork:
    """A broadcast that has ended, or one whose member is gone: then torch's `wait` raises."""

    def __init__(self, *, fails: bool) -> None:
        self._fails = fails

    def is_completed(self) -> bool:
        return True

    def wait(self, timeout: timedelta) -> bool:
        if self._fails:
            raise RuntimeError("NCCL error: remote process exited\nand a stack")
        return True


class Nccl:
    """Stands for `ProcessGroupNCCL`, and records its calls."""

    last: "Nccl"

    class Options:
        def __init__(self, is_high_priority_stream: bool = False) -> None:
            self._timeout = timedelta()

    def __init__(self, *values: Any) -> None:
        constructor = signature_of(class_of(source_of("torch", _STUBS), "ProcessGroupNCCL"), "__init__")
        self.made_with = constructor.bind(*values).arguments
        self.environment = {name: os.environ.get(name) for name in _SETTINGS}
        self.calls: list[tuple[str, Any]] = []
        self.aborted = threading.Event()
        self.fails = False
        Nccl.last = self

    def eager_connect_single_device(self, *values: Any) -> None:
        backend = class_of(source_of("torch", _STUBS), "Backend")
        bound = signature_of(backend, "eager_connect_single_device").bind(*values)
        self.calls.append(("connect", bound.arguments["device"]))

    def broadcast(self, tensor: Any, root: int) -> NcclWork:
        self.calls.append(("broadcast", (tensor.dtype, root)))
        return NcclWork(fails=self.fails)

    def abort(self) -> None:
        self.aborted.set()


_SETTINGS = ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_ENABLE_MONITORING")


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> BroadcastGroup:
    """A connected group of one member on the second GPU."""
    monkeypatch.setattr(torch.distributed, "ProcessGroupNCCL", Nccl, raising=False)
    monkeypatch.setenv(_SETTINGS[0], "3")
    monkeypatch.delenv(_SETTINGS[1], raising=False)
    store = serve_store("127.0.0.1", 0, timeout_s=60)
    rendezvous = Rendezvous("run", 1, "127.0.0.1", store.port, world_size=1, backend="nccl", timeout_s=7)
    group = BroadcastGroup(rendezvous, rank=0, store=store, device="cuda:1")
    group.connect()
    return group


def test_nccl_is_made_and_connected_as_torch_declares_and_its_errors_end_the_group_alone(group: BroadcastGroup) -> None:
    assert group.device == "cuda:1"
    nccl = Nccl.last
    assert (nccl.made_with["rank"], nccl.made_with["size"]) == (0, 1)
    assert nccl.made_with["options"]._timeout == timedelta(seconds=7)
    assert nccl.environment == dict.fromkeys(_SETTINGS, "0"), "by default a failure ends the process"
    assert [os.environ.get(name) for name in _SETTINGS] == ["3", None], "others' settings are theirs again"
    assert nccl.calls == [("connect", torch.device("cuda:1"))], "in the join, not in the first broadcast"
    group.wait(group.start(torch.zeros(3, dtype=torch.uint8)))
    assert nccl.calls[1:] == [("broadcast", (torch.uint8, 0))]
    group.close()
    assert nccl.aborted.wait(60)


def test_a_broadcast_that_nccl_gave_up_breaks_the_group(group: BroadcastGroup) -> None:
    Nccl.last.fails = True
    with pytest.raises(Unavailable, match=r": remote process exited$"):
        group.wait(group.start(torch.zeros(3)))
    assert Nccl.last.aborted.wait(60)


def test_the_calls_of_every_backend_are_those_of_gloo() -> None:
    """torch's stubs leave these out; gloo inherits them from the same class as NCCL."""
    for name in ("broadcast", "abort", "eager_connect_single_device"):
        assert callable(getattr(torch.distributed.ProcessGroupGloo, name))
    documented = inspect.getdoc(torch.distributed.ProcessGroupGloo.broadcast) or ""
    assert "tensor: torch.Tensor, root:" in documented, documented
