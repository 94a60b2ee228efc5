"""The table of the roles that may call each rpc. Change permissions only here."""

import re
from dataclasses import dataclass
from enum import StrEnum

OPEN_SERVICE = "/grpc.health.v1.Health/"
"""The service that needs no role, for probes."""


class Role(StrEnum):
    """The role of a caller. It is in the URI of a certificate, or in a tokens file beside the digest of a token."""

    COORDINATOR = "coordinator"
    """A coordinator: commands its workers."""
    WORKER = "worker"
    """A generator, a learner, or a reward service: registers with its coordinator."""
    OPERATOR = "operator"
    """A person or program that starts and steers runs."""
    VIEWER = "viewer"
    """A person or program that only reads."""


_SPIFFE = re.compile(r"spiffe://shoal/([a-z]+)/([^/\s]+)")


@dataclass(frozen=True)
class Caller:
    """Who calls: a role, and a name for logs and leases."""

    role: Role
    name: str

    def __str__(self) -> str:
        return f"{self.role}/{self.name}"


def caller_of_uri(uri: str) -> Caller | None:
    """Reads `spiffe://shoal/<role>/<name>`. Returns None for any other URI, and for an unknown role."""
    match = _SPIFFE.fullmatch(uri)
    return Caller(Role(match[1]), match[2]) if match and match[1] in set(Role) else None


_PEOPLE = frozenset({Role.VIEWER, Role.OPERATOR})
_READERS = _PEOPLE | {Role.COORDINATOR}
_OPERATOR = frozenset({Role.OPERATOR})
_WORKER = frozenset({Role.WORKER})
_COORDINATOR = frozenset({Role.COORDINATOR})
# A reward service asks reward servers (`reward.servers`), which are reward services themselves, and forwards episodes.
_SCORERS = frozenset({Role.COORDINATOR, Role.WORKER})

SERVICES: dict[str, dict[str, frozenset[Role]]] = {
    "shoal.v1.CoordinatorService": {
        "StartRun": _OPERATOR,
        "GetRun": _PEOPLE,
        "ListRuns": _PEOPLE,
        "WatchRun": _PEOPLE,
        "PauseRun": _OPERATOR,
        "ResumeRun": _OPERATOR,
        "StopRun": _OPERATOR,
        "SaveCheckpoint": _OPERATOR,
        "Evaluate": _OPERATOR,
        "ProfileRun": _OPERATOR,
        "UpdateRunConfig": _OPERATOR,
        "RegisterWorker": _WORKER,
        "Heartbeat": _WORKER,
        "ListWorkers": _PEOPLE,
        "ListRollouts": _PEOPLE,
    },
    "shoal.v1.GeneratorService": {
        "Configure": _COORDINATOR,
        "GenerateGroup": _COORDINATOR,
        "JoinWeightGroup": _COORDINATOR,
        "LoadWeights": _COORDINATOR,
        "LeaveWeightGroup": _COORDINATOR,
        "PauseGeneration": _COORDINATOR,
        "ResumeGeneration": _COORDINATOR,
        "Sleep": _COORDINATOR,
        "Wake": _COORDINATOR,
        "ScoreTokens": _COORDINATOR,
        "GetStatus": _READERS,
    },
    "shoal.v1.RewardService": {
        "Configure": _COORDINATOR,
        "ScoreGroup": _SCORERS,
        "CheckLabels": _SCORERS,
        "ReloadVerifiers": _COORDINATOR,
        "ListVerifiers": _PEOPLE | _SCORERS,
        "GetStatus": _READERS,
    },
    "shoal.v1.EnvironmentService": {
        "ListEnvironments": _PEOPLE | _SCORERS,
        "RunEpisode": _OPERATOR | _SCORERS,
    },
    "shoal.v1.LearnerService": {
        "Configure": _COORDINATOR,
        "HandOverGroup": _COORDINATOR,
        "TrainStep": _COORDINATOR,
        "ComputeLogprobs": _COORDINATOR,
        "SetHyperparameters": _COORDINATOR,
        "CreateWeightGroup": _COORDINATOR,
        "PublishWeights": _COORDINATOR,
        "SaveCheckpoint": _COORDINATOR,
        "LoadCheckpoint": _COORDINATOR,
        "ExportModel": _COORDINATOR,
        "Profile": _COORDINATOR,
        "GetStatus": _READERS,
    },
    # Services that describe a server. Health is open to everyone who can connect.
    "grpc.reflection.v1alpha.ServerReflection": {"ServerReflectionInfo": _PEOPLE},
    "grpc.channelz.v1.Channelz": {
        "GetTopChannels": _PEOPLE,
        "GetServers": _PEOPLE,
        "GetServer": _PEOPLE,
        "GetServerSockets": _PEOPLE,
        "GetChannel": _PEOPLE,
        "GetSubchannel": _PEOPLE,
        "GetSocket": _PEOPLE,
    },
}
"""All rpcs of all services, and the roles that may call each rpc."""

ALLOWED: dict[str, frozenset[Role]] = {
    f"/{service}/{method}": roles for service, methods in SERVICES.items() for method, roles in methods.items()
}
"""The roles that may call each method ("/package.Service/Method"). Nobody may call a method that is not listed."""
