"""The size of a run's ledger: its rows, the texts, and the tokens that wait for a checkpoint."""

from services.coordinator.store.segments.series import SEGMENT_BYTES
from shoal.config import RunConfig
from shoal.grpo.staleness import capacity

_ROW_BYTES = 200
"""Of a completion, beside its text, in the ledger, and in a checkpoint's copy of it while its group is in flight."""
_TEXT_BYTES = 5
"""Of a token. English has 4 to 5 with today's vocabularies, Chinese 3 to 5."""
_SCORE_BYTES = 500
"""Of the verdicts on a completion."""
_TOKEN_BYTES = 4 + 4 + 4
"""Id, log-probability, and advantage where each token has its own."""


def most_ledger_bytes(config: RunConfig) -> int:
    """Bounds the size of the ledger and its copies in checkpoints, as if every text had the greatest length.

    Texts and rows stay, once. Tokens go with the first checkpoint after their group was used up, but a checkpoint keeps
    the segments that have tokens of the groups then in flight. Where the number of steps is not known yet, those until
    the first checkpoint count.
    """
    grpo, sampling, every_steps = config.grpo, config.sampling, config.checkpoint.every_steps
    groups_per_step = grpo.groups_per_step + grpo.max_refill_groups
    in_flight = capacity(grpo.max_staleness, grpo.groups_per_step)
    all_groups = (config.run.num_steps or every_steps) * groups_per_step + in_flight
    # Besides those that are kept, one checkpoint is being written.
    num_checkpoints = config.checkpoint.keep_last + 1
    tokens = grpo.group_size * sampling.max_completion_tokens
    row_bytes = grpo.group_size * _ROW_BYTES
    stays = _TEXT_BYTES * (config.data.max_prompt_tokens + tokens) + row_bytes + grpo.group_size * _SCORE_BYTES
    group_bytes = tokens * (_TOKEN_BYTES + _support_bytes(sampling.top_k))
    waiting = every_steps * groups_per_step + (1 + num_checkpoints) * in_flight
    all_tokens = min(all_groups * group_bytes, waiting * group_bytes + (1 + num_checkpoints) * SEGMENT_BYTES)
    return all_groups * stays + num_checkpoints * in_flight * row_bytes + all_tokens


def _support_bytes(top_k: int) -> int:
    """Returns the bytes of a token's support, at most: its ids and their number."""
    return 4 * top_k + 4 if top_k else 0
