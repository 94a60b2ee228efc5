"""Sets fields of Shoal in a way that several peers share."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from shoal.config.tables.learner import Scheduler
from shoal.config.tables.lora import ALL_LINEAR
from shoal.translate.shared.draft import Draft, Origin, Source

_NOTHING = ("none", "console", "stdout", "file", "")
LAYERS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""The linear layers of Llama, Qwen, Mistral and Gemma, by name."""
_PEFT_TARGETS = ("q_proj", "v_proj")
"""The layers that get an adapter by peft's default, in models of these families."""
REFUSED_SCHEDULERS = {
    "reduce_lr_on_plateau": "it waits for a loss on held-out text, and reinforcement learning has none",
    "greedy": "it follows a loss that should fall, and a policy's loss does not show its reward",
}
"""Schedulers that Shoal does not have, with the reason."""
_END = 1e-7
"""The final learning rate of transformers' polynomial schedule if none is set."""
_RATES = ("min_lr", "lr_end")
"""Options that are learning rates. In Shoal they are shares of the peak."""
_OPTIONS = {
    **dict.fromkeys(_RATES, "lr_min_ratio"),
    "min_lr_rate": "lr_min_ratio",
    "min_lr_ratio": "lr_min_ratio",
    "num_cycles": "lr_num_cycles",
    "power": "lr_power",
    "timescale": "lr_timescale",
    "num_decay_steps": "lr_decay_steps",
    "warmup_type": "lr_warmup_shape",
    "decay_type": "lr_decay_shape",
    "warmup_lr_rate": "lr_warmup_start_ratio",
}
"""Shoal's fields for the options in transformers' `scheduler_specific_kwargs`."""


LORA_PARAMETERS = {
    "rank": "r",
    "alpha": "lora_alpha",
    "dropout": "lora_dropout",
    "targets": "target_modules",
    "rslora": "use_rslora",
}
"""peft's parameters of adapters, by the parameters of `set_lora`."""


def data_table(name: str) -> dict[str, Any]:
    """Returns a source of data: a file by its path, or a data set by its name."""
    return {"path": name} if name.endswith((".jsonl", ".parquet")) else {"dataset": name}


def set_context(source: Source, draft: Draft, name: str, tokens: int, shown: str) -> None:
    """Sets the engine's context to the value of a field. Notes a value below `tokens`, and does not use it."""
    fits = tokens <= source[name]
    draft.set("generator.max_model_len", source[name] if fits else None, source.origin(name))
    if not fits:
        draft.notes.append(
            f"{source.origin(name).text} is less than {shown} and would cut off completions, so Shoal does not use it; "
            "to shorten completions, set sampling.max_completion_tokens"
        )


def set_trackers(source: Source, draft: Draft, name: str, trackers: Sequence[str] | None) -> None:
    """Turns on the listed trackers. Refuses trackers that Shoal does not have, but does not block the translation."""
    for tracker in (item.strip("'\" ").lower() for item in trackers or ()):
        if tracker in ("wandb", "all"):
            draft.set("tracking.wandb", "online", source.origin(name))
        if tracker in ("tensorboard", "all"):
            draft.set("tracking.tensorboard", True, source.origin(name))
        if tracker == "trackio":
            draft.set("tracking.trackio", True, source.origin(name))
        if tracker not in ("wandb", "tensorboard", "trackio", "all", *_NOTHING):
            reason = "Shoal supports only TensorBoard, W&B and trackio; training is the same without this tracker"
            draft.refuse(name, tracker, reason, blocks=False)


def run_name(text: str) -> str:
    """Converts a text to a valid run name."""
    return re.sub(r"[^a-z0-9._-]+", "-", text.lower()).strip("-._")[:63] or "run"


def set_trust(source: Source, draft: Draft, name: str) -> None:
    """Sets `model.trust_remote_code`, with a note, if the source sets it."""
    if source[name]:
        draft.set("model.trust_remote_code", True, source.origin(name))
        draft.notes.append("trust_remote_code = true: every service runs the Python code that comes with the model")


def set_lora(
    draft: Draft,
    origin: Origin,
    *,
    rank: int,
    alpha: float,
    dropout: float = 0.0,
    targets: Sequence[str] | None = None,
    rslora: bool = False,
    quantization: str = "none",
) -> None:
    """Sets `learner.lora`, unless the rank is 0. Without targets it takes peft's default targets, with a note."""
    if rank < 1:
        return
    names = list(targets or _PEFT_TARGETS)
    if not targets:
        draft.notes.append(
            f"learner.lora.target_modules: {' and '.join(names)} are peft's default for Llama, Qwen, Mistral and "
            "Gemma; for another model, name its layers with --set"
        )
    table: dict[str, Any] = {"rank": rank, "alpha": int(alpha), "dropout": dropout, "target_modules": names}
    if set(names) == set(LAYERS):
        table["target_modules"] = [ALL_LINEAR]
    table |= {"rslora": True} if rslora else {}
    table |= {"quantization": quantization} if quantization != "none" else {}
    draft.set("learner.lora", table, origin)


def set_scheduler(
    draft: Draft,
    name: str,
    origin: Origin,
    *,
    field: str,
    learning_rate: float,
    options: Mapping[str, Any] | None = None,
) -> None:
    """Sets `learner.lr_scheduler` and its options. Refuses `field` if Shoal has no such schedule or option."""
    known = get_args(Scheduler)
    if name not in known:
        reason = REFUSED_SCHEDULERS.get(name, "transformers has no such scheduler")
        draft.refuse(field, name, f"{reason}; choose one of {', '.join(known)}", cure="learner.lr_scheduler")
        return
    draft.set("learner.lr_scheduler", name, origin)
    settings = ({"lr_end": _END} if name == "polynomial" else {}) | dict(options or {})
    for option, value in settings.items():
        if option not in _OPTIONS:
            draft.refuse(field, option, f"this option has no counterpart; Shoal supports only {', '.join(_OPTIONS)}")
        elif option not in _RATES:
            draft.set(f"learner.{_OPTIONS[option]}", value, origin)
        elif isinstance(value, int | float) and value < learning_rate:
            draft.set(f"learner.{_OPTIONS[option]}", value / learning_rate, origin)
        else:
            draft.refuse(field, value, f"{option} must be a learning rate below the peak ({learning_rate:g})")
