"""The adapters of an engine: the current one, and the adapter of each version that still has requests."""

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
    """The adapter of one version, in a folder in peft's format."""

    version: WeightVersion
    number: int
    """The adapter's id in the engine. The id is unique in this process, even among deleted adapters."""
    folder: Path
    num_requests: int = 0

    @property
    def file(self) -> Path:
        """The file of the tensors."""
        return self.folder / "adapter_model.safetensors"

    @property
    def request(self) -> "LoRARequest":
        """The adapter in the form that a request to vLLM needs.

        Requests with equal adapter names and paths share the cache of a prompt. The name is unique to a version.
        """
        from vllm.lora.request import LoRARequest

        return LoRARequest(f"{self.version}#{self.number}", self.number, str(self.folder))

    def delete(self) -> None:
        """Deletes the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)


class Adapters:
    """Gives each request the adapter that is current when it begins, and removes unused adapters.

    vLLM may drop an adapter at any time, and then loads it again from its folder for the next token of a request. The
    engine dies if the folder is gone. So a folder stays until its last request has ended.
    """

    def __init__(self, llm: "AsyncLLM", config: dict[str, Any], parent: Path) -> None:
        """Each adapter gets a folder in `parent`, with the adapter's tensors and `config`."""
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
        """Loads an adapter into the engine. All requests that begin afterwards get this adapter."""
        await self._llm.add_lora(adapter.request)
        former, self._current = self._current, adapter
        if former is not None:
            self._remove_if_unused(former)

    @contextmanager
    def using(self) -> Iterator[Adapter]:
        """Keeps the current adapter until one request has ended."""
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
