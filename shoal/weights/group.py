"""The collective group that carries weights in one epoch.

It is stateless: a bare ProcessGroupGloo or ProcessGroupNCCL over a store of its own, beside whatever world the
process already belongs to. Its members tell each other the rest through keys of the epoch in that store: that they
have come, that they are receiving, that the group is given up.
"""

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from shoal.errors import DeadlineExceeded, ShoalError, Unavailable
from shoal.weights.rendezvous import Rendezvous, address_toward

if TYPE_CHECKING:
    import torch
    from torch.distributed import Store, TCPStore, Work

log = logging.getLogger(__name__)

_POLL_S = 0.05
_WATCH_S = 0.2
_ABORT_KEY = "abort"


def open_store(host: str, port: int, *, is_master: bool, timeout_s: float) -> "TCPStore":
    """Opens the store over which groups meet: the learner's rank 0 as master, everybody else as client.

    The master listens on every interface, on a free port if `port` is 0; read `.port`. Raises `Unavailable` when
    the store cannot be reached within `timeout_s`, or the master's port is taken.
    """
    from torch.distributed import DistError, TCPStore

    try:
        return TCPStore(host, port, is_master=is_master, wait_for_workers=False, timeout=timedelta(seconds=timeout_s))
    except (DistError, RuntimeError, OSError) as error:
        doing = "opened" if is_master else "reached"
        raise Unavailable(
            f"the weight store {host}:{port} cannot be {doing}: {_first_line(error)}", reason="WEIGHT_STORE_UNREACHABLE"
        ) from error


class GroupBoard:
    """What the members of one epoch's group tell each other besides tensors.

    Anybody who reaches the store may read and write it, from any process. Every method raises `Unavailable` when the
    store is gone.
    """

    def __init__(self, store: "Store", run_id: str, epoch: int) -> None:
        from torch.distributed import PrefixStore

        self.store = PrefixStore(f"{run_id}/{epoch}", store)

    def say_here(self, rank: int) -> None:
        """Says that a rank has come, and waits for the others."""
        self._post(f"here/{rank}")

    def are_here(self, ranks: Iterable[int]) -> bool:
        """Whether these ranks have come."""
        return self._has(f"here/{rank}" for rank in ranks)

    def say_met(self, rank: int) -> None:
        """Says that a rank is connected to all others."""
        self._post(f"met/{rank}")

    def have_met(self, ranks: Iterable[int]) -> bool:
        """Whether these ranks are connected to all others."""
        return self._has(f"met/{rank}" for rank in ranks)

    def say_ready(self, load_id: str, rank: int) -> None:
        """Says that a rank receives, for the load of that name."""
        self._post(f"ready/{load_id}/{rank}")

    def are_ready(self, load_id: str, ranks: Iterable[int]) -> bool:
        """Whether these ranks receive."""
        return self._has(f"ready/{load_id}/{rank}" for rank in ranks)

    def abort(self, reason: str) -> None:
        """Tells every member to give the group up. The first reason stands."""
        if self.abort_reason() is None:
            self._post(_ABORT_KEY, reason)

    def abort_reason(self) -> str | None:
        """Why the group was given up; None while it was not."""
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


class BroadcastGroup:
    """One member's end of the group of one epoch. Rank 0 sends, all others receive.

        group = BroadcastGroup(rendezvous, rank=1, store=store, device="cpu", hostname="10.0.0.7")
        group.connect()
        group.broadcast(tensor)
        group.close()

    One thread uses it; `abort` may be called from any other and makes that thread's call raise.
    """

    def __init__(
        self, rendezvous: Rendezvous, *, rank: int, store: "Store", device: str = "cpu", hostname: str | None = None
    ) -> None:
        """`device` is where nccl moves tensors, for example "cuda:0"; gloo moves them on the CPU.

        `hostname` is an address of this machine that the other members reach, for gloo to listen on; unset, or
        when it is not local, takes the address from which packets to the store leave.
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
        """Blocks until every member has come, then connects to them.

        Raises `DeadlineExceeded` when not all come within the rendezvous' `timeout_s`, `Unavailable` when one goes
        away meanwhile or the group is aborted.
        """
        _in_background(self._watch)
        deadline = time.monotonic() + self.rendezvous.timeout_s
        self.board.say_here(self.rank)
        while not self.board.are_here(range(self.rendezvous.world_size)):
            self._check(deadline, "meeting")
            time.sleep(_POLL_S)
        try:
            backend = self._make_gloo() if self.rendezvous.backend == "gloo" else self._make_nccl()
        except (RuntimeError, OSError) as error:
            self._raise_if_aborted()
            raise self._unavailable(f"cannot connect to its members: {_first_line(error)}") from error
        self._backend = backend
        if self._closed.is_set():
            # Left meanwhile, when there was nothing to close yet.
            self.close()
        self._raise_if_aborted()

    def start(self, tensor: "torch.Tensor") -> "Work":
        """Starts a broadcast from rank 0 of a contiguous tensor on `device`; it must live until `wait` returns."""
        self._raise_if_aborted()
        backend = self._backend
        if backend is None:
            raise self._unavailable("is not connected")
        try:
            return backend.broadcast(tensor, 0)
        except RuntimeError as error:
            # Ended meanwhile: by `abort` in another thread, or by the backend itself when a member went away.
            self._raise_if_aborted()
            raise self._unavailable(f"cannot broadcast: {_first_line(error)}") from error

    def wait(self, work: "Work", deadline: float | None = None) -> None:
        """Waits for a broadcast that was started.

        `deadline` is a time of `time.monotonic()`; unset allows the rendezvous' `timeout_s`. Raises
        `DeadlineExceeded` past it and `Unavailable` when a member went away or the group was aborted. Either way
        the group is of no more use, and is aborted for all members.
        """
        if deadline is None:
            deadline = time.monotonic() + self.rendezvous.timeout_s
        try:
            while not work.is_completed():
                self._check(deadline, "broadcast")
                self._rest(work)
            self._raise_if_failed(work)
        except ShoalError as error:
            self.abort(error.message)
            raise

    def broadcast(self, tensor: "torch.Tensor", deadline: float | None = None) -> None:
        """Broadcasts a contiguous tensor on `device` from rank 0, in place. Errors as `wait`."""
        self.wait(self.start(tensor), deadline)

    def abort(self, reason: str) -> None:
        """Gives the group up, for all members: calls that use it raise `Unavailable`. From any thread."""
        if self._aborted is None and not self._closed.is_set():
            self._aborted = reason
            _in_background(self._tell, f"rank {self.rank}: {reason}")
        self.close()

    def close(self) -> None:
        """Leaves the group. Safe to repeat."""
        self._closed.set()
        if self._backend is not None:
            # Handed over in a list, so that this frame holds no reference.
            backends, self._backend = [self._backend], None
            _dispose_in_background(backends)

    def _tell(self, reason: str) -> None:
        try:
            self.board.abort(reason)
        except Unavailable as error:
            log.info("cannot tell the members of epoch %d: %s", self.rendezvous.epoch, error.message)

    def _check(self, deadline: float, doing: str) -> None:
        self._raise_if_aborted()
        if time.monotonic() > deadline:
            raise DeadlineExceeded(
                f"weight group of epoch {self.rendezvous.epoch}: {doing} of {self.rendezvous.world_size} members "
                f"was not done in time (weights.timeout_s is {self.rendezvous.timeout_s:g})",
                reason="WEIGHT_GROUP_TIMEOUT",
            )

    def _raise_if_aborted(self) -> None:
        if self._aborted is not None:
            raise self._unavailable(f"was given up: {self._aborted}")
        if self._closed.is_set():
            raise self._unavailable("has been left")

    def _unavailable(self, what: str) -> Unavailable:
        epoch = self.rendezvous.epoch
        return Unavailable(
            f"weight group of epoch {epoch} {what}", reason="WEIGHT_GROUP_BROKEN", metadata={"epoch": str(epoch)}
        )

    def _raise_if_failed(self, work: "Work") -> None:
        try:
            # The work is done: this returns at once, and raises if it failed.
            work.wait(timedelta(seconds=60))
        except RuntimeError as error:
            self._raise_if_aborted()
            raise self._unavailable(f"lost a member: {_first_line(error)}") from error

    def _rest(self, work: "Work") -> None:
        """Lets a little time pass, less if the work is done."""
        if self.rendezvous.backend == "nccl":
            time.sleep(0.0005)
            return
        try:
            work.wait(timedelta(seconds=_POLL_S))
        except RuntimeError:
            # Not done yet, or failed: the caller's loop tells which.
            pass

    def _watch(self) -> None:
        """Looks for an abort by another member. Beside the caller, because a store may hang with its host."""
        while not self._closed.wait(_WATCH_S):
            try:
                reason = self.board.abort_reason()
            except Unavailable as error:
                reason = error.message
            if reason is not None and not self._closed.is_set():
                self._aborted = self._aborted or reason
                return

    def _make_gloo(self) -> Any:
        from torch.distributed import ProcessGroupGloo

        options = ProcessGroupGloo._Options()
        # A little later than `wait` gives up, which can say what it waited for.
        options._timeout = timedelta(seconds=self.rendezvous.timeout_s + 2)
        options._threads = 2
        options._devices = [self._gloo_device()]
        return ProcessGroupGloo(self._own_store(), self.rank, self.rendezvous.world_size, options)

    def _own_store(self) -> Any:
        """A connection of the backend's own to the store.

        The backend waits in it for the addresses of its peers, and a connection answers nobody else meanwhile: on one
        that is shared, a member that has died would hold up this group's board and those of later epochs.
        """
        return self.board.store.clone()

    def _gloo_device(self) -> Any:
        from torch.distributed import ProcessGroupGloo

        if self._hostname:
            try:
                return ProcessGroupGloo.create_device(hostname=self._hostname)
            except RuntimeError:
                log.info("%s is no address of this machine; gloo listens toward the store instead", self._hostname)
        toward = address_toward(self.rendezvous.store_host, self.rendezvous.store_port)
        return ProcessGroupGloo.create_device(hostname=toward)

    def _make_nccl(self) -> Any:
        import torch
        from torch.distributed import ProcessGroupNCCL

        options = ProcessGroupNCCL.Options()
        options._timeout = timedelta(seconds=self.rendezvous.timeout_s)
        # By default the process ends when a collective fails or its watchdog stalls; here only the group shall end.
        with _environment(TORCH_NCCL_ASYNC_ERROR_HANDLING="0", TORCH_NCCL_ENABLE_MONITORING="0"):
            backend = ProcessGroupNCCL(self._own_store(), self.rank, self.rendezvous.world_size, options)
        # Connects now instead of in the first broadcast, so that members that cannot reach each other show here.
        backend.eager_connect_single_device(torch.device(self.device))
        return backend


def _dispose_in_background(backends: list[Any]) -> None:
    """Takes the backend out of the list and ends it.

    Gloo cannot be interrupted: its destructor waits until the last operation has run into its timeout. NCCL's abort
    may block for as long as its proxy thread does. Neither may hold up the caller.
    """

    def dispose() -> None:
        backend = backends.pop()
        if backend is None:
            # Closed from two threads at once.
            return
        try:
            backend.abort()
        except RuntimeError as error:
            log.info("aborting a weight group: %s", _first_line(error))
        # The last to let go of it runs the destructor, and waits.
        while sys.getrefcount(backend) > 2:
            time.sleep(_WATCH_S)

    _in_background(dispose)


def _in_background(work: Callable[..., None], *values: object) -> None:
    """Runs what may hang with a peer's host or in a library."""
    threading.Thread(target=work, args=values, name="weights-background", daemon=True).start()


@contextmanager
def _store_errors() -> Iterator[None]:
    from torch.distributed import DistError

    try:
        yield
    except (DistError, RuntimeError) as error:
        raise Unavailable(
            f"the weight store is gone: {_first_line(error)}", reason="WEIGHT_STORE_UNREACHABLE"
        ) from error


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


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n", 1)[0]
