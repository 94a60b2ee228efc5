"""Messages between the members of a weight group, except tensors. The group's store has them as keys of its epoch."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from shoal.error_reasons import ErrorReason
from shoal.errors import Unavailable
from shoal.network import listening_socket

if TYPE_CHECKING:
    from torch.distributed import Store, TCPStore

ARRIVED = "here"
"""The stage of a rank that waits for the others."""
CONNECTED = "met"
"""The stage of a rank that is connected to all others."""
LEFT = "left"
"""The stage of a rank that has left the group because the group was aborted."""
_ABORT_KEY = "abort"
_MISSING_KEY = "missing"


def receiving(load_id: str) -> str:
    """Returns the stage of a rank that receives the broadcasts of a load."""
    return f"ready/{load_id}"


def received(load_id: str) -> str:
    """Returns the stage of a rank that has received all broadcasts of a load."""
    return f"received/{load_id}"


def open_store(host: str, port: int, *, timeout_s: float) -> "TCPStore":
    """Opens the store through which a group forms, as a client. The learner's rank 0 serves the store.

    Raises `Unavailable` when the store cannot be reached within `timeout_s`.
    """
    return _open(host, port, "reached", timeout_s)


def serve_store(host: str | None, port: int, *, timeout_s: float) -> "TCPStore":
    """Serves the store through which a group forms, in rank 0 of the learner. A `port` of 0 takes a free port.

    The store listens on the interface of `host`; on all if `host` is None. Raises `Unavailable` if the port is taken.
    """
    if host is None:
        return _open("127.0.0.1", port, "opened", timeout_s, is_master=True)
    try:
        # TCPStore itself would listen on every interface, whatever its host.
        listening = listening_socket(host, port)
    except OSError as error:
        raise _unreachable(host, port, "opened", error) from error
    port = listening.getsockname()[1]
    return _open(host, port, "opened", timeout_s, is_master=True, master_listen_fd=listening.detach())


def _open(host: str, port: int, doing: str, timeout_s: float, **options: Any) -> "TCPStore":
    from torch.distributed import DistError, TCPStore

    try:
        return TCPStore(host, port, wait_for_workers=False, timeout=timedelta(seconds=timeout_s), **options)
    except (DistError, RuntimeError, OSError) as error:
        raise _unreachable(host, port, doing, error) from error


def _unreachable(host: str, port: int, doing: str, error: Exception) -> Unavailable:
    return Unavailable(
        f"the weight store {host}:{port} cannot be {doing}: {first_line(error)}",
        reason=ErrorReason.WEIGHT_STORE_UNREACHABLE,
    )


class GroupBoard:
    """The messages that the members of one epoch's group post for each other.

    Any process that reaches the store may read and write them. Every method raises `Unavailable` if the store is gone.
    """

    def __init__(self, store: "Store", run_id: str, epoch: int) -> None:
        from torch.distributed import PrefixStore

        self.store = PrefixStore(f"{run_id}/{epoch}", store)

    def post(self, stage: str, rank: int) -> None:
        """Posts that a rank has reached a stage: ARRIVED, CONNECTED, LEFT, or a stage of a load."""
        self._post(f"{stage}/{rank}")

    def have_reached(self, stage: str, ranks: Iterable[int]) -> bool:
        """Returns whether these ranks have reached a stage."""
        return self._has(f"{stage}/{rank}" for rank in ranks)

    def have_not_reached(self, stage: str, ranks: Iterable[int]) -> list[int]:
        """Returns those of `ranks` that have not reached a stage."""
        return [rank for rank in ranks if not self._has([f"{stage}/{rank}"])]

    def post_missing(self, ranks: Iterable[int]) -> None:
        """Posts, before an abort, which ranks caused the abort."""
        self._post(_MISSING_KEY, ",".join(map(str, ranks)))

    def missing(self) -> dict[str, str]:
        """Returns the metadata for an error that names the missing ranks; empty if no missing ranks are known."""
        if not self._has([_MISSING_KEY]):
            return {}
        with _store_errors():
            return missing_ranks(self.store.get(_MISSING_KEY).decode().split(","))

    def abort(self, reason: str) -> None:
        """Posts that every member must abort the group. Later reasons do not replace the first reason."""
        if self.abort_reason() is None:
            self._post(_ABORT_KEY, reason)

    def abort_reason(self) -> str | None:
        """Returns why the group was aborted; None if the group was not aborted."""
        if not self._has([_ABORT_KEY]):
            return None
        with _store_errors():
            return str(self.store.get(_ABORT_KEY).decode())

    def _post(self, key: str, value: str = "1") -> None:
        with _store_errors():
            self.store.set(key, value)

    def _has(self, keys: Iterable[str]) -> bool:
        with _store_errors():
            return bool(self.store.check(list(keys)))


def missing_ranks(ranks: Iterable[object]) -> dict[str, str]:
    """Returns the metadata of an error that names the missing ranks of a group; empty for no ranks."""
    named = ",".join(map(str, ranks))
    return {"missing_ranks": named} if named else {}


@contextmanager
def _store_errors() -> Iterator[None]:
    from torch.distributed import DistError

    try:
        yield
    except (DistError, RuntimeError) as error:
        raise Unavailable(
            f"the weight store is gone: {first_line(error)}", reason=ErrorReason.WEIGHT_STORE_UNREACHABLE
        ) from error


def first_line(error: BaseException) -> str:
    """Returns the first line of an error of torch, whose other lines are a C++ stack."""
    return str(error).strip().split("\n", 1)[0]
