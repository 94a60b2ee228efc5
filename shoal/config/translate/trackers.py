"""Where metrics go, as other systems name the places."""

from collections.abc import Sequence

from shoal.config.translate.draft import Draft, Source

_NOTHING = ("none", "console", "stdout", "file", "")


def set_trackers(source: Source, draft: Draft, name: str, trackers: Sequence[str] | None) -> None:
    """Turns on what a list of trackers, or one, asks for; refuses those that there are not."""
    for tracker in (item.strip("'\" ").lower() for item in trackers or ()):
        if tracker in ("wandb", "all"):
            draft.set("tracking.wandb", "online", source.origin(name))
        if tracker in ("tensorboard", "all"):
            draft.set("tracking.tensorboard", True, source.origin(name))
        if tracker not in ("wandb", "tensorboard", "all", *_NOTHING):
            reason = "metrics go to metrics.jsonl, TensorBoard and Weights & Biases; training is the same without it"
            draft.refuse(name, tracker, reason, blocks=False)
