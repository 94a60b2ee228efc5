"""The collective group that carries weights in one epoch.

The group is stateless: a bare ProcessGroupGloo or ProcessGroupNCCL over a separate store, independent of the world
that the process already belongs to. Its members exchange everything else through `shoal.weights.board`.
"""

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from shoal.error_reasons import ErrorReason
from shoal.errors import DeadlineExceeded, ShoalError, Unavailable
from shoal.network import address_toward
from shoal.weights.board import ARRIVED, LEFT, GroupBoard, first_line, missing_ranks
from shoal.weights.rendezvous import Rendezvous

if TYPE_CHECKING:
    import torch
    from torch.distributed import Store, Work

log = logging.getLogger(__name__)

_POLL_S = 0.05
_WATCH_S = 0.2
_ROLL_CALL_S = 1.0
"""Time for the members of an aborted group to leave the group. Members notice an abort within `_WATCH_S`."""


class BroadcastGroup:
    """A member of the group of one epoch. Rank 0 sends, all others receive.

        group = BroadcastGroup(rendezvous, rank=1, store=store, device="cpu", hostname="10.0.0.7")
        group.connect()
        group.wait(group.start(tensor))
        group.close()

    One thread uses it. Any other thread may call `abort`, which makes the first thread's call raise.
    """

    def __init__(
        self, rendezvous: Rendezvous, *, rank: int, store: "Store", device: str = "cpu", hostname: str | None = None
    ) -> None:
        """`device` holds the tensors that nccl broadcasts, for example "cuda:0"; gloo uses the CPU.

        gloo listens on `hostname`, an address of this machine that the other members reach. If `hostname` is unset or
        not local, gloo listens on this machine's address toward the store.
        """
        self.rendezvous = rendezvous
        self.rank = rank
        self.device = "cpu" if rendezvous.backend == "gloo" else device
        self.board = GroupBoard(store, rendezvous.run_id, rendezvous.epoch)
        self._hostname = hostname
        self._backend: Any = None
        self._aborted: str | None = None
        self._closed = threading.Event()

    def connect(self) -> None:
        """Blocks until every member has arrived, then connects to the members.

        Raises `DeadlineExceeded` when a member does not arrive within the rendezvous' `timeout_s`. Raises `Unavailable`
        when a member ends meanwhile or the group is aborted.
        """
        _in_background(self._watch)
        deadline = time.monotonic() + self.rendezvous.timeout_s
        self.board.post(ARRIVED, self.rank)
        ranks = range(self.rendezvous.world_size)
        while not self.board.have_reached(ARRIVED, ranks):
            self._raise_if_aborted()
            if time.monotonic() > deadline:
                missing = self.board.have_not_reached(ARRIVED, ranks)
                self.board.post_missing(missing)
                raise self._too_slow("the rendezvous", missing)
            time.sleep(_POLL_S)
        try:
            backend = self._make_gloo() if self.rendezvous.backend == "gloo" else self._make_nccl()
        except (RuntimeError, OSError) as error:
            self._raise_if_aborted()
            raise self._unavailable(f"cannot connect to its members: {first_line(error)}") from error
        self._backend = backend
        if self._closed.is_set():
            # `close` was called meanwhile, when there was no backend to close yet.
            self.close()
        self._raise_if_aborted()

    def start(self, tensor: "torch.Tensor") -> "Work":
        """Starts a broadcast from rank 0 of a contiguous tensor on `device`. Keep the tensor until `wait` returns."""
        self._raise_if_aborted()
        backend = self._backend
        if backend is None:
            raise self._unavailable("is not connected")
        try:
            return backend.broadcast(tensor, 0)
        except RuntimeError as error:
            # Another thread called `abort`, or the backend ended itself because a member ended.
            self._raise_if_aborted()
            raise self._unavailable(f"cannot broadcast: {first_line(error)}") from error

    def wait(self, work: "Work", deadline: float | None = None) -> None:
        """Waits for a broadcast.

        `deadline` is a time of `time.monotonic()`; by default it is the rendezvous' `timeout_s` from now. Raises
        `DeadlineExceeded`, or `Unavailable` when a member ended or the group was aborted. Both abort the group.
        """
        if deadline is None:
            deadline = time.monotonic() + self.rendezvous.timeout_s
        try:
            while not work.is_completed():
                self._check(deadline, "a broadcast")
                self._sleep(work)
            self._raise_if_failed(work)
        except ShoalError as error:
            self.abort(error.message)
            raise

    def abort(self, reason: str) -> None:
        """Aborts the group for all members: calls that use the group raise `Unavailable`. Any thread may call it."""
        if self._aborted is None and not self._closed.is_set():
            self._aborted = reason
            _in_background(self._post_abort, f"rank {self.rank}: {reason}")
        self.close()

    def missing_after_abort(self) -> dict[str, str]:
        """Waits a moment for the other members to leave an aborted group. Returns metadata that names the members that
        have not left; empty metadata if none has left, since the fault may then be in this process.
        """
        others = range(1, self.rendezvous.world_size)
        deadline = time.monotonic() + _ROLL_CALL_S
        try:
            while (missing := self.board.have_not_reached(LEFT, others)) and time.monotonic() < deadline:
                time.sleep(_POLL_S)
        except Unavailable:
            return {}
        return missing_ranks(missing) if len(missing) < len(others) else {}

    def close(self) -> None:
        """Leaves the group. Repeated calls are safe."""
        self._closed.set()
        if self._backend is not None:
            # In a list, so that this frame keeps no reference to the backend.
            backends, self._backend = [self._backend], None
            _dispose_in_background(backends)

    def _post_abort(self, reason: str) -> None:
        try:
            self.board.abort(reason)
            self.board.post(LEFT, self.rank)
        except Unavailable as error:
            log.info("cannot post the abort to the members of epoch %d: %s", self.rendezvous.epoch, error.message)

    def _check(self, deadline: float, doing: str) -> None:
        self._raise_if_aborted()
        if time.monotonic() > deadline:
            raise self._too_slow(doing)

    def _too_slow(self, doing: str, missing: Sequence[int] = ()) -> DeadlineExceeded:
        return DeadlineExceeded(
            f"weight group of epoch {self.rendezvous.epoch} with {self.rendezvous.world_size} members: {doing} did not "
            f"end by its deadline, after at most {self.rendezvous.timeout_s:g} s (weights.timeout_s)",
            reason=ErrorReason.WEIGHT_GROUP_TIMEOUT,
            metadata=missing_ranks(missing),
        )

    def _raise_if_aborted(self) -> None:
        if self._aborted is not None:
            raise self._unavailable(f"was aborted: {self._aborted}")
        if self._closed.is_set():
            raise self._unavailable("is closed")

    def _unavailable(self, what: str) -> Unavailable:
        epoch = self.rendezvous.epoch
        return Unavailable(
            f"weight group of epoch {epoch} {what}",
            reason=ErrorReason.WEIGHT_GROUP_BROKEN,
            metadata={"epoch": str(epoch)},
        )

    def _raise_if_failed(self, work: "Work") -> None:
        try:
            # The work has ended: this returns at once, and raises if the work failed.
            work.wait(timedelta(seconds=60))
        except RuntimeError as error:
            self._raise_if_aborted()
            raise self._unavailable(f"lost a member: {first_line(error)}") from error

    def _sleep(self, work: "Work") -> None:
        """Sleeps until the next check, or until the broadcast has ended."""
        if self.rendezvous.backend == "nccl":
            time.sleep(0.0005)
            return
        try:
            work.wait(timedelta(seconds=_POLL_S))
        except RuntimeError:
            # The work continues or has failed: the caller's loop checks which.
            pass

    def _watch(self) -> None:
        """Watches for an abort by another member, in a thread, because a store may hang together with its host."""
        while not self._closed.wait(_WATCH_S):
            try:
                reason = self.board.abort_reason()
            except Unavailable as error:
                reason = error.message
            if reason is not None and not self._closed.is_set():
                self._aborted = self._aborted or reason
                with suppress(Unavailable):
                    self.board.post(LEFT, self.rank)
                return

    def _make_gloo(self) -> Any:
        from torch.distributed import ProcessGroupGloo

        options = ProcessGroupGloo._Options()
        # Later than the deadline of `wait`, whose error is more precise.
        options._timeout = timedelta(seconds=self.rendezvous.timeout_s + 2)
        options._threads = 2
        options._devices = [self._gloo_device()]
        return ProcessGroupGloo(self._cloned_store(), self.rank, self.rendezvous.world_size, options)

    def _cloned_store(self) -> Any:
        """Returns a separate connection to the store for the backend.

        The backend waits in this connection for the addresses of the peers, and a connection serves one call at a time.
        If the connection were shared, a dead member would block this group's board and the boards of later epochs.
        """
        return self.board.store.clone()

    def _gloo_device(self) -> Any:
        from torch.distributed import ProcessGroupGloo

        if self._hostname:
            try:
                return ProcessGroupGloo.create_device(hostname=self._hostname)
            except RuntimeError:
                log.info("%s is not local; gloo listens on the address toward the store", self._hostname)
        toward = address_toward(self.rendezvous.store_host, self.rendezvous.store_port)
        return ProcessGroupGloo.create_device(hostname=toward)

    def _make_nccl(self) -> Any:
        import torch
        from torch.distributed import ProcessGroupNCCL

        options = ProcessGroupNCCL.Options()
        options._timeout = timedelta(seconds=self.rendezvous.timeout_s)
        # By default a failed collective or a stalled watchdog ends the process, not only the group.
        with _environment(TORCH_NCCL_ASYNC_ERROR_HANDLING="0", TORCH_NCCL_ENABLE_MONITORING="0"):
            backend = ProcessGroupNCCL(self._cloned_store(), self.rank, self.rendezvous.world_size, options)
        # Connect now, not in the first broadcast: members that cannot reach each other must fail here.
        backend.eager_connect_single_device(torch.device(self.device))
        return backend


def _dispose_in_background(backends: list[Any]) -> None:
    """Ends the backend in the list, and empties the list.

    Gloo cannot be interrupted: its destructor waits for the timeout of the last operation. NCCL's abort may block for
    as long as NCCL's proxy thread blocks. Neither wait may block the caller.
    """

    def dispose() -> None:
        backend = backends.pop()
        if backend is None:
            # Two threads called `close` at once.
            return
        try:
            backend.abort()
        except RuntimeError as error:
            log.info("aborting a weight group: %s", first_line(error))
        # The last reference runs the destructor, which waits. It must be this reference.
        while sys.getrefcount(backend) > 2:
            time.sleep(_WATCH_S)

    _in_background(dispose)


def _in_background(work: Callable[..., None], *values: object) -> None:
    """Runs work that may hang because of a peer's host or a library."""
    threading.Thread(target=work, args=values, name="weights-background", daemon=True).start()


@contextmanager
def _environment(**values: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
