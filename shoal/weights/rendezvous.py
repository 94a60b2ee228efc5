"""The rendezvous of a broadcast group: its store, its members, its deadlines."""

from dataclasses import asdict, dataclass, fields

from shoal.v1 import weights_pb2
from shoal.wire import invalid

BACKENDS = ("gloo", "nccl")


@dataclass(frozen=True)
class Rendezvous:
    """The facts that every member of one epoch's broadcast group needs in order to join it."""

    run_id: str
    epoch: int
    """The number of the epoch. Rises by one with every change of the membership."""
    store_host: str
    """Host of the TCPStore, reachable from every member."""
    store_port: int
    world_size: int
    """Number of members: rank 0 of the learner, and every rank of every generator."""
    backend: str
    """"gloo" or "nccl"."""
    timeout_s: float
    """Seconds for the rendezvous before the group is aborted, and for one pass of broadcasts."""

    def to_wire(self) -> weights_pb2.WeightRendezvous:
        return weights_pb2.WeightRendezvous(**asdict(self))

    @classmethod
    def from_wire(cls, message: weights_pb2.WeightRendezvous) -> "Rendezvous":
        """Reads and checks a rendezvous. Raises `InvalidArgument` with the name of the wrong field."""
        if not message.run_id:
            raise invalid("rendezvous.run_id", "is required")
        if not message.store_host:
            raise invalid("rendezvous.store_host", "is required")
        if not 1 <= message.store_port <= 65535:
            raise invalid("rendezvous.store_port", f"must be from 1 to 65535 (given: {message.store_port})")
        if message.world_size < 2:
            raise invalid("rendezvous.world_size", f"must be at least 2 (given: {message.world_size})")
        if message.backend not in BACKENDS:
            raise invalid("rendezvous.backend", f"must be one of {', '.join(BACKENDS)} (given: {message.backend!r})")
        if message.timeout_s <= 0:
            raise invalid("rendezvous.timeout_s", f"must be above 0 (given: {message.timeout_s})")
        return cls(**{field.name: getattr(message, field.name) for field in fields(cls)})
