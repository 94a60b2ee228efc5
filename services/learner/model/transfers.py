"""Transfers to a GPU that computes meanwhile.

Each wait for a GPU leaves it idle while the host prepares the next row. A plain copy to a GPU waits for all its work.
"""

from collections import deque

import torch
from torch import Tensor

_ROWS_AHEAD = 2


def moved(values: Tensor, device: torch.device) -> Tensor:
    """Returns values on a device, without a wait for its earlier work."""
    if device.type == "cuda" and values.device.type == "cpu":
        return values.pin_memory().to(device, non_blocking=True)
    return values.to(device)


class RowQueue:
    """Bounds the number of rows that the host prepares ahead of a GPU, and so the memory of their inputs."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._ends: deque[torch.cuda.Event] = deque()

    def add_row(self) -> None:
        """Marks the end of a row's work. Waits until at most two rows are unfinished."""
        if self._device.type != "cuda":
            return
        end = torch.cuda.Event(blocking=True)
        end.record()
        self._ends.append(end)
        if len(self._ends) > _ROWS_AHEAD:
            self._ends.popleft().synchronize()
