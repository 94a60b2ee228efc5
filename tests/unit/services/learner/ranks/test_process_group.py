"""The device of each rank, and the calls that join the ranks, with torch's functions recorded."""

import os
from datetime import timedelta
from typing import Any
from unittest.mock import create_autospec

import pytest
import torch
import torch.distributed as dist

from services.learner.ranks import process_group
from services.learner.ranks.process_group import ProcessGroup
from shoal.errors import FailedPrecondition


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A machine with two GPUs. The values are recordings with torch's own signatures."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    recorded = {
        "set_device": create_autospec(torch.cuda.set_device),
        "init_process_group": create_autospec(dist.init_process_group),
        "new_group": create_autospec(dist.new_group),
    }
    monkeypatch.setattr(torch.cuda, "set_device", recorded["set_device"])
    monkeypatch.setattr(dist, "init_process_group", recorded["init_process_group"])
    monkeypatch.setattr(dist, "new_group", recorded["new_group"])
    return recorded


def test_a_rank_takes_the_gpu_of_its_number_on_the_machine_and_nccl_beside_gloo(
    calls: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", os.environ | {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1"})
    store = dist.HashStore()
    group = ProcessGroup.connect(store)
    assert group.device == torch.device("cuda", 1)
    calls["set_device"].assert_called_once_with(torch.device("cuda", 1))
    calls["init_process_group"].assert_called_once_with(
        "cpu:gloo,cuda:nccl", store=store, rank=3, world_size=4, timeout=timedelta(days=1)
    )
    calls["new_group"].assert_called_once_with(backend="gloo", timeout=timedelta(days=1))
    group.form_sequence_groups(2)
    # Of the kind of the whole group: rows are shared between GPUs.
    assert [call.args for call in calls["new_group"].call_args_list[1:]] == [([0, 1],), ([2, 3],)]
    assert all("backend" not in call.kwargs for call in calls["new_group"].call_args_list[1:])


def test_a_machine_with_fewer_gpus_than_ranks_is_refused_with_the_cure(
    calls: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", os.environ | {"RANK": "2", "WORLD_SIZE": "3", "LOCAL_RANK": "2"})
    with pytest.raises(FailedPrecondition, match=r"rank 2 .*GPU.* 2"):
        ProcessGroup.connect()
    assert not calls["init_process_group"].called
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert ProcessGroup.connect(dist.HashStore()).device == torch.device("cpu")
    assert calls["init_process_group"].call_args.args == ("gloo",)


def test_tensors_of_a_gpu_are_reduced_on_the_host() -> None:
    """Sums travel through the control group, which is always gloo, in float64."""
    group: Any = object.__new__(process_group.ProcessGroup)
    group.size, group.sequence_group = 1, None
    reduced = group.all_reduce(torch.ones(2, dtype=torch.bfloat16))
    assert (reduced.device.type, reduced.dtype) == ("cpu", torch.float64)


def test_rank_0_learns_of_another_rank_that_is_told_to_end(
    calls: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = dist.HashStore()
    groups = []
    for rank in ("0", "1"):
        monkeypatch.setattr(os, "environ", os.environ | {"RANK": rank, "WORLD_SIZE": "2", "LOCAL_RANK": rank})
        groups.append(ProcessGroup.connect(store))
    assert groups[0].leaving_rank() is None
    groups[1].ask_to_leave()
    assert groups[0].leaving_rank() == "1"
