"""From the advantages of completions to those of their tokens.

Legend: T tokens of a completion.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from shoal.config.advantage import AdvantageConfig
from shoal.rollout import BoolArray

Float64Array = npt.NDArray[np.float64]


def token_advantages(
    config: AdvantageConfig,
    advantages: Sequence[float],
    masks_T: Sequence[BoolArray],
    token_rewards_T: Sequence[Float64Array | None] = (),
) -> list[Float64Array]:
    """The advantage of each token of each completion of a batch; 0 where the mask is False.

    A completion's own advantage a stands at its last token that counts, besides what `token_rewards_T` gives to
    tokens. Token t is then worth `R_t = sum over k >= t of discount^(k - t) r_k`, counted in tokens that count: those
    of a tool are no step of the policy's. With `whiten`, `(R - mean) / sqrt(var + whiten_eps)` over all tokens of the
    batch that count, as long as there are at least two (REINFORCE++, arXiv:2501.03262). Last, all are held within
    `clip`. Without token rewards and with discount 1 all tokens of a completion are worth the same.
    """
    returns_T = []
    for index, (advantage, mask) in enumerate(zip(advantages, masks_T, strict=True)):
        given = token_rewards_T[index] if token_rewards_T else None
        returns_T.append(_returns(advantage, mask, given, config.discount))
    if config.whiten:
        returns_T = _whitened(config, returns_T, masks_T)
    if config.clip is not None:
        returns_T = [np.clip(values, -config.clip, config.clip) for values in returns_T]
    return returns_T


def _returns(advantage: float, mask: BoolArray, given: Float64Array | None, discount: float) -> Float64Array:
    counting = np.flatnonzero(mask)
    values = np.zeros(len(mask))
    if not len(counting):
        return values
    if given is None and discount == 1:
        values[counting] = advantage
        return values
    rewards = np.zeros(len(counting)) if given is None else given[counting].astype(np.float64)
    rewards[-1] += advantage
    running = 0.0
    for place in range(len(counting) - 1, -1, -1):
        running = rewards[place] + discount * running
        values[counting[place]] = running
    return values


def _whitened(
    config: AdvantageConfig, values_T: Sequence[Float64Array], masks_T: Sequence[BoolArray]
) -> list[Float64Array]:
    flat = np.concatenate([values[mask] for values, mask in zip(values_T, masks_T, strict=True)] or [np.zeros(0)])
    if len(flat) < 2:
        return list(values_T)
    if np.all(flat == flat[0]):
        return [np.zeros_like(values) for values in values_T]
    divisor = np.sqrt(flat.var(ddof=config.whiten_ddof) + config.whiten_eps)
    return [
        np.where(mask, (values - flat.mean()) / divisor, 0.0) for values, mask in zip(values_T, masks_T, strict=True)
    ]
