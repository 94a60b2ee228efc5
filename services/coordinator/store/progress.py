"""The progress of a run, as its ledger keeps it."""

import sqlite3
from dataclasses import dataclass

from shoal.grpo.moments import Moments

_NO_REWARDS = Moments()


@dataclass(frozen=True)
class Progress:
    """The progress of a run at its last step boundary."""

    policy_version: int
    next_order_number: int
    """The first group that no step has used up. A resumed run issues groups from this group on."""
    num_episodes: int
    """Completions that steps have used up."""
    kl_coef: float | None = None
    """The next step's coefficient of the KL in the reward; None before the first step."""
    reward_moments: Moments = _NO_REWARDS
    """The moments of all rewards from which steps have computed advantages."""


@dataclass(frozen=True)
class IssueState:
    """The prompts that were issued, and the prompts that are not issued again."""

    assigned: dict[int, int]
    """Positions in the data's endless order, by order number, of the groups that no step has used up."""
    next_position: int
    """The first position after all that were issued."""
    excluded: frozenset[str]
    """Ids of prompts that are not issued again."""


def read_progress(connection: sqlite3.Connection) -> Progress:
    """Reads the progress. Returns the progress of a new run if none is recorded."""
    row = connection.execute(
        "SELECT policy_version, next_order_number, num_episodes, kl_coef, reward_count, reward_mean,"
        " reward_squares FROM progress"
    ).fetchone()
    if row is None:
        return Progress(0, 0, 0)
    version, next_order_number, num_episodes, kl_coef, *moments = row
    return Progress(version, next_order_number, num_episodes, kl_coef, Moments(*moments))


def write_progress(connection: sqlite3.Connection, progress: Progress) -> None:
    """Replaces the progress."""
    moments = progress.reward_moments
    connection.execute(
        "INSERT OR REPLACE INTO progress VALUES (0, ?, ?, ?, ?, ?, ?, ?)",
        (
            progress.policy_version,
            progress.next_order_number,
            progress.num_episodes,
            progress.kl_coef,
            moments.count,
            moments.mean,
            moments.squares,
        ),
    )


def read_issue_state(connection: sqlite3.Connection) -> IssueState:
    """Reads the state from which the ledger continues to issue prompts."""
    assigned = connection.execute(
        "SELECT order_number, position FROM groups WHERE order_number >="
        " COALESCE((SELECT next_order_number FROM progress), 0)"
    )
    (last,) = connection.execute(
        "SELECT MAX(position) FROM (SELECT -1 AS position UNION ALL SELECT MAX(position) FROM groups UNION ALL"
        " SELECT MAX(last_position) FROM blocks)"
    ).fetchone()
    excluded = connection.execute("SELECT prompt_id FROM excluded_prompts")
    return IssueState(dict(assigned), last + 1, frozenset(row[0] for row in excluded))
