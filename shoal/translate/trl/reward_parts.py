"""Parts of the reward that TRL and open-r1 have under different names."""

from collections.abc import Mapping
from typing import Any

ACCURACY = "math"
"""The verifier for their accuracy rewards."""
COSINE = {
    "max_value_correct": "correct_short",
    "min_value_correct": "correct_long",
    "min_value_wrong": "wrong_short",
    "max_value_wrong": "wrong_long",
}
"""Parameters of their cosine rewards -> fields of `reward.cosine`."""


def overlong(weight: float, limit: int, buffer: int) -> dict[str, Any]:
    """Returns the fields of [reward] for DAPO's soft punishment, in tokens."""
    return {"overlong": {"factor": weight, "max_length_tokens": limit, "buffer_tokens": buffer}}


def cosine(weight: float, limit: Mapping[str, int], values: Mapping[str, float]) -> dict[str, Any]:
    """Returns the fields of [reward] for a cosine by length. `limit` has Shoal's names, `values` the peer's."""
    return {"cosine": {"factor": weight, **limit, **{COSINE[name]: value for name, value in values.items()}}}
