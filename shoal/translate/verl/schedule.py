"""verl's learning rate schedule, and AdamW."""

from shoal.translate.shared.draft import Draft, Source
from shoal.translate.verl.batches import schedule_steps
from shoal.translate.verl.names import ACTOR


def compose_schedule(source: Source, draft: Draft) -> None:
    """Sets schedule, warm-up and AdamW's betas."""
    name = f"{ACTOR}.optim"
    steps, ratio = source[f"{name}.lr_warmup_steps"], source[f"{name}.lr_warmup_steps_ratio"]
    kind, lowest, cycles = (source[f"{name}.{part}"] for part in ("lr_scheduler_type", "min_lr_ratio", "num_cycles"))
    kind, origin = kind or "constant", source.origin(f"{name}.lr_scheduler_type")
    if source["model_engine"] == "veomni" and not source.is_set(f"{name}.lr_scheduler_type"):
        kind, origin = "cosine", source.origin("model_engine")
    if kind not in ("constant", "cosine"):
        draft.refuse(f"{name}.lr_scheduler_type", kind, "known: constant, cosine")
        return
    if kind == "cosine":
        draft.set("learner.lr_scheduler", "cosine_with_min_lr" if lowest else "cosine", origin)
        draft.set("learner.lr_min_ratio", lowest or None, source.origin(f"{name}.min_lr_ratio"))
        draft.set("learner.lr_num_cycles", cycles, source.origin(f"{name}.num_cycles"))
    else:
        draft.set("learner.lr_scheduler", "constant_with_warmup" if steps > 0 or ratio else "constant", origin)
    if steps > 0:
        # verl's schedule advances once per batch that it trains on, whatever the number of mini-batches and epochs.
        updates = draft.values.get("grpo.num_mini_batches", 1) * source[f"{ACTOR}.ppo_epochs"]
        optimizer_steps = updates // max(1, schedule_steps(source))
        draft.set("learner.warmup_steps", steps * max(1, optimizer_steps), source.origin(f"{name}.lr_warmup_steps"))
    elif ratio:
        draft.set("learner.warmup_ratio", ratio, source.origin(f"{name}.lr_warmup_steps_ratio"))
    betas = source[f"{name}.betas"]
    if len(betas) != 2:
        draft.refuse(f"{name}.betas", betas, "two numbers are expected")
        return
    draft.set("learner.adam_beta1", betas[0], source.origin(f"{name}.betas"))
    draft.set("learner.adam_beta2", betas[1], source.origin(f"{name}.betas"))
