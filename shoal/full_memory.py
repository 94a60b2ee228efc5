"""Tells errors of full memory from others. Torch has an error class for a GPU's memory alone."""

import errno

_TEXTS = ("out of memory", "can't allocate memory", "not enough memory")
"""What CUDA, and torch's allocator for the host, say in a RuntimeError."""


def is_out_of_memory(error: BaseException) -> bool:
    """Returns whether an error of Python, the system or torch says that the memory of a GPU or of the host is full."""
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, MemoryError) or says_out_of_memory(str(error))


def says_out_of_memory(text: str) -> bool:
    """Returns whether the text of an error says that the memory of a GPU or of the host is full."""
    return any(known in text for known in _TEXTS)
