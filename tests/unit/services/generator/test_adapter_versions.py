import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from services.generator.adapter_versions import Adapter, Adapters
from shoal.rollout import WeightVersion


class Llm:
    """Records what the engine is asked to load and to remove, and whether the folder was there."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []
        self.fails = False

    async def add_lora(self, request: Any) -> None:
        assert (Path(request.path) / "adapter_config.json").exists()
        self.calls.append(("add", request.number))

    async def remove_lora(self, number: int) -> None:
        self.calls.append(("remove", number))
        if self.fails:
            raise RuntimeError("the engine refuses")


@pytest.fixture(autouse=True)
def plain_requests(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    plain = property(lambda self: SimpleNamespace(number=self.number, path=str(self.folder)))
    monkeypatch.setattr(Adapter, "request", plain)
    yield


@pytest.fixture
def llm() -> Llm:
    return Llm()


@pytest.fixture
def adapters(llm: Llm, tmp_path: Path) -> Adapters:
    engine: Any = llm
    return Adapters(engine, {"r": 4}, tmp_path)


async def switch(adapters: Adapters, version: int) -> Adapter:
    adapter = adapters.make(WeightVersion(0, version))
    await adapters.switch(adapter)
    return adapter


async def removals(adapters: Adapters) -> None:
    await asyncio.gather(*adapters._removals)


async def test_an_adapter_stays_until_its_last_request_has_ended(adapters: Adapters, llm: Llm) -> None:
    first = await switch(adapters, 1)
    with adapters.using() as one:
        with adapters.using() as two:
            second = await switch(adapters, 2)
            assert one is two is first
        await removals(adapters)
        assert first.folder.exists() and ("remove", first.number) not in llm.calls, "a request still needs it"
        with adapters.using() as later:
            assert later is second, "requests that begin after the switch get the new version"
    await removals(adapters)
    assert not first.folder.exists() and llm.calls == [("add", 1), ("add", 2), ("remove", 1)]
    assert second.folder.exists(), "the current version stays without requests"


async def test_an_adapter_without_requests_goes_when_the_next_one_comes(adapters: Adapters, llm: Llm) -> None:
    first = await switch(adapters, 1)
    await switch(adapters, 2)
    await removals(adapters)
    assert not first.folder.exists() and llm.calls[-1] == ("remove", first.number)


async def test_the_same_version_again_has_a_number_and_a_folder_of_its_own(adapters: Adapters) -> None:
    first, again = adapters.make(WeightVersion(0, 1)), adapters.make(WeightVersion(0, 1))
    assert first.number != again.number and first.folder != again.folder
    assert json.loads((again.folder / "adapter_config.json").read_text()) == {"r": 4}


async def test_an_engine_that_cannot_remove_an_adapter_keeps_sampling(adapters: Adapters, llm: Llm) -> None:
    llm.fails = True
    first = await switch(adapters, 1)
    await switch(adapters, 2)
    await removals(adapters)
    assert not first.folder.exists()
    with adapters.using():
        pass
