"""The canary: a prompt whose log-probabilities show whether an engine has the learner's weights.

The hashes of a publish prove what arrived, and the canary proves that the engine computes with it. Even with correct
weights, engine and learner differ, depending on their number types and, for types of low precision, on the model. So a
reading has to pass two checks: the difference is small, on average and for each token; and the engine's
log-probabilities change when the learner's change. Since an engine starts with weights that are clearly wrong
(`generator.spoil_first_weights`), its first reading also shows any layer that kept its former weights, except experts
to which no token of the canary goes.
"""

from dataclasses import dataclass

import numpy as np

from shoal.arrays import Float32Array
from shoal.error_reasons import ErrorReason
from shoal.errors import DataLoss
from shoal.rollout import WeightVersion
from shoal.v1 import weights_pb2
from shoal.wire import float32_from_wire, int32_from_wire

_SPREAD_SHARE = 0.15
_LEAST_TOLERANCE = 0.05
_VARIED_TOKENS = 16
_PEAK = 10.0
"""The difference of a single token may be this multiple of the tolerance. With correct weights it was up to 8 times the
average difference."""


@dataclass(frozen=True)
class Precision:
    """The effect of the number types of engine and learner on log-probabilities, in nats."""

    tolerance: float
    """Largest mean difference that correct weights cause, with a margin."""
    motion: float
    """A change of the learner's log-probability of a token that also shows in an engine with the same weights."""
    follows_spread: bool
    """Whether the tolerance is lower for a model whose log-probabilities differ little from each other."""


FLOAT32 = Precision(tolerance=1e-3, motion=1e-4, follows_spread=False)
"""Correct weights differ by 1e-6 to 1e-5 on average."""
LOWER = Precision(tolerance=0.4, motion=0.01, follows_spread=True)
"""bfloat16 and float16. In 200 publishes of SmolLM2-135M, whose log-probabilities have a standard deviation of 2.7,
correct weights differed by 0.06 to 0.13 on average. With the first weights in one layer it was 3.6 to 880. In random
models with a deviation of 0.3 to 2.8, correct weights differed by 0.002 to 0.04, and one wrong layer by 0.06 to 60."""


@dataclass(frozen=True)
class Reading:
    """The log-probabilities [P - 1] of the canary's tokens but the first, under one version of the weights."""

    version: WeightVersion
    learner: Float32Array
    engine: Float32Array
    precision: Precision
    is_varied: bool
    """Whether the canary predicts many different tokens, whose log-probabilities show how much the model's differ."""

    @property
    def tolerance(self) -> float:
        """The mean difference that is accepted by default.

        A wrong layer changes log-probabilities by about as much as they differ from each other, and rounding by a small
        part of it. Few or repeated tokens do not show how much they differ.
        """
        if not (self.precision.follows_spread and self.is_varied):
            return self.precision.tolerance
        return min(self.precision.tolerance, max(_LEAST_TOLERANCE, _SPREAD_SHARE * float(self.learner.std())))

    @property
    def gap(self) -> float:
        """Mean absolute difference between engine and learner; infinite if their lengths differ."""
        return float(self._differences.mean())

    @property
    def peak(self) -> float:
        """Largest absolute difference between engine and learner, for one token; infinite if their lengths differ."""
        return float(self._differences.max())

    @property
    def _differences(self) -> Float32Array:
        if self.learner.shape != self.engine.shape or not len(self.engine):
            return np.array([np.inf], np.float32)
        found: Float32Array = np.abs(self.learner - self.engine)
        return found


def reading_of(version: WeightVersion, sent: weights_pb2.Canary, received: weights_pb2.Canary) -> Reading:
    """Makes a reading of two reports, the learner's and the generator's. Earlier versions do not report their type."""
    is_float32 = sent.dtype == received.dtype == "float32"
    return Reading(
        version,
        float32_from_wire(sent.logprobs, "canary.logprobs"),
        float32_from_wire(received.logprobs, "canary.logprobs"),
        FLOAT32 if is_float32 else LOWER,
        len(set(int32_from_wire(sent.token_ids, "canary.token_ids")[1:])) >= _VARIED_TOKENS,
    )


def load_error(reading: Reading, before: Reading | None, tolerance: float | None) -> DataLoss | None:
    """Returns an error if the canary shows that an engine does not have the learner's weights; else None.

    `before` is the last reading of the same generator, and `tolerance` is `weights.canary_tolerance`.
    """
    limit = reading.tolerance if tolerance is None else tolerance
    if not (reading.gap <= limit and reading.peak <= _PEAK * limit):  # Also true of NaN.
        return DataLoss(
            f"generator and learner differ by {reading.gap:.3g} on average in the log-probabilities of the canary, and "
            f"by {reading.peak:.3g} for one token, but weights.canary_tolerance ({limit:g}"
            f"{', the default' if tolerance is None else ''}) allows {limit:g} and {_PEAK * limit:g}: the engine may "
            "not compute with the weights that it received",
            reason=ErrorReason.CANARY_DIFFERS,
        )
    return None if before is None else _motion_error(reading, before)


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
