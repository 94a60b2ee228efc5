"""Limits of a server: the resources that callers may use at the same time, and for how long."""

import resource
from collections.abc import Mapping
from dataclasses import dataclass, field

CALLS: Mapping[str, int] = {
    # These only bound memory: the queue of each service has a lower limit.
    "/shoal.v1.GeneratorService/GenerateGroup": 4096,
    "/shoal.v1.GeneratorService/ScoreTokens": 4096,
    "/shoal.v1.RewardService/ScoreGroup": 4096,
    "/shoal.v1.EnvironmentService/RunEpisode": 8192,
    # A request or a response may have the size of the largest message.
    "/shoal.v1.LearnerService/ComputeLogprobs": 64,
    # The coordinator repeats a step up to four times if its connection is lost. The learner may still hold each of
    # these calls, until keepalive ends them. One more call may be left from an earlier coordinator.
    "/shoal.v1.LearnerService/TrainStep": 6,
    # The coordinator hands over four groups at once, and the learner bounds their bytes.
    "/shoal.v1.LearnerService/HandOverGroup": 32,
    "/shoal.v1.CoordinatorService/ListRollouts": 64,
    "/shoal.v1.CoordinatorService/WatchRun": 2048,
    # Open to callers without credentials.
    "/grpc.health.v1.Health/Watch": 256,
}
"""The most concurrent calls of each method that takes much memory, or that is called more often under more load.

Other methods control or describe the service, and must reach a busy service: heartbeats, status, pause, new weights.
"""

_MAX_CONNECTIONS = 4096


def _default_connections() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MAX_CONNECTIONS if soft == resource.RLIM_INFINITY else min(_MAX_CONNECTIONS, soft // 2)


@dataclass(frozen=True)
class ServerLimits:
    """The limits of one server."""

    calls: Mapping[str, int] = field(default_factory=lambda: CALLS)
    """The most concurrent calls by method. Further calls are refused with RESOURCE_EXHAUSTED (TOO_MANY_CALLS)."""
    request_timeout_s: float = 60.0
    """The time within which the request of a call, or the first request of a stream, must arrive. The later requests of
    a stream have only the deadline of the call."""
    handshake_timeout_s: int = 20
    """The time within which a new connection must finish the handshakes of TLS and HTTP/2."""
    streams: int = 8192
    """The most concurrent calls of one connection. Further calls wait at the client."""
    connections: int = field(default_factory=_default_connections)
    """The most concurrent connections. Further connections are closed."""

    def options(self) -> list[tuple[str, str | int]]:
        """Returns the limits that gRPC enforces, as options of its server."""
        return [
            ("grpc.server_handshake_timeout_ms", self.handshake_timeout_s * 1000),
            ("grpc.max_concurrent_streams", self.streams),
            # gRPC cancels calls at random when 1000 are pending, for example when many episodes begin at once.
            ("grpc.server.max_pending_requests", self.streams),
            ("grpc.server.max_pending_requests_hard_limit", self.streams),
            ("grpc.max_allowed_incoming_connections", self.connections),
        ]
