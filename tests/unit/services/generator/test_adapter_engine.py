"""Loads of adapters without vLLM. For the rest see tests/integration/test_adapters.py."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from services.generator.adapter_engine import AdapterEngine
from services.generator.adapter_versions import Adapters
from shoal.errors import InvalidArgument, Unavailable
from shoal.rollout import WeightVersion
from shoal.weights.rendezvous import Rendezvous
from tests.support.packages import stand_in

Q = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
UP = "base_model.model.model.layers.1.mlp.up_proj.lora_A.weight"


class Workers:
    """The calls that adapters make of AsyncLLM, with workers that return these reports."""

    errored = False
    output_handler = None

    def __init__(self, *reports: dict[str, Any]) -> None:
        self.reports = list(reports)
        self.calls: list[str] = []
        self.loaded: list[int] = []

    async def collective_rpc(self, name: str, args: tuple[Any, ...] = ()) -> list[Any]:
        self.calls.append(name)
        if name == "begin_adapter":
            Path(args[1]).write_bytes(b"tensors")
        return self.reports if name == "take_adapter_report" else [[Q], [Q]]

    async def add_lora(self, request: Any) -> None:
        self.loaded.append(request)

    async def remove_lora(self, number: int) -> None:
        self.loaded.remove(number)

    def shutdown(self, timeout_s: float) -> None:
        pass


def report(xxh3: str = "same") -> dict[str, Any]:
    return {"hashes": [[Q, xxh3]], "receive_s": 0.1, "load_s": 0.0}


@pytest.fixture
def make_engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., AdapterEngine]:
    modules = {
        "vllm.lora.request": {"LoRARequest": lambda name, number, path: number},
        "vllm.outputs": {"WeightVersionSpan": lambda version, start, end: (version, start, end)},
    }
    stand_in(monkeypatch, modules)

    def make(workers: Workers, abort_reason: str | None = None) -> AdapterEngine:
        started: Any = SimpleNamespace(
            llm=workers, shapes={Q: (4, 64), UP: (4, 64)}, delete_files=lambda: None, errors=list
        )
        engine = AdapterEngine(started, max_model_len=8, hostname=None)
        engine._adapters = Adapters(started.llm, {"r": 4}, tmp_path)
        board: Any = SimpleNamespace(
            have_reached=lambda stage, ranks: abort_reason is None or not stage.startswith("received/"),
            abort_reason=lambda: abort_reason,
            missing=dict,
        )
        engine._rendezvous, engine._board = Rendezvous("run", 1, "127.0.0.1", 1, 3, "gloo", 10), board
        return engine

    return make


async def test_a_version_is_in_place_when_all_ranks_have_received_it(make_engine: Callable[..., AdapterEngine]) -> None:
    workers = Workers(report(), report())
    engine = make_engine(workers)
    ready: list[bool] = []
    loaded = await engine.load_weights(WeightVersion(0, 1), lambda: ready.append(True))
    assert ready == [True] and [(item.name, item.xxh3) for item in loaded.hashes] == [(Q, "same")]
    with engine._adapters.using() as adapter:
        assert str(adapter.version) == "0.1" and workers.loaded == [adapter.number]
    await engine.close()


async def test_a_failed_load_leaves_the_former_version_and_no_folder(
    make_engine: Callable[..., AdapterEngine], tmp_path: Path
) -> None:
    lost = {"error": {"kind": "Unavailable", "reason": "WEIGHT_GROUP_BROKEN", "message": "lost a member"}}
    workers = Workers(report(), report())
    engine = make_engine(workers)
    await engine.load_weights(WeightVersion(0, 1), lambda: None)
    workers.reports = [report(), lost]
    with pytest.raises(Unavailable, match="lost a member"):
        await engine.load_weights(WeightVersion(0, 2), lambda: None)
    with engine._adapters.using() as adapter:
        assert str(adapter.version) == "0.1" and list(tmp_path.iterdir()) == [adapter.folder]
    await engine.close()


async def test_the_error_of_a_rank_says_more_than_the_abort_of_the_group(
    make_engine: Callable[..., AdapterEngine],
) -> None:
    lost = {"error": {"kind": "Unavailable", "reason": "WEIGHT_GROUP_BROKEN", "message": "lost a member"}}
    for reports, expected in (([lost], "lost a member"), ([report()], "aborted: a sender died")):
        engine = make_engine(Workers(*reports), abort_reason="a sender died")
        with pytest.raises(Unavailable, match=expected):
            await engine.load_weights(WeightVersion(0, 1), lambda: None)
        await engine.close()


async def test_a_layer_that_vllm_would_leave_out_is_refused(make_engine: Callable[..., AdapterEngine]) -> None:
    engine = make_engine(Workers())
    with pytest.raises(InvalidArgument, match=r"1 layers .*layers\.1\.mlp\.up_proj: .*generator\.lora"):
        await engine._refuse_unused_tensors()
    await engine.close()


async def test_no_request_goes_without_an_adapter_and_each_is_stamped_with_its_own(
    make_engine: Callable[..., AdapterEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    async def request(self: Any, token_ids: Any, make_params: Any, lora: Any) -> AsyncIterator[Any]:
        asked.append(lora)
        yield SimpleNamespace(outputs=[SimpleNamespace(token_ids=[5], weight_versions=None)])
        # A publish comes while the request runs.
        await engine.load_weights(WeightVersion(0, len(asked) + 1), lambda: None)
        yield SimpleNamespace(outputs=[SimpleNamespace(token_ids=[6, 7], weight_versions=None)])

    engine = make_engine(Workers(report()))
    monkeypatch.setattr(AdapterEngine, "_request", request)
    await engine.load_weights(WeightVersion(0, 1), lambda: None)
    for version in ("0.1", "0.2"):
        outputs = [output async for output in engine._generate([1, 2], lambda: None)]
        found = [output.outputs[0].weight_versions for output in outputs]
        assert found == [[(version, 0, 1)], [(version, 0, 3)]], "versions count from the first token"
    assert asked == [1, 2]
    await engine.close()
