"""The tables of the ledger, and their version. The tables of groups are also the tables of a block (blocks.py)."""

import sqlite3
from pathlib import Path

from shoal.error_reasons import ErrorReason
from shoal.errors import FailedPrecondition

SCHEMA_VERSION = 5
"""The version of the tables, stored as SQLite's `user_version`; 0 in files from before there was a version. It grows
with every change of the tables, and with every change of a column's contents that earlier code cannot read."""
PAYLOADS_VERSION = 3
"""The first version that has payloads in segments. A ledger of the version before can be read, and gets the new tables
when its run is resumed. Its older groups keep their texts in columns that newer groups leave empty."""
BLOCKS_VERSION = 4
"""The first version that moves used-up groups to segments. An older ledger does so from its next checkpoint on."""
OLDEST_VERSION = 2
"""The oldest version that this code can read."""

GROUP_TABLES = """
CREATE TABLE IF NOT EXISTS groups (
    order_number INTEGER PRIMARY KEY,
    group_id TEXT NOT NULL UNIQUE,
    prompt_id TEXT NOT NULL,
    position INTEGER NOT NULL,
    prompt_text TEXT NOT NULL,
    trace_id TEXT NOT NULL,
    state TEXT NOT NULL,
    num_issues INTEGER NOT NULL,
    drop_reason TEXT NOT NULL DEFAULT '',
    train_step INTEGER NOT NULL DEFAULT 0,
    staleness INTEGER,
    greedy_reward REAL
);
CREATE TABLE IF NOT EXISTS completions (
    order_number INTEGER NOT NULL REFERENCES groups,
    sample_index INTEGER NOT NULL,
    text TEXT NOT NULL,
    num_tokens INTEGER NOT NULL,
    finish_reason TEXT NOT NULL,
    seed INTEGER NOT NULL,
    version_spans TEXT NOT NULL,
    token_ids BLOB,
    behavior_logprobs BLOB,
    support_token_ids BLOB,
    support_counts BLOB,
    outcome TEXT,
    reward REAL,
    verifier_scores TEXT,
    reward_parts TEXT,
    advantage REAL,
    token_advantages BLOB,
    weight REAL,
    PRIMARY KEY (order_number, sample_index)
);
CREATE TABLE IF NOT EXISTS transitions (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT,
    order_number INTEGER NOT NULL REFERENCES groups,
    state TEXT NOT NULL,
    time_s REAL NOT NULL,
    attempt INTEGER NOT NULL,
    policy_version INTEGER NOT NULL,
    detail TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS payloads (
    order_number INTEGER NOT NULL REFERENCES groups,
    kind TEXT NOT NULL,
    segment INTEGER NOT NULL,
    start INTEGER NOT NULL,
    num_bytes INTEGER NOT NULL,
    PRIMARY KEY (order_number, kind)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS token_payloads ON payloads (order_number) WHERE kind IN ('tokens', 'token_advantages');
"""

SCHEMA = f"""
{GROUP_TABLES}
CREATE TABLE IF NOT EXISTS progress (
    singleton INTEGER PRIMARY KEY CHECK (singleton = 0),
    policy_version INTEGER NOT NULL,
    next_order_number INTEGER NOT NULL,
    num_episodes INTEGER NOT NULL,
    kl_coef REAL,
    reward_count INTEGER NOT NULL,
    reward_mean REAL NOT NULL,
    reward_squares REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS excluded_prompts (
    prompt_id TEXT PRIMARY KEY,
    order_number INTEGER NOT NULL REFERENCES groups
);
CREATE TABLE IF NOT EXISTS config_changes (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT,
    attempt INTEGER NOT NULL,
    policy_version INTEGER NOT NULL,
    time_s REAL NOT NULL,
    fields TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS config (
    singleton INTEGER PRIMARY KEY CHECK (singleton = 0),
    fields TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS segments (
    name TEXT PRIMARY KEY,
    num_bytes INTEGER NOT NULL,
    sha256 TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS blocks (
    first_order_number INTEGER PRIMARY KEY,
    last_order_number INTEGER NOT NULL,
    first_step INTEGER NOT NULL,
    last_step INTEGER NOT NULL,
    last_position INTEGER NOT NULL,
    segment INTEGER NOT NULL,
    start INTEGER NOT NULL,
    num_bytes INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS block_counts (
    state TEXT NOT NULL,
    drop_reason TEXT NOT NULL,
    num_groups INTEGER NOT NULL,
    PRIMARY KEY (state, drop_reason)
) WITHOUT ROWID;
"""

_DROP_TOKENS = """
UPDATE completions SET token_ids = NULL, behavior_logprobs = NULL, token_advantages = NULL, support_token_ids = NULL,
    support_counts = NULL WHERE token_ids IS NOT NULL;
"""
"""Deletes tokens in an older ledger. The groups of these tokens are issued again when their run is resumed."""

INDEXES = """
CREATE INDEX IF NOT EXISTS completions_by_outcome ON completions (order_number, outcome, reward);
CREATE INDEX IF NOT EXISTS transitions_of_group ON transitions (order_number);
"""
"""Indexes for the move of groups to a block, and for readers of outcomes and rewards, who would otherwise read whole
rows. They are not part of the version: a ledger without indexes has the same contents, but is slower."""


def create_tables(connection: sqlite3.Connection, path: Path) -> None:
    """Creates the tables of a new file, missing tables of an older file, and missing indexes.

    Raises `FailedPrecondition` for a file of a version that this code cannot read.
    """
    is_new = connection.execute("SELECT 1 FROM sqlite_master").fetchone() is None
    version = SCHEMA_VERSION if is_new else check_version(connection, path)
    if is_new or version < SCHEMA_VERSION:
        more = "" if is_new else _DROP_TOKENS
        connection.executescript(f"BEGIN IMMEDIATE; {SCHEMA} {more} PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;")
    connection.executescript(INDEXES)


def check_version(connection: sqlite3.Connection, path: Path) -> int:
    """Returns the version of a ledger. Raises `FailedPrecondition` for a version that this code cannot read."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if not OLDEST_VERSION <= version <= SCHEMA_VERSION:
        age = "an older" if version < OLDEST_VERSION else "a newer"
        raise FailedPrecondition(
            f"the ledger {path} has tables of version {version}, but this version of Shoal reads only versions "
            f"{OLDEST_VERSION} to {SCHEMA_VERSION}: {age} version of Shoal wrote the ledger. Resume the run with that "
            "version of Shoal, or start a new run; if this run has exported a model, the new run can start from it",
            reason=ErrorReason.LEDGER_VERSION,
            metadata={"found": str(version), "known": str(SCHEMA_VERSION)},
        )
    return int(version)
