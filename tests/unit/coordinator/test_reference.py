import asyncio
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest

from services.coordinator.learner import Learner
from services.coordinator.reference import Reference
from shoal.config import parse_config
from tests.unit.coordinator.test_step import group


class ReferenceAt:
    """Gives every token the same log-probability under the reference."""

    async def reference_logprobs(self, sequences: list[Any], temperature: float) -> list[Any]:
        return [np.full(len(sequence) - 1, -1.5, np.float32) for sequence in sequences]


def test_tokens_that_do_not_count_are_no_part_of_the_kl() -> None:
    config = parse_config(
        {
            "model": {"path": "m"},
            "data": {"sources": [{"path": "d"}]},
            "kl": {"coef": 0.5, "place": "reward", "estimator": "k1", "target": 0.5, "horizon": 10},
        }
    )
    plain = group(0, [1.0, 0.0])
    masked = tuple(replace(own, loss_mask=np.array([True, False])) for own in plain.completions)
    reference = Reference(config, cast(Learner, ReferenceAt()))
    kl = asyncio.run(reference.measure([replace(plain, completions=masked)]))
    assert [values.tolist() for values in kl.kl_T.values()] == [[0.5, 0.0]] * 2
    figures = reference.adapt(kl)
    assert figures["objective/kl"] == figures["objective/reward_kl"] == 0.5
    assert reference.coef == pytest.approx(0.5), f"{kl.mean} for each token that counts is the target"
