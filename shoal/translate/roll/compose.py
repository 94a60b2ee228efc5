"""Settings that several of ROLL's fields decide together."""

import math
from typing import Any

from shoal.translate.roll.advantage import compose_advantage
from shoal.translate.roll.batches import TRAINING, compose_batches
from shoal.translate.roll.kl import compose_kl
from shoal.translate.roll.loss import compose_loss
from shoal.translate.shared.draft import Draft, Origin, Source
from shoal.translate.shared.run_name import run_name
from shoal.translate.shared.scheduler import set_scheduler
from shoal.translate.shared.trackers import set_trackers


def compose(source: Source, draft: Draft) -> None:
    """Sets the fields that no setting of ROLL decides alone."""
    draft.set("run.name", run_name(source["exp_name"]), source.origin("exp_name"))
    if source["pretrain"]:
        draft.set("model.path", source["pretrain"], source.origin("pretrain"))
    rate, scheduler = f"{TRAINING}.learning_rate", f"{TRAINING}.lr_scheduler_type"
    draft.set("learner.learning_rate", source[rate], source.origin(rate))
    set_scheduler(draft, source[scheduler], source.origin(scheduler), field=scheduler, learning_rate=source[rate])
    set_trackers(source, draft, "track_with", source["track_with"])
    _lengths(source, draft)
    _data(source, draft)
    compose_batches(source, draft)
    compose_advantage(source, draft)
    compose_kl(source, draft)
    compose_loss(source, draft)
    for end in ("low", "high"):
        name = f"difficulty_{end}_threshold"
        threshold = source[name]
        if source["difficulty_mask"]:
            draft.set(f"grpo.difficulty_{end}", threshold, source.origin(name))
        else:
            source.note_unused(draft, name, why="changes nothing without difficulty_mask")
    threshold = source["error_max_len_threshold"]
    if source["error_max_len_clip"]:
        if threshold < 1e10:
            origin = source.origin("error_max_len_clip", "error_max_len_threshold")
            draft.set("grpo.max_wrong_completion_tokens", math.ceil(threshold), origin)
    else:
        source.note_unused(draft, "error_max_len_threshold", why="changes nothing without error_max_len_clip")
    ratio = source["async_generation_ratio"]
    draft.set("grpo.max_staleness", math.ceil(ratio), source.origin("async_generation_ratio"))
    refills = source["is_use_additional_prompts"] or source["dynamic_sampling"]
    draft.set("grpo.active_sampling", refills, source.origin("is_use_additional_prompts"))
    if not refills:
        draft.set("grpo.keep_zero_signal", True, Origin("ROLL counts groups of equal rewards in the divisor", False))
    where = "evaluation.sources names the held-out questions, evaluation.every_steps how often they are asked"
    source.note_unused(draft, "eval_steps", why=where)


def _lengths(source: Source, draft: Draft) -> None:
    response, whole = source["response_length"], source["sequence_length"]
    if response is None and whole is not None:
        response = whole - source["prompt_length"]
    if response is None:
        draft.refuse(
            "response_length", None, "the source sets no length of completions", cure="sampling.max_completion_tokens"
        )
        return
    name = "response_length" if source["response_length"] is not None else "sequence_length"
    draft.set("sampling.max_completion_tokens", response, source.origin(name))


def _data(source: Source, draft: Draft) -> None:
    files = source["actor_train.data_args.file_name"]
    folder, messages = source["actor_train.data_args.dataset_dir"], source["actor_train.data_args.messages"]
    tables: list[dict[str, Any]] = []
    for name in files or []:
        path = f"{folder.rstrip('/')}/{name}" if folder and not name.startswith(("/", folder)) else name
        table: dict[str, Any] = {"path": path} if path.endswith((".jsonl", ".parquet")) else {"dataset": path}
        tables.append(table | ({"messages_column": messages} if messages != "messages" else {}))
    if tables:
        draft.set("data.sources", tables, source.origin("actor_train.data_args.file_name"))
    for part in ("domain_interleave_probs", "interleave_probs"):
        shares = source[f"actor_train.data_args.{part}"] or ()
        if len(shares) > 1:
            reason = "mix with fraction or count of data.sources instead"
            draft.refuse(f"actor_train.data_args.{part}", shares, reason, cure="data.sources")
