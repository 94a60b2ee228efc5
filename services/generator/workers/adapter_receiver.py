"""Receives adapters inside vLLM's workers, while the engine samples."""

import threading
import time
from pathlib import Path
from typing import Any

from shoal.weights.board import received, receiving
from shoal.weights.group import BroadcastGroup
from shoal.weights.manifest import Manifest
from shoal.weights.transfer import receive_weights


class AdapterReceiver:
    """Receives one adapter in a thread and writes it to a file.

    The engine need not wait, since the running requests keep their adapters.
    """

    def __init__(self, group: BroadcastGroup, manifest: Manifest, load_id: str, file: Path | None) -> None:
        """`file` is set on one rank of the engine; the other ranks only hash the tensors."""
        self._group = group
        self._manifest = manifest
        self._load_id = load_id
        self._file = file
        self._outcome: dict[str, Any] | BaseException = {}
        self._thread = threading.Thread(target=self._run, name="adapter", daemon=True)
        self._thread.start()

    def outcome(self) -> dict[str, Any] | BaseException:
        """Waits until the adapter is received. Returns the hashes and times of the load, or the error of the load."""
        self._thread.join()
        return self._outcome

    def _run(self) -> None:
        group = self._group
        try:
            self._outcome = self._receive()
            group.board.post(received(self._load_id), group.rank)
        except BaseException as error:
            self._outcome = error
            group.abort(f"{type(error).__name__}: {error}")

    def _receive(self) -> dict[str, Any]:
        from safetensors.torch import save_file

        started = time.monotonic()
        self._group.board.post(receiving(self._load_id), self._group.rank)
        tensors = list(receive_weights(self._group, self._manifest))
        receive_s = time.monotonic() - started
        if self._file is not None:
            save_file({spec.name: tensor.cpu() for spec, tensor, _ in tensors}, self._file)
        hashes = [(found.name, found.xxh3) for _, _, found in tensors]
        return {"hashes": hashes, "receive_s": receive_s, "load_s": time.monotonic() - started - receive_s}
