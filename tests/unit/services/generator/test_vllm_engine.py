"""Loads over several ranks, without vLLM. For the rest see tests/integration/test_weights.py."""

import asyncio
import gc
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from services.generator.vllm_engine import VllmEngine
from shoal.errors import DataLoss, FailedPrecondition, Unavailable
from shoal.rollout import WeightVersion
from shoal.weights.rendezvous import Rendezvous
from tests.support.library_source import class_of, signature_of, source_of

RENDEZVOUS = Rendezvous("run", 1, "127.0.0.1", 1, 3, "gloo", 10)


class Workers:
    """The calls that a load makes of AsyncLLM, with workers that return these reports."""

    errored = False
    output_handler = None

    def __init__(self, reports: list[dict[str, Any]]) -> None:
        self.reports = reports
        self.calls: list[str] = []

    async def start_weight_update(self) -> None:
        pass

    async def update_weights(self, request: Any) -> None:
        if any("error" in report for report in self.reports):
            raise RuntimeError("a worker failed")

    async def finish_weight_update(self, version: str) -> None:
        self.calls.append("finish")

    async def collective_rpc(self, name: str) -> list[dict[str, Any]]:
        self.calls.append(name)
        return self.reports

    def shutdown(self, timeout_s: float) -> None:
        pass


def report(xxh3: str) -> dict[str, Any]:
    return {"hashes": [["embed", "same"], ["head", xxh3]], "receive_s": 0.1, "load_s": 0.1}


@pytest.fixture
def make_engine(monkeypatch: pytest.MonkeyPatch) -> Callable[[Workers], VllmEngine]:
    base = SimpleNamespace(WeightTransferUpdateRequest=lambda update_info: update_info)
    monkeypatch.setitem(sys.modules, "vllm.distributed.weight_transfer.base", base)

    def make(workers: Workers) -> VllmEngine:
        started: Any = SimpleNamespace(llm=workers, delete_files=lambda: None, errors=list)
        engine = VllmEngine(started, max_model_len=8, hostname=None)
        board: Any = SimpleNamespace(have_reached=lambda stage, ranks: True, abort_reason=lambda: None)
        engine._rendezvous, engine._board = RENDEZVOUS, board
        return engine

    return make


async def test_ranks_that_received_different_bytes_fail_the_load(make_engine: Callable[[Workers], VllmEngine]) -> None:
    workers = Workers([report("one"), report("other")])
    engine = make_engine(workers)
    with pytest.raises(DataLoss, match=r"rank 1 .* head "):
        await engine.load_weights(WeightVersion(0, 1), lambda: None)
    assert workers.calls == ["take_load_report", "abandon_load"]
    workers.reports = [report("one"), report("one")]
    loaded = await engine.load_weights(WeightVersion(0, 1), lambda: None)
    assert [(item.name, item.xxh3) for item in loaded.hashes] == [("embed", "same"), ("head", "one")]
    await engine.close()


async def test_a_failed_load_is_logged_once(make_engine: Callable[[Workers], VllmEngine]) -> None:
    logged: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: logged.append(context))
    failed = {"error": {"kind": "Unavailable", "reason": "WEIGHT_GROUP_BROKEN", "message": "lost a member"}}
    engine = make_engine(Workers([report("one"), failed]))
    with pytest.raises(Unavailable, match="lost a member"):
        await engine.load_weights(WeightVersion(0, 1), lambda: None)
    await engine.close()
    gc.collect()
    assert logged == [], "asyncio logged an error that nobody awaited"


async def test_sleep_keeps_requests_and_weights_and_calls_vllm_as_it_declares(
    make_engine: Callable[[Workers], VllmEngine],
) -> None:
    declared = class_of(source_of("vllm", "v1/engine/async_llm.py"), "AsyncLLM")

    class SleepingWorkers(Workers):
        model_config = SimpleNamespace(enable_sleep_mode=True)

        async def _recorded(self, name: str, *values: Any, **named: Any) -> None:
            signature_of(declared, name).bind(*values, **named)
            self.calls.append(f"{name} {named}")

        async def sleep(self, *values: Any, **named: Any) -> None:
            await self._recorded("sleep", *values, **named)

        async def wake_up(self, *values: Any, **named: Any) -> None:
            await self._recorded("wake_up", *values, **named)

    workers = SleepingWorkers([])
    engine = make_engine(workers)
    await engine.sleep()
    await engine.wake()
    # Level 1 keeps the weights on the host; by default vLLM would abort the requests.
    assert workers.calls == ["sleep {'level': 1, 'mode': 'keep'}", "wake_up {}"]
    workers.model_config.enable_sleep_mode = False
    with pytest.raises(FailedPrecondition, match=r"generator\.sleep_while_training"):
        await engine.sleep()
    await engine.close()
