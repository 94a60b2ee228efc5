"""What is asked for one episode, in training or in an evaluation."""

from dataclasses import dataclass

from services.coordinator.workers.turn_batches import EpisodeTurns
from shoal.rollout import Prompt, SamplingParams, WeightVersion


@dataclass(frozen=True)
class EpisodeRequest:
    """One episode to be played."""

    name: str
    """Distinguishes it from all other episodes of the run, also from those that are issued again."""
    prompt: Prompt
    """Names an environment."""
    index: int
    """The sample's in its group."""
    seed: int
    """Of the policy; each turn has a seed that is derived from it."""
    environment_seed: int
    """Of what the environment draws; the same for all samples of a group."""
    sampling: SamplingParams
    priority: int
    """That of `GeneratorPool.room`."""
    version: WeightVersion | None = None
    """In an evaluation: the weights that sample every turn. Training takes those that a generator has."""
    turns: EpisodeTurns | None = None
    """In a deterministic run: its part in the rounds of turns."""
