"""The policy version that a run has reached."""

from dataclasses import dataclass

from shoal.rollout import WeightVersion


@dataclass
class CurrentVersion:
    """Holds the version of the learner's weights for all parts of a run; training and recovery set it."""

    weights: WeightVersion

    @property
    def policy_version(self) -> int:
        """The number of train steps in the learner's weights."""
        return self.weights.policy_version
