"""The `[coordinator]` table: deadlines of the coordinator, and how often the coordinator retries work."""

from typing import Annotated

from pydantic import Field

from shoal.config.tables.section import AT_ONCE, Section


class CoordinatorConfig(Section):
    worker_timeout_s: float = Field(default=300.0, gt=0)
    """Longest wait for a worker of each kind to register and load, at the start and when none of the kind is left."""
    sampling_timeout_s: Annotated[float | None, AT_ONCE] = Field(default=None, gt=0)
    """Longest time to sample and score one group, counted from the group's first token: time in a queue does not count.
    If unset, the time is the largest of 600 s, 0.1 s for each token of the longest completion, and five times what the
    slowest recent group would have taken for as many tokens. After this time the group is issued once more, then
    dropped. If a generator does not begin a group for this time, the group goes to another generator, and the slow
    generator gets weights again before it serves."""
    max_group_losses: int = Field(default=3, ge=1)
    """Number of times that sampling or scoring one group may fail, because a generator died or a service failed on the
    group, before the group is dropped. The group is tried again after pauses of 0.5 s, 1 s, 2 s, and so on. The count
    begins anew when every unfinished completion has more reported tokens (`generator.report_every_tokens`). So random
    losses do not add up, and a prompt that kills engines is dropped. In an episode the count is per turn."""
    train_step_timeout_s: Annotated[float | None, AT_ONCE] = Field(default=None, gt=0)
    """Longest time of one train step. If unset, the time is the largest of an hour, 1 ms for each token of the step,
    and five times what the slowest recent step would have taken for as many tokens. A learner that takes longer is
    taken to hang: the learner ends itself, and the run continues from its last checkpoint once the learner is back."""
    max_restarts: int = Field(default=10, ge=0)
    """Number of times that a run restarts by itself from its last checkpoint, after a loss of its learner or its
    coordinator, without a new step in between. After this number the run fails, with the reasons of the restarts. The
    pauses before such restarts grow."""
