"""The adapters of an engine: one for each version that has requests, and the current one."""

import asyncio
import itertools
import json
import logging
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.rollout import WeightVersion

if TYPE_CHECKING:
    from vllm.lora.request import LoRARequest
    from vllm.v1.engine.async_llm import AsyncLLM

log = logging.getLogger(__name__)


@dataclass
class Adapter:
    """The adapter of one version, in a folder as peft writes it."""

    version: WeightVersion
    number: int
    """Its id in the engine, which no other adapter of this process has or had."""
    folder: Path
    num_requests: int = 0

    @property
    def file(self) -> Path:
        """The file of the tensors."""
        return self.folder / "adapter_model.safetensors"

    @property
    def request(self) -> "LoRARequest":
        """What a request to vLLM names.

        The key-value cache of a prompt is shared under one name and path: with a name of its own, a version cannot meet
        the cache of another.
        """
        from vllm.lora.request import LoRARequest

        return LoRARequest(f"{self.version}#{self.number}", self.number, str(self.folder))

    def delete(self) -> None:
        """Deletes the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)


class Adapters:
    """Gives each request the adapter that is current when it begins, and removes adapters that nothing needs.

    vLLM may drop an adapter at any time, and loads it again from its folder for the next token of a request. Its engine
    dies if the folder is gone. So a folder stays until the last request under it has ended.
    """

    def __init__(self, llm: "AsyncLLM", config: dict[str, Any], parent: Path) -> None:
        """`config` is written beside the tensors of each adapter, in a folder of its own in `parent`."""
        self._llm = llm
        self._config = config
        self._parent = parent
        self._numbers = itertools.count(1)
        self._current: Adapter | None = None
        self._removals: set[asyncio.Task[None]] = set()

    def make(self, version: WeightVersion) -> Adapter:
        """Makes the folder of an adapter, for its tensors."""
        number = next(self._numbers)
        adapter = Adapter(version, number, self._parent / f"adapter-{number}")
        adapter.folder.mkdir()
        (adapter.folder / "adapter_config.json").write_text(json.dumps(self._config), encoding="utf-8")
        return adapter

    async def switch(self, adapter: Adapter) -> None:
        """Loads an adapter into the engine. All requests that begin from then on get it."""
        await self._llm.add_lora(adapter.request)
        former, self._current = self._current, adapter
        if former is not None:
            self._remove_if_unused(former)

    @contextmanager
    def using(self) -> Iterator[Adapter]:
        """Keeps the current adapter for one request."""
        adapter = self._current
        assert adapter is not None, "an engine begins with an adapter"
        adapter.num_requests += 1
        try:
            yield adapter
        finally:
            adapter.num_requests -= 1
            self._remove_if_unused(adapter)

    def _remove_if_unused(self, adapter: Adapter) -> None:
        if adapter is not self._current and not adapter.num_requests:
            task = asyncio.create_task(self._remove(adapter))
            self._removals.add(task)
            task.add_done_callback(self._removals.discard)

    async def _remove(self, adapter: Adapter) -> None:
        try:
            # The engine takes this after the end of the adapter's last request.
            await self._llm.remove_lora(adapter.number)
        except Exception as error:
            log.warning("adapter not removed", extra={"version": str(adapter.version), "error": str(error)})
        adapter.delete()
