"""What outlives the processes of workers: weight groups, the learner's disk, its history, the faults that are on."""

from dataclasses import dataclass, field

from shoal.rollout import WeightVersion
from tests.simulation.workers.weight_group import WeightGroup


@dataclass(frozen=True)
class TrainedGroup:
    group_id: str
    oldest: WeightVersion
    """The oldest weights that sampled a token of it."""


@dataclass(frozen=True)
class TrainedStep:
    before: WeightVersion
    """The weights that it changed."""
    groups: tuple[TrainedGroup, ...]


History = tuple[TrainedStep, ...]
"""The steps that made some weights: their lineage."""


@dataclass(frozen=True)
class Saved:
    history: History
    sha256: str


@dataclass
class Faults:
    """Chances of what goes wrong in workers now."""

    endless_share: float = 0.0
    """Of completions that never end."""
    stalled_join_share: float = 0.0
    slow_ready_share: float = 0.0
    flipped_share: float = 0.0
    """Of loads in which a bit flips."""
    internal_share: float = 0.0
    """Of groups that the reward service fails to score with an error of its own."""
    verifier_fails: bool = False
    num_refusals: int = 0
    """Steps that the learner is about to refuse as not finite."""
    step_s: float = 1.0
    """Longest train step."""
    finish_s: float = 3.0
    """Longest time in which a checkpoint is brought to disk."""
    num_full: int = 0
    """Checkpoints for which the learner's disk is about to be full when they are brought there."""


@dataclass
class Plane:
    """Shared by all worker processes of a schedule."""

    faults: Faults = field(default_factory=Faults)
    groups: dict[int, WeightGroup] = field(default_factory=dict)
    """By epoch."""
    disk: dict[str, Saved] = field(default_factory=dict)
    """By checkpoint."""
    exported: History | None = None
    """The lineage of the model that was exported last."""
    num_trained: int = 0
    """Steps that were applied, in every lineage."""
    reports: list[str] = field(default_factory=list)
    """What must not happen, and did."""

    def report(self, fault: str) -> None:
        self.reports.append(fault)
