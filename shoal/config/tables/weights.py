"""The `[weights]` table: the publish of weights to generators."""

from typing import Literal

from pydantic import Field

from shoal.config.tables.section import Section

_PUBLISH_S, _PUBLISHED_BYTES_PER_S = 60.0, 1e8
"""gloo from a GPU to another process sends 4e8 bytes a second, and more receivers share the rate."""


class WeightsConfig(Section):
    backend: Literal["auto", "gloo", "nccl"] = "auto"
    """Transport of the broadcast group; `auto` is nccl if the learner has its own GPU, else gloo."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Type of the tensors on the wire. `auto` is `generator.dtype`; where that is "auto" too, it is the model's own, or
    float32 from a learner on a CPU without instructions for that type."""
    store_port: int = Field(default=0, ge=0, le=65535)
    """Port of the group's TCPStore on the learner; 0 takes a free one. Set it if there is a firewall in between."""
    inflight_updates: bool = True
    """Update weights under running completions, which pause and continue with the new weights. `false` lets each
    publish wait until no completion is being sampled, so that every completion is drawn from a single policy; the
    generators then idle until the longest one has ended."""
    timeout_s: float | None = Field(default=None, gt=0)
    """Deadline of one publish attempt. Unset is 60 s and 10 s for each GB of weights. After it the group is aborted,
    and a new one serves the generators that are not at fault."""
    ready_timeout_s: float = Field(default=5.0, gt=0)
    """Time for generators to pause and be ready to receive; slower ones are left out of the epoch. While a publish
    takes longer, generators are asked for their status as often, and left out if they do not answer. One that answers
    and hangs is left out after ten times as long as the last publish took, and 7 s more than this time at least."""
    max_failed_loads: int = Field(default=5, ge=1)
    """Loads in a row that a generator may fail. It is left out of the first and tried again alone after pauses of 5 s,
    10 s, and so on up to 300 s; after the last it is quarantined, and gets no weights until it registers again."""
    canary_tolerance: float | None = Field(default=None, gt=0)
    """Largest accepted difference between engine and learner on the canary prompt: mean absolute difference of the
    log-probabilities, in nats. Above it the load has failed. Unset, it is 0.001 where both compute in float32, else
    0.4: correct weights differ by up to 1e-5 in float32 and 0.14 in bfloat16. After the first load of an engine, twice
    what there was before and an eighth of the tolerance is accepted."""

    def timeout_for(self, num_bytes: int) -> float:
        """Returns the deadline of a publish of that many bytes, in seconds."""
        return _PUBLISH_S + num_bytes / _PUBLISHED_BYTES_PER_S if self.timeout_s is None else self.timeout_s
