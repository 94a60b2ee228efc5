"""Where the members of a broadcast group meet."""

import socket
from dataclasses import dataclass

from shoal.v1 import weights_pb2
from shoal.wire import invalid

BACKENDS = ("gloo", "nccl")


@dataclass(frozen=True)
class Rendezvous:
    """What every member of one epoch's broadcast group has to know."""

    run_id: str
    epoch: int
    """Rises by one whenever the membership changes."""
    store_host: str
    """Host of the TCPStore, reachable from every member."""
    store_port: int
    world_size: int
    """The learner's rank 0, plus each rank of each generator."""
    backend: str
    """"gloo" or "nccl"."""
    timeout_s: float
    """How long meeting, and one pass of broadcasts, may take before the group is given up."""

    def to_wire(self) -> weights_pb2.WeightRendezvous:
        return weights_pb2.WeightRendezvous(
            run_id=self.run_id,
            epoch=self.epoch,
            store_host=self.store_host,
            store_port=self.store_port,
            world_size=self.world_size,
            backend=self.backend,
            timeout_s=self.timeout_s,
        )

    @classmethod
    def from_wire(cls, message: weights_pb2.WeightRendezvous) -> "Rendezvous":
        """Reads and checks a rendezvous. Raises `InvalidArgument` that names the field at fault."""
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
        return cls(
            run_id=message.run_id,
            epoch=message.epoch,
            store_host=message.store_host,
            store_port=message.store_port,
            world_size=message.world_size,
            backend=message.backend,
            timeout_s=message.timeout_s,
        )


def address_toward(host: str, port: int) -> str:
    """The address of this machine from which packets to `host` leave: what its peers there can reach.

    Sends nothing. Raises OSError when there is no route or the name does not resolve.
    """
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(address)
        own = probe.getsockname()[0]
    assert isinstance(own, str)
    return own
