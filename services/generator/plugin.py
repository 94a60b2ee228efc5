"""The plug-in for vLLM (entry point `vllm.general_plugins`), which every process of an engine runs at its start."""

import logging
import multiprocessing
import os
from contextlib import suppress

from services.generator.torchvision_stand_in import stand_in_for_torchvision

ENGINE_MARK = "SHOAL_ENGINE_ERRORS"
"""An environment variable that a generator sets: the file to which the processes of its engine write errors."""

BACKEND = "shoal"
"""The name of the weight-transfer engine, for gloo and nccl."""

SPOILED = "shoal_spoiled"
"""The name of the loader that spoils an engine's first weights, for vLLM's `load_format`."""


def register() -> None:
    """Registers the weight transfer. Makes the processes of a generator's engine end with their parent.

    vLLM may call this function several times, and in processes that do not belong to Shoal.
    """
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    if BACKEND not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(
            BACKEND, "services.generator.workers.weight_transfer", "BroadcastWeightTransferEngine"
        )
    errors = os.environ.get(ENGINE_MARK)
    if errors:
        stand_in_for_torchvision()
        _prepare_engine()
    if errors and multiprocessing.parent_process() is not None:
        from shoal.worker.parent import die_with_parent

        # vLLM's processes outlive a killed parent, and keep their memory.
        die_with_parent()
        logging.getLogger("vllm").addHandler(_ErrorLines(errors))


def _prepare_engine() -> None:
    from vllm.model_executor.model_loader import register_model_loader

    from services.generator.workers.kept_buffers import keep_buffers
    from services.generator.workers.rotary_on_cpu import rotate_flat_heads
    from services.generator.workers.spoiled_loader import SpoiledLoader
    from services.generator.workers.xielu import give_xielu_the_models_type

    register_model_loader(SPOILED)(SpoiledLoader)
    rotate_flat_heads()
    keep_buffers()
    give_xielu_the_models_type()


class _ErrorLines(logging.Handler):
    """Appends each exception that vLLM logs to a file. The parent process learns only that an exception occurred."""

    def __init__(self, path: str) -> None:
        super().__init__(level=logging.ERROR)
        self._path = path

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if error is None:
            return
        line = " ".join(f"{type(error).__name__}: {error}".split())
        # The parent may have ended and deleted its folder.
        with suppress(OSError), open(self._path, "a", encoding="utf-8") as file:
            file.write(line + "\n")
