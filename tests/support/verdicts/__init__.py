"""Completions with the verdicts that people agree on, one file for each family of verifiers.

They were written without a look at the verifiers. A row has `verifier`, `completion`, `label`, `options` unless they
are the defaults, `expected` (a value, or "unscorable"), `why` where it is not plain, and `returns` where the verifier
is known to return something else. The rows of `kinds`, `blind_kinds` and `code_kinds` are of kinds that verifiers had
judged wrong: each names its `kind`, and says in `cheat` whether the completion tries to be paid for what it did not do.
The rows of `blind_kinds` were labeled twice, the second time without a look at the first labels: all of them agree.
"""

import json
from pathlib import Path
from typing import Any

from services.reward.common.verdict import Unscorable
from services.reward.verifiers.registry import VERIFIERS

Row = dict[str, Any]
_FOLDER = Path(__file__).parent
FAMILIES = tuple(sorted(file.stem for file in _FOLDER.glob("*.jsonl")))
PROGRAMS = ("code", "code_kinds")
"""Families whose rows take a sandbox."""


def read_rows(family: str) -> list[Row]:
    return [json.loads(line) for line in (_FOLDER / f"{family}.jsonl").read_text(encoding="utf-8").splitlines()]


def wrong_verdicts(rows: list[Row], **options: Any) -> list[str]:
    """Judges the rows; returns a line for each verdict that is not the expected or the known one.

    `options` are those of rows that set none of that name.
    """
    found = []
    for row in rows:
        got, wanted = _verdict(row, options), row.get("returns", row["expected"])
        if got != wanted and not (isinstance(got, float) and isinstance(wanted, float) and abs(got - wanted) < 1e-9):
            found.append(f"{row['verifier']}: {row['completion'][:80]!r} for {row['label']!r:.80}: {got}, not {wanted}")
    return found


def _verdict(row: Row, options: dict[str, Any]) -> float | str:
    verifier = VERIFIERS[row["verifier"]]
    verifier.load()
    try:
        return verifier.judge(row["completion"], row["label"], (), {**options, **row.get("options", {})}).value
    except Unscorable:
        return "unscorable"
