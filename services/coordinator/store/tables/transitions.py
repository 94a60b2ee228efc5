"""The states of a group, each with its time, attempt and version."""

import sqlite3
import time


def move_group(
    connection: sqlite3.Connection,
    order_number: int,
    state: str,
    *,
    attempt: int,
    policy_version: int,
    detail: str = "",
) -> None:
    """Sets the state of a group, and records when it entered it."""
    connection.execute("UPDATE groups SET state = ? WHERE order_number = ?", (state, order_number))
    connection.execute(
        "INSERT INTO transitions (order_number, state, time_s, attempt, policy_version, detail)"
        " VALUES (?, ?, ?, ?, ?, ?)",
        (order_number, state, time.time(), attempt, policy_version, detail),
    )
