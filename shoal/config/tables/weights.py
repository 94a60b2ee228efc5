"""The `[weights]` table: how weights are published to generators."""

from typing import Literal

from pydantic import Field

from shoal.config.tables.section import Section

_PUBLISH_S, _PUBLISHED_BYTES_PER_S = 60.0, 1e8
"""gloo from a GPU to another process sends 4e8 bytes a second, and more receivers share the rate."""


class WeightsConfig(Section):
    backend: Literal["auto", "gloo", "nccl"] = "auto"
    """Transport of the broadcast group. `auto` is nccl if the learner has its own GPU, else gloo."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Type of the tensors on the wire. `auto` is the generators' type, or `learner.compute_dtype` if the generators
    sample in float32: a learner that computes in bfloat16 rounds its weights as well. If `generator.dtype` is "auto"
    too, the generators' type is the model's own, or float32 if the learner's CPU has no instructions for it. Decays and
    norms of recurrent layers are always float32."""
    store_port: int = Field(default=0, ge=0, le=65535)
    """Port of the group's TCPStore on the learner. With 0 the learner takes a free port. Set the port if there is a
    firewall between learner and generators."""
    inflight_updates: bool = True
    """Update weights under running completions, which pause and continue with the new weights. With `false` each
    publish waits until no completion is being sampled, so that every completion is drawn from a single policy. The
    generators then idle until the longest completion has ended."""
    timeout_s: float | None = Field(default=None, gt=0)
    """Deadline of one publish attempt. If unset, the deadline is 60 s plus 10 s for each GB of weights. After the
    deadline the group is aborted, and a new group serves the generators that are not at fault."""
    ready_timeout_s: float = Field(default=5.0, gt=0)
    """Time for generators to pause and be ready to receive. Slower generators are left out. During a longer publish
    each is asked for its status at this interval, and is left out if it does not answer. A generator that answers but
    hangs is left out after ten times as long as the last publish took, and at least 7 s more than this time."""
    max_failed_loads: int = Field(default=5, ge=1)
    """Number of loads in a row that a generator may fail. After the first failure the generator is left out, and is
    tried again alone after pauses of 5 s, 10 s, and so on up to 300 s. After the last failure the generator is
    quarantined, and gets no weights until it registers again."""
    canary_tolerance: float | None = Field(default=None, gt=0)
    """Largest accepted difference between engine and learner on the canary prompt: the mean absolute difference of the
    log-probabilities, in nats. A single token may differ by ten times the tolerance. Above either the load has failed.
    If unset, the tolerance is 0.001 if engine and learner both compute in float32, else 0.4. It is lower if the
    log-probabilities differ little from each other: 0.15 times their standard deviation, but at least 0.05. This needs
    a canary of at least 16 different tokens. Correct weights differ by up to 1e-5 on average in float32 and 0.14 in
    bfloat16, and a single token by up to 8 times the average."""

    def timeout_for(self, num_bytes: int) -> float:
        """Returns the deadline of a publish of that many bytes, in seconds."""
        return _PUBLISH_S + num_bytes / _PUBLISHED_BYTES_PER_S if self.timeout_s is None else self.timeout_s
