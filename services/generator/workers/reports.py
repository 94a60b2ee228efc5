"""The reports of an engine's ranks about a load, as plain values."""

from collections.abc import Awaitable, Sequence
from typing import Any, TypeVar

from shoal import errors
from shoal.error_reasons import ErrorReason
from shoal.errors import DataLoss, Internal, ShoalError
from shoal.weights.manifest import TensorHash

T = TypeVar("T")


def error_of(reports: Sequence[dict[str, Any]]) -> ShoalError | None:
    """Returns the error that a rank reports; None if no rank reports an error."""
    failed = next((report["error"] for report in reports if "error" in report), None)
    return None if failed is None else getattr(errors, failed["kind"])(failed["message"], reason=failed["reason"])


def hashes_of_all(reports: Sequence[dict[str, Any]]) -> tuple[TensorHash, ...]:
    """Returns the hashes that all ranks report. Raises `DataLoss` if the ranks disagree."""
    first = reports[0]["hashes"]
    for rank, report in enumerate(reports):
        for (name, xxh3), (_, other) in zip(first, report["hashes"], strict=True):
            if xxh3 != other:
                raise DataLoss(
                    f"rank {rank} of the generator received {name} with the hash {other}, but rank 0 received the "
                    f"tensor with {xxh3}",
                    reason=ErrorReason.WEIGHTS_DIFFER,
                )
    return tuple(TensorHash(name, xxh3) for name, xxh3 in first)


async def translated(call: Awaitable[T], doing: str) -> T:
    """Awaits a call of the workers, and translates its errors, which are plain strings."""
    try:
        return await call
    except Exception as error:
        raise Internal(f"vLLM cannot {doing}: {error}", reason=ErrorReason.ENGINE_FAILED) from error
