"""The canary: a prompt whose log-probabilities show whether an engine has the learner's weights.

The hashes of a publish prove what arrived, and the canary proves that the engine computes with it. Even with correct
weights, engine and learner differ, depending on their number types and, for types of low precision, on the model. So a
reading has to pass three checks: the difference is small; the first load does not increase it much, since its weights
are close to those of the engine's files; and the engine's log-probabilities change when the learner's change.
"""

from dataclasses import dataclass

import numpy as np

from shoal.arrays import Float32Array
from shoal.error_reasons import ErrorReason
from shoal.errors import DataLoss
from shoal.rollout import WeightVersion
from shoal.v1 import weights_pb2
from shoal.wire import float32_from_wire

_GROWTH = 2.0
_GROWTH_SHARE = 0.125
"""After the first load, the difference may be `_GROWTH` times the earlier difference plus this share of the tolerance.
"""


@dataclass(frozen=True)
class Precision:
    """The effect of the number types of engine and learner on log-probabilities, in nats."""

    tolerance: float
    """Largest mean difference that correct weights cause, with a margin."""
    motion: float
    """A change of the learner's log-probability of a token that also shows in an engine with the same weights."""


FLOAT32 = Precision(tolerance=1e-3, motion=1e-4)
"""Correct weights differ by 1e-6 to 1e-5 on average."""
LOWER = Precision(tolerance=0.4, motion=0.01)
"""bfloat16 and float16. Correct weights differ by 0.005 to 0.14 on average in bfloat16, most in small models."""


@dataclass(frozen=True)
class Reading:
    """The log-probabilities [P - 1] of the canary's tokens but the first, under one version of the weights."""

    version: WeightVersion
    learner: Float32Array
    engine: Float32Array
    precision: Precision

    @property
    def gap(self) -> float:
        """Mean absolute difference between engine and learner."""
        return self.gap_of(self.engine)

    def gap_of(self, logprobs: Float32Array) -> float:
        """Mean absolute difference between `logprobs` and the learner's; infinite if their lengths differ."""
        if self.learner.shape != logprobs.shape or not len(logprobs):
            return float("inf")
        return float(np.abs(self.learner - logprobs).mean())


def reading_of(version: WeightVersion, sent: weights_pb2.Canary, received: weights_pb2.Canary) -> Reading:
    """Makes a reading of two reports, the learner's and the generator's. Earlier versions do not report their type."""
    is_float32 = sent.dtype == received.dtype == "float32"
    return Reading(
        version,
        float32_from_wire(sent.logprobs, "canary.logprobs"),
        float32_from_wire(received.logprobs, "canary.logprobs"),
        FLOAT32 if is_float32 else LOWER,
    )


def load_error(reading: Reading, before: Reading | Float32Array | None, tolerance: float | None) -> DataLoss | None:
    """Returns an error if the canary shows that an engine does not have the learner's weights; else None.

    `before` is the last reading of the same generator, or the log-probabilities under the weights that its engine
    started with; `tolerance` is `weights.canary_tolerance`.
    """
    limit = reading.precision.tolerance if tolerance is None else tolerance
    if not reading.gap <= limit:  # Also true of NaN.
        return DataLoss(
            f"generator and learner differ by {reading.gap:.3g} on average in the log-probabilities of the canary, "
            f"more than weights.canary_tolerance ({limit:g}{', the default' if tolerance is None else ''}): the "
            "engine may not compute with the weights that it received",
            reason=ErrorReason.CANARY_DIFFERS,
        )
    if isinstance(before, Reading):
        return _motion_error(reading, before)
    return None if before is None else _growth_error(reading, reading.gap_of(before), limit)


def _growth_error(reading: Reading, gap_before: float, limit: float) -> DataLoss | None:
    if reading.gap <= _GROWTH * gap_before + _GROWTH_SHARE * limit:
        return None
    return DataLoss(
        f"generator and learner differ by {reading.gap:.3g} on average in the log-probabilities of the canary prompt, "
        f"but before the first load only by {gap_before:.3g}: the engine does not compute with the weights that it got",
        reason=ErrorReason.CANARY_DIFFERS,
    )


def _motion_error(reading: Reading, before: Reading) -> DataLoss | None:
    if before.version == reading.version or before.learner.shape != reading.learner.shape:
        return None
    motion = float(np.abs(reading.learner - before.learner).max())
    if motion <= reading.precision.motion or not np.array_equal(reading.engine, before.engine):
        return None
    return DataLoss(
        f"the generator's log-probabilities of the canary prompt are the same as with weights {before.version}, but "
        f"the learner's changed by up to {motion:.3g}: the engine does not compute with the weights that it received",
        reason=ErrorReason.CANARY_UNMOVED,
    )
