"""The `[coordinator]` table: its deadlines, and how often work is tried again."""

from typing import Annotated

from pydantic import Field

from shoal.config.tables.section import AT_ONCE, Section


class CoordinatorConfig(Section):
    worker_timeout_s: float = Field(default=300.0, gt=0)
    """Maximum wait for a worker of each kind to register and load, at the start and whenever none is left."""
    sampling_timeout_s: Annotated[float | None, AT_ONCE] = Field(default=None, gt=0)
    """Maximum time to sample and score one group, from its first token on: time in a queue does not count. Unset is 600
    s, or 0.1 s for each token of the longest completion, or five times what the slowest one of late would have taken
    for so many tokens, whichever is most. After it the group is issued once more, then dropped. A generator that
    does not begin a group for as long gets weights again before it serves, and the group another generator."""
    max_group_losses: int = Field(default=3, ge=1)
    """Times that sampling or scoring one group may fail, because its generator died or a service failed on it, before
    it is dropped. It is tried again after pauses of 0.5 s, 1 s, 2 s, and so on. The count begins anew when every
    completion that is not finished has come further, as `generator.report_every_tokens` tells: so kills at random do
    not add up, and a prompt that kills engines is dropped. In an episode it counts for each turn."""
    train_step_timeout_s: Annotated[float | None, AT_ONCE] = Field(default=None, gt=0)
    """Maximum time of one train step. Unset is an hour, or 1 ms for each token of the step, or five times what the
    slowest step of late would have taken for so many tokens, whichever is most. A learner that takes longer hangs:
    it ends itself, and the run goes on from its last checkpoint once it is back."""
    max_restarts: int = Field(default=10, ge=0)
    """Times that a run goes on by itself from its last checkpoint, after its learner or its coordinator was lost,
    without a step in between that is new. Then it fails, with the reasons. The pauses before such restarts grow."""
