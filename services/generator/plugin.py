"""What every process of a vLLM engine runs when it starts: the entry point `vllm.general_plugins`."""

import logging
import multiprocessing
import os

ENGINE_MARK = "SHOAL_ENGINE_ERRORS"
"""Set by a generator for the processes of its engine: the file where they say what went wrong."""

BACKEND = "shoal"
"""Name of the weight-transfer engine; it speaks gloo and nccl."""


def register() -> None:
    """Registers the weight transfer and, in the processes of a generator's engine, ties them to their parent.

    vLLM may call this more than once, and also in processes that have nothing to do with Shoal.
    """
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    if BACKEND not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(
            BACKEND, "services.generator.weight_transfer", "BroadcastWeightTransferEngine"
        )
    errors = os.environ.get(ENGINE_MARK)
    if errors and multiprocessing.parent_process() is not None:
        from shoal.worker.parent import die_with_parent

        # vLLM's processes outlive a parent that is killed, and hold its memory.
        die_with_parent()
        logging.getLogger("vllm").addHandler(_ErrorLines(errors))


class _ErrorLines(logging.Handler):
    """Appends each exception that vLLM logs to a file, since its parent only learns that there was one."""

    def __init__(self, path: str) -> None:
        super().__init__(level=logging.ERROR)
        self._path = path

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if error is None:
            return
        line = " ".join(f"{type(error).__name__}: {error}".split())
        try:
            with open(self._path, "a", encoding="utf-8") as file:
                file.write(line + "\n")
        except OSError:
            # The parent has ended and taken its folder away.
            pass
