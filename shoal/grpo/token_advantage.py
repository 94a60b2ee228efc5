"""Advantages of tokens, from the advantages of their completions.

Legend: T tokens of a completion.
"""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from shoal.arrays import BoolArray
from shoal.config.tables.advantage import AdvantageConfig

Float64Array = npt.NDArray[np.float64]


def uniform_advantages(config: AdvantageConfig, advantages: Sequence[float], num_tokens: Sequence[int]) -> list[float]:
    """Computes one advantage for all tokens of each completion, if `discount` is 1 and no token has its own reward.

    `num_tokens` is the number of each completion's tokens in the loss. With `whiten` the advantage is `(a - mean)
    / sqrt(var + whiten_eps)`, with mean and variance over the tokens of all completions, if there are at least two
    (REINFORCE++, arXiv:2501.03262). It is then clipped to +-`clip`. No array of the batch's length is made.
    """
    values = list(advantages)
    total = sum(num_tokens)
    if config.whiten and total >= 2:
        mean = math.fsum(n * a for n, a in zip(num_tokens, values, strict=True)) / total
        squares = math.fsum(n * (a - mean) ** 2 for n, a in zip(num_tokens, values, strict=True))
        divisor = math.sqrt(squares / (total - config.whiten_ddof) + config.whiten_eps)
        # Equal values become exactly 0, since in floating point their mean may differ from them.
        same = len({a for n, a in zip(num_tokens, values, strict=True) if n}) == 1
        values = [0.0 if same else (a - mean) / divisor for a in values]
    limit = math.inf if config.clip is None else config.clip
    return [min(max(a, -limit), limit) for a in values]


def token_advantages(
    config: AdvantageConfig,
    advantages: Sequence[float],
    masks_T: Sequence[BoolArray],
    token_rewards_T: Sequence[Float64Array | None] = (),
    discounts_T: Sequence[Float64Array] = (),
) -> list[Float64Array]:
    """Computes the advantage of each token of each completion of a batch; 0 for tokens whose mask is False.

    The reward of a completion's last token that counts is the completion's advantage a, plus the token's entry in
    `token_rewards_T`; the reward of any other token is only the token's entry. The advantage of token t is `R_t = sum
    over k >= t of discount^(k - t) r_k`. Only tokens that count are numbered, since a tool's tokens are not steps of
    the policy. `discounts_T` replaces `discount` by a factor after each token: `R_t = r_t + discounts_t R_(t + 1)`. R
    is whitened and clipped in the way that `uniform_advantages` whitens and clips a.
    """
    if not token_rewards_T and not discounts_T and config.discount == 1:
        uniform = uniform_advantages(config, advantages, [int(mask.sum()) for mask in masks_T])
        return [np.where(mask, value, 0.0) for mask, value in zip(masks_T, uniform, strict=True)]
    returns_T = []
    for index, (advantage, mask) in enumerate(zip(advantages, masks_T, strict=True)):
        token_rewards = token_rewards_T[index] if token_rewards_T else None
        discounts = discounts_T[index] if discounts_T else np.full(len(mask), config.discount)
        returns_T.append(_returns(advantage, mask, token_rewards, discounts))
    if config.whiten:
        returns_T = _whitened(config, returns_T, masks_T)
    if config.clip is not None:
        returns_T = [np.clip(values, -config.clip, config.clip) for values in returns_T]
    return returns_T


def _returns(
    advantage: float, mask: BoolArray, token_rewards: Float64Array | None, discounts: Float64Array
) -> Float64Array:
    counting = np.flatnonzero(mask)
    values = np.zeros(len(mask))
    if not len(counting):
        return values
    rewards = np.zeros(len(counting)) if token_rewards is None else token_rewards[counting].astype(np.float64)
    rewards[-1] += advantage
    running = 0.0
    for index in range(len(counting) - 1, -1, -1):
        running = rewards[index] + discounts[counting[index]] * running
        values[counting[index]] = running
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
