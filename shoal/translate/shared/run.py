"""Names of runs, and their trackers of metrics, by the names of other systems."""

import re
from collections.abc import Sequence

from shoal.translate.shared.draft import Draft, Source

_NOTHING = ("none", "console", "stdout", "file", "")


def set_trackers(source: Source, draft: Draft, name: str, trackers: Sequence[str] | None) -> None:
    """Turns on the listed trackers. Refuses trackers that Shoal does not have, without blocking."""
    for tracker in (item.strip("'\" ").lower() for item in trackers or ()):
        if tracker in ("wandb", "all"):
            draft.set("tracking.wandb", "online", source.origin(name))
        if tracker in ("tensorboard", "all"):
            draft.set("tracking.tensorboard", True, source.origin(name))
        if tracker == "trackio":
            draft.set("tracking.trackio", True, source.origin(name))
        if tracker not in ("wandb", "tensorboard", "trackio", "all", *_NOTHING):
            reason = "metrics go to metrics.jsonl, TensorBoard, W&B and trackio; training is the same without it"
            draft.refuse(name, tracker, reason, blocks=False)


def run_name(text: str) -> str:
    """Converts a text to a valid run name."""
    return re.sub(r"[^a-z0-9._-]+", "-", text.lower()).strip("-._")[:63] or "run"


def set_trust(source: Source, draft: Draft, name: str) -> None:
    """Sets `model.trust_remote_code`, with a note, if the source sets it."""
    if source[name]:
        draft.set("model.trust_remote_code", True, source.origin(name))
        draft.notes.append("trust_remote_code = true: every service runs the Python code that comes with the model")
