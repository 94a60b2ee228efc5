"""The process group of the learner's ranks, and the commands that rank 0 broadcasts over it.

One group carries gradients. A second group, always gloo, carries control: through it rank 0 sends commands as the bytes
of the public protobuf messages. Nothing is pickled.
"""

import json
import logging
import os
import struct
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from enum import IntEnum
from typing import TypeVar

import numpy as np
import torch
import torch.distributed as dist
from google.protobuf.message import Message
from torch import Tensor

import shoal.errors
from services.learner.model.sequence_parallel import SequenceGroup
from shoal.errors import FailedPrecondition, ShoalError

_log = logging.getLogger(__name__)

_POLL_S = 0.05

IDLE_S = 10.0
"""Rank 0 sends a command at least at this interval, so that a follower notices when rank 0 is gone."""
_JOIN_TIMEOUT = timedelta(minutes=30)
"""The longest wait for all ranks to join."""
_TIMEOUT = timedelta(days=1)
"""The longest wait of a rank for another rank. A call that hangs ends earlier, at its caller's deadline."""
_LENGTH = struct.Struct("<q")
_LEAVING = "leaving"
"""The store's key for the rank that was told to end."""
_BEAT = "beat"
"""The beginning of the store's key for a rank's last beat."""
_M = TypeVar("_M", bound=Message)


class Command(IntEnum):
    """A command that rank 0 sends to the other ranks. Each docstring names the message that goes with it."""

    IDLE = 0
    """Do nothing; no message."""
    CONFIGURE = 1
    """LearnerServiceConfigureRequest."""
    TRAIN_STEP = 2
    """No message; each rank then gets its share of the step (see `shares.py`)."""
    COMPUTE_LOGPROBS = 3
    """ComputeLogprobsRequest."""
    PUBLISH_WEIGHTS = 4
    """PublishWeightsRequest."""
    SAVE_CHECKPOINT = 5
    """LearnerServiceSaveCheckpointRequest."""
    LOAD_CHECKPOINT = 6
    """LoadCheckpointRequest."""
    EXPORT_MODEL = 7
    """ExportModelRequest."""
    STOP = 8
    """Leave; no message."""
    SET_HYPERPARAMETERS = 9
    """SetHyperparametersRequest."""
    RESTART = 10
    """Leave, so that torchrun starts the rank again; no message."""
    PROFILE = 11
    """ProfileRequest."""
    DROP_PROFILE = 12
    """Drop the recording of train steps; no message."""


class ProcessGroup:
    """All ranks of the learner, from the view of one rank. Call every method on all ranks, in the same order."""

    def __init__(self, *, rank: int, size: int, device: torch.device, store: dist.Store | None = None) -> None:
        """`store` is the store of the rendezvous. `store` may be None only if no rank leaves before rank 0."""
        self.rank = rank
        self.size = size
        self.device = device
        self.sequence_group: SequenceGroup | None = None
        # Use a second connection: a connection serves one call at a time, and torch waits in the first for late ranks.
        self._store = None if store is None else store.clone()
        # A separate group, so that a stuck collective of the model does not block commands.
        self._control = dist.new_group(backend="gloo", timeout=_TIMEOUT)

    @classmethod
    def connect(cls, store: dist.Store | None = None) -> "ProcessGroup":
        """Joins the process group that the environment names; returns when all ranks have joined.

        torchrun or Shoal's own launcher sets RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT; without them
        there is one rank. Only rank 0 under Shoal's launcher passes a `store`, the launcher's store.
        Raises `FailedPrecondition` on a machine that has fewer GPUs than ranks.
        """
        rank, size = int(os.environ.setdefault("RANK", "0")), int(os.environ.setdefault("WORLD_SIZE", "1"))
        local_rank = int(os.environ.setdefault("LOCAL_RANK", str(rank)))
        if torch.cuda.is_available():
            if local_rank >= torch.cuda.device_count():
                raise FailedPrecondition(
                    f"rank {rank} needs a GPU of its own, but the learner sees {torch.cuda.device_count()} GPUs on "
                    "this machine: start at most one rank per GPU, or set CUDA_VISIBLE_DEVICES (an empty value trains "
                    "on the CPU)"
                )
            device = torch.device("cuda", local_rank)
            torch.cuda.set_device(device)
        else:
            device = torch.device("cpu")
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        if size == 1:
            # Gloo listens even for a group of one rank, by default on the address of the machine's name.
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
            store = dist.HashStore()
            dist.init_process_group(backend, store=store, rank=0, world_size=1)
        else:
            if "TORCHELASTIC_RUN_ID" in os.environ:
                _check_store_of_torchrun()
                torchrun_store, _, _ = next(dist.rendezvous("env://", timeout=_JOIN_TIMEOUT))
                store = fresh_store(torchrun_store, rank=rank, size=size, timeout=_JOIN_TIMEOUT)
            elif store is None:
                store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
            dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=_TIMEOUT)
        return cls(rank=rank, size=size, device=device, store=store)

    def form_sequence_groups(self, size: int) -> None:
        """Forms groups of `size` consecutive ranks that work on the same packed rows (sequence parallelism).

        `size` must divide the number of ranks.
        """
        if size == (1 if self.sequence_group is None else self.sequence_group.size):
            return
        self.sequence_group = None
        for start in range(0, self.size if size > 1 else 0, size):
            # Every rank has to take part in the creation of every group.
            group = dist.new_group(list(range(start, start + size)), timeout=_TIMEOUT)
            if start <= self.rank < start + size:
                self.sequence_group = SequenceGroup(group, index=self.rank - start, size=size)

    @property
    def data_rank(self) -> int:
        """The index of the part of the data that this rank computes. Ranks that share rows have the same index."""
        return self.data_rank_of(self.rank)

    def data_rank_of(self, rank: int) -> int:
        """Returns the index of the part of the data that a rank computes."""
        return rank // (1 if self.sequence_group is None else self.sequence_group.size)

    @property
    def data_size(self) -> int:
        """The number of parts of the data."""
        return self.size // (1 if self.sequence_group is None else self.sequence_group.size)

    def send_command(self, command: Command, body: bytes = b"") -> None:
        """Broadcasts a command to all followers. Rank 0 only. Raises RuntimeError when a rank is gone."""
        if self.size > 1:
            dist.broadcast(torch.tensor([command, len(body)]), 0, group=self._control)
            if body:
                dist.broadcast(_to_tensor(body), 0, group=self._control)

    def receive_command(self) -> tuple[Command, bytes]:
        """Waits for the next command. Followers only. Raises RuntimeError when rank 0 is gone."""
        header = torch.empty(2, dtype=torch.int64)
        dist.broadcast(header, 0, group=self._control)
        command, length = header.tolist()
        body = torch.empty(length, dtype=torch.uint8)
        if length:
            dist.broadcast(body, 0, group=self._control)
        return Command(command), body.numpy().tobytes()

    def send_bytes(self, body: bytearray, rank: int) -> None:
        """Sends bytes to one follower, which calls `receive_bytes`. Rank 0 only."""
        dist.send(torch.tensor([len(body)]), rank, group=self._control)
        dist.send(torch.frombuffer(body, dtype=torch.uint8), rank, group=self._control)

    def receive_bytes(self) -> memoryview:
        """Receives bytes of rank 0. Followers only."""
        length = torch.empty(1, dtype=torch.int64)
        dist.recv(length, 0, group=self._control)
        body = torch.empty(int(length), dtype=torch.uint8)
        dist.recv(body, 0, group=self._control)
        return memoryview(body.numpy())

    def all_gather(self, body: bytes) -> list[bytes]:
        """Returns the bytes of all ranks, by rank, on every rank."""
        if self.size == 1:
            return [body]
        lengths = [torch.empty(1, dtype=torch.int64) for _ in range(self.size)]
        dist.all_gather(lengths, torch.tensor([len(body)]), group=self._control)
        longest = max(1, *(int(length) for length in lengths))
        bodies = [torch.empty(longest, dtype=torch.uint8) for _ in range(self.size)]
        dist.all_gather(bodies, _to_tensor(body.ljust(longest, b"\0")), group=self._control)
        return [padded.numpy().tobytes()[: int(length)] for padded, length in zip(bodies, lengths, strict=True)]

    def all_reduce(self, values: Tensor, *, maximum: bool = False) -> Tensor:
        """Returns the elementwise sum, or maximum, over all parts of the data, as float64 on the CPU.

        Ranks that share rows have the same values, so only the first of these ranks counts in a sum.
        """
        reduced = values.detach().to("cpu", torch.float64, copy=True)
        if self.sequence_group is not None and self.sequence_group.index and not maximum:
            reduced.zero_()
        if self.size > 1:
            dist.all_reduce(reduced, dist.ReduceOp.MAX if maximum else dist.ReduceOp.SUM, group=self._control)
        return reduced

    def raise_on_all(self, error: ShoalError | None) -> None:
        """Raises, on every rank, the error of the first rank that has an error."""
        serialized = b"" if error is None else _serialize_error(error)
        for rank, other in enumerate(self.all_gather(serialized)):
            if other:
                raise _parse_error(other, rank, self.size)

    @contextmanager
    def raising_on_all(self) -> Iterator[None]:
        """Returns a context that succeeds on all ranks, or raises a `ShoalError` of one rank on all ranks.

        The body of the context must not contain collectives.
        """
        error: ShoalError | None = None
        try:
            yield
        except ShoalError as raised:
            error = raised
        self.raise_on_all(error)

    def ask_to_leave(self) -> None:
        """Tells rank 0 that this rank was told to end. Any thread may call it, even during a collective."""
        if self._store is not None:
            self._store.set(_LEAVING, str(self.rank))

    def leaving_rank(self) -> str | None:
        """Returns a rank that was told to end, or None. Any thread may call it."""
        if self._store is None or not self._store.check([_LEAVING]):
            return None
        rank: bytes = self._store.get(_LEAVING)
        return rank.decode()

    def beat(self) -> None:
        """Shows rank 0 that the process of this rank runs. Any thread may call it, even during a collective."""
        assert self._store is not None
        self._store.set(f"{_BEAT}/{self.rank}", str(time.monotonic()))

    def last_beats(self) -> dict[int, bytes]:
        """Returns the last beat of each other rank, empty before its first beat. Any thread of rank 0 may call it."""
        assert self._store is not None
        keys = {rank: f"{_BEAT}/{rank}" for rank in range(1, self.size)}
        return {rank: self._store.get(key) if self._store.check([key]) else b"" for rank, key in keys.items()}

    def report(self, subject: str, result: str, error: ShoalError | None = None) -> None:
        """Reports the result of background work to rank 0. Any thread may call it, even during a collective."""
        assert self._store is not None
        serialized = None if error is None else _serialize_error(error).decode()
        self._store.set(f"{subject}/{self.rank}", json.dumps([result, serialized]))

    def take_reports(self, subject: str) -> list[str] | None:
        """Takes the results of all ranks, by rank; returns None while a result is missing.

        Raises the error of the first rank that has an error. Any thread of rank 0 may call it.
        """
        assert self._store is not None
        keys = [f"{subject}/{rank}" for rank in range(self.size)]
        if not self._store.check(keys):
            return None
        reports = [json.loads(self._store.get(key)) for key in keys]
        for key in keys:
            self._store.delete_key(key)
        for rank, (_, error) in enumerate(reports):
            if error is not None:
                raise _parse_error(error, rank, self.size)
        return [result for result, _ in reports]

    def leave(self) -> None:
        """Destroys the process groups. Call no method after this one."""
        dist.destroy_process_group()


def _check_store_of_torchrun() -> None:
    """Warns if a machine could not leave and return, because torchrun does not share its store with later machines."""
    is_shared = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    if is_shared and os.environ.get("GROUP_WORLD_SIZE", "1") != "1" and os.environ["RANK"] == "0":
        _log.warning("a machine that leaves cannot return: set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 for torchrun")


def join_messages(messages: Iterable[Message]) -> bytes:
    """Joins messages into one string of bytes, each message after its length."""
    bodies = [message.SerializeToString() for message in messages]
    return b"".join(part for body in bodies for part in (_LENGTH.pack(len(body)), body))


def split_messages(joined: bytes | memoryview, kind: type[_M]) -> Iterator[_M]:
    """Yields the messages that `join_messages` joined."""
    start = 0
    while start < len(joined):
        (length,) = _LENGTH.unpack_from(joined, start)
        start += _LENGTH.size
        yield kind.FromString(bytes(joined[start : start + length]))
        start += length


def _to_tensor(body: bytes) -> Tensor:
    return torch.from_numpy(np.frombuffer(body, dtype=np.uint8).copy())


def _serialize_error(error: ShoalError) -> bytes:
    fields = {"type": type(error).__name__, "message": error.message, "reason": error.reason}
    return json.dumps(fields | {"metadata": error.metadata}).encode()


def _parse_error(serialized: bytes | str, rank: int, size: int) -> ShoalError:
    fields = json.loads(serialized)
    kind: type[ShoalError] = getattr(shoal.errors, fields["type"])
    where = f"rank {rank}: " if size > 1 else ""
    return kind(where + fields["message"], reason=fields["reason"], metadata=fields["metadata"])


def fresh_store(store: dist.Store, *, rank: int, size: int, timeout: timedelta) -> dist.Store:
    """Returns the same empty part of a store on all ranks, without keys of ranks that have ended.

    When torchrun starts all ranks again, it keeps its store. Gloo and NCCL would mistake the earlier ranks' addresses
    in this store for current addresses. The restart count does not help, since each machine counts its own restarts. So
    each rank sets a nonce. Rank 0 answers each nonce with its own nonce, the prefix of the new part, until all ranks
    have acknowledged the prefix. Call this function on all ranks. Raises TimeoutError on rank 0 when ranks are missing
    after the timeout, and the store's own error on the other ranks.
    """
    nonce = uuid.uuid4().hex
    if rank > 0:
        store.set(f"nonce/{rank}", nonce)
        prefix = store.get(f"answer/{nonce}").decode()
        store.set(f"acknowledgment/{prefix}/{rank}", "")
        return dist.PrefixStore(prefix, store)
    deadline = time.monotonic() + timeout.total_seconds()
    while missing := [other for other in range(1, size) if not store.check([f"acknowledgment/{nonce}/{other}"])]:
        if time.monotonic() > deadline:
            raise TimeoutError(f"learner ranks {missing} did not join within {timeout.total_seconds():.0f} s")
        for other in missing:
            if store.check([f"nonce/{other}"]):
                store.set(f"answer/{store.get(f'nonce/{other}').decode()}", nonce)
        time.sleep(_POLL_S)
    return dist.PrefixStore(nonce, store)
