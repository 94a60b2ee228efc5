"""What two deterministic runs have to have in common: metrics, completions, weights."""

import hashlib
import json
import re
from pathlib import Path
from typing import Any

from services.coordinator.store.rollouts import list_rollouts
from shoal.v1 import coordinator_pb2 as pb

TIMES_AND_RATES = re.compile(
    r"time/.*"  # seconds
    r"|.*tokens_per_second.*"  # tokens a second
    r"|tools/.*/avg_runtime"  # seconds, under a name of open-instruct
    r"|waiting/.*"  # shares of time
    r"|usage/.*"  # means over time
    r"|learner_mfu"  # FLOPs a second, as a share
)
"""Metrics that depend on the clock alone, and so differ between any two runs."""


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def metrics_of(folder: Path) -> list[dict[str, Any]]:
    """Returns the rows of metrics.jsonl without times and rates, each number as its bits."""
    rows = rows_of(folder)
    # An evaluation is reported beside the next step, so only the order of its row depends on the clock.
    rows.sort(key=lambda row: (row["step"], "time/step" not in row))
    return [
        {name: value.hex() if isinstance(value, float) else value for name, value in row.items() if _counts(name)}
        for row in rows
    ]


def _counts(name: str) -> bool:
    return TIMES_AND_RATES.fullmatch(name) is None


def completions_of(folder: Path) -> dict[int, list[tuple[Any, ...]]]:
    """Returns, for each group by its order number, prompt, fate and completions as the ledger has them."""
    found: dict[int, list[tuple[Any, ...]]] = {}
    token = ""
    while True:
        page = list_rollouts(folder, pb.ListRolloutsRequest(page_size=100, page_token=token))
        for group in page.groups:
            found[group.order_number] = [(group.prompt_id, group.state, group.train_step, group.drop_reason)]
            found[group.order_number] += [
                (each.text, each.num_tokens, each.finish_reason, each.score.reward.hex(), each.advantage.hex())
                for each in group.rollouts
            ]
        token = page.next_page_token
        if not token:
            return found


def events_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]


def weights_of(folder: Path) -> dict[str, str]:
    """Returns the digest of each tensor of the exported model, by name."""
    from safetensors import safe_open

    digests = {}
    for file in sorted((folder / "model").glob("*.safetensors")):
        with safe_open(file, framework="numpy") as tensors:
            for name in tensors.keys():  # noqa: SIM118  (it is no dictionary)
                digests[name] = hashlib.sha256(tensors.get_tensor(name).tobytes()).hexdigest()
    return digests


def differences(one: Path, other: Path) -> list[str]:
    """Describes where two runs differ; empty if they are equal."""
    found = []
    for what, read in (("metrics", metrics_of), ("completions", completions_of), ("weights", weights_of)):
        left, right = (_flat(read(folder)) for folder in (one, other))  # type: ignore[operator]
        unequal = [key for key in sorted(left.keys() | right.keys()) if left.get(key) != right.get(key)]
        found += [f"{what} {key}: {left.get(key)} and {right.get(key)}" for key in unequal]
    return found


def _flat(values: Any, key: str = "") -> dict[str, Any]:
    if isinstance(values, dict):
        items = list(values.items())
    elif isinstance(values, list | tuple):
        items = list(enumerate(values))
    else:
        return {key: values}
    flat: dict[str, Any] = {}
    for name, value in items:
        flat |= _flat(value, f"{key}/{name}" if key else str(name))
    return flat
