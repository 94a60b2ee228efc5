"""Reward functions in the source's own file: custom verifiers in TRL's convention."""

import re
from collections.abc import Sequence
from typing import Any

from shoal.config.tables.verifiers import BUILT_IN_VERIFIERS
from shoal.translate.shared.draft import Draft
from shoal.translate.shared.field import Unfit
from shoal.translate.shared.own_function import OwnFunction

_LABEL = "solution"
"""The column that TRL's own accuracy reward reads."""


def own_part(function: OwnFunction, weight: float) -> dict[str, Any]:
    """Returns the fields of [reward] for the source's own function. Raises `Unfit`."""
    if function.problem:
        raise Unfit(f"{function.problem}, and give it with --set reward.custom.NAME.file=FILE.py")
    name = verifier_name(function)
    convention = "trl" if function.takes_messages else "trl_text"
    table = {"file": function.file, "function": function.name, "convention": convention}
    return {"weights": {name: weight}, "custom": {name: table}}


def verifier_name(function: OwnFunction) -> str:
    """Returns the name of the verifier for a function."""
    name = re.sub(r"[^a-z0-9_-]", "-", function.name.lower()).lstrip("-")[:56]
    return f"own_{name}" if name in BUILT_IN_VERIFIERS else name or "own"


def own_labels(functions: Sequence[OwnFunction], *, beside: str, draft: Draft) -> dict[str, Any]:
    """Returns the settings of a source whose label all functions read. Refuses functions that need another label than
    the verifier `beside` them, which reads the column of TRL's accuracy reward."""
    columns = list(
        dict.fromkeys(column for function in functions for column in (*function.columns, *function.optional))
    )
    if not beside:
        return {"label_columns": {column: column for column in columns or [_LABEL]}}
    if others := [
        each.name for each in functions if set(each.columns) - {_LABEL} or len(each.required) != len(each.columns)
    ]:
        draft.refuse(
            "reward_funcs",
            ", ".join(others),
            f"reads other columns than {_LABEL}, the label of the verifier {beside} beside it: give data whose rows "
            "name the verifiers and have a label for each, and --set data.sources with its verifier_column",
            cure="data.sources",
        )
    return {"ground_truth_column": _LABEL}


def note_own(functions: Sequence[OwnFunction], num_verifiers: int, draft: Draft) -> None:
    """Notes the facts about the functions that a reader of the translation needs."""
    names = ", ".join(verifier_name(function) for function in functions)
    draft.notes.append(
        f"reward_funcs: {names} judge one completion a call, so a function that compares the completions of a list "
        "does not work; of its file runs only what the function needs (docs/rewards.md)"
    )
    if texts := [verifier_name(function) for function in functions if not function.takes_messages]:
        draft.notes.append(
            f"reward_funcs: {', '.join(texts)} read completions as texts; for lists of messages, --set "
            f"reward.custom.{texts[0]}.convention=trl"
        )
    if num_verifiers > 1:
        draft.notes.append(
            "reward_funcs: a completion counts as correct where all of the functions give at least 1; reward.correct "
            "names those that decide it"
        )
