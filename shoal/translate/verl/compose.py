"""Settings that several of verl's overrides decide together."""

from os.path import expanduser

from shoal.config.tables.lora import ALL_LINEAR
from shoal.translate.shared.draft import Draft, Source
from shoal.translate.shared.setters import data_table, run_name, set_lora, set_trackers, set_trust
from shoal.translate.verl.algorithm import compose_advantage, compose_kl, compose_loss
from shoal.translate.verl.batches import compose_batches, schedule_steps
from shoal.translate.verl.correction import compose_correction
from shoal.translate.verl.names import ACTOR, MODEL, OPTIM, ROLLOUT, TRUTH
from shoal.translate.verl.reward import compose_custom_reward, compose_overlong, compose_reward_model, compose_scorers

_MEGATRON = {"linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"}
"""Megatron's linear layers. Each of these layers replaces several layers of the model."""


def compose(source: Source, draft: Draft) -> None:
    """Sets the fields that no single override decides."""
    draft.set("run.name", run_name(source["trainer.experiment_name"]), source.origin("trainer.experiment_name"))
    if source[f"{MODEL}.path"]:
        draft.set("model.path", expanduser(source[f"{MODEL}.path"]), source.origin(f"{MODEL}.path"))
    set_trust(source, draft, f"{MODEL}.trust_remote_code")
    if source.is_set("data.truncation") and source["data.truncation"] != "error":
        draft.notes.append(f"data.truncation = {source['data.truncation']}: Shoal leaves out prompts that are too long")
    set_trackers(source, draft, "trainer.logger", source["trainer.logger"])
    source.copy("trainer.project_name", "tracking.wandb_project")
    _data(source, draft)
    compose_scorers(source, draft)
    compose_reward_model(source, draft)
    compose_custom_reward(source, draft)
    compose_overlong(source, draft)
    compose_batches(source, draft)
    _schedule(source, draft)
    _lora(source, draft)
    compose_advantage(source, draft)
    compose_kl(source, draft)
    compose_loss(source, draft)
    compose_correction(source, draft)


def _data(source: Source, draft: Draft) -> None:
    """Sets the sources for training and for evaluation, and how evaluation samples."""
    columns = {"messages_column": source["data.prompt_key"], "verifier_column": source["data.reward_fn_key"]}
    columns["ground_truth_column"] = TRUTH
    for name, ours in (("data.train_files", "data.sources"), ("data.val_files", "evaluation.sources")):
        if source[name]:
            names = filter(None, (expanduser(text.strip("[]'\" ")) for text in source[name]))
            keys = filter(source.is_set, ("data.prompt_key", "data.reward_fn_key"))
            draft.set(ours, [data_table(item) | columns for item in names], source.origin(name, *keys))
    often = "rollout.test_freq" if source.is_set("rollout.test_freq") else "trainer.test_freq"
    test = source[often]
    how = [f"{ROLLOUT}.val_kwargs.{name}" for name in ("n", "temperature", "top_p", "top_k")]
    samples, temperature, top_p, top_k = how
    most, shown = source["data.val_max_samples"], source["trainer.log_val_generations"]
    if not source["data.val_files"]:
        when = (often, "trainer.val_before_train", "data.val_max_samples", "trainer.log_val_generations")
        source.note_unused(*when, *how, why="changes nothing without data.val_files")
    else:
        draft.set("evaluation.num_prompts", most if most > 0 else 1_000_000, source.origin("data.val_max_samples"))
        draft.set("evaluation.every_steps", max(0, test), source.origin(often))
        source.copy("trainer.val_before_train", "evaluation.on_start")
        source.copy(samples, "evaluation.samples_per_prompt")
        source.copy(temperature, "evaluation.temperature")
        if shown > 0 and test > 0:
            draft.set("tracking.completions_every_steps", test, source.origin("trainer.log_val_generations", often))
            source.copy("trainer.log_val_generations", "tracking.num_completions")
        else:
            source.note_unused("trainer.log_val_generations", why="changes nothing without trainer.test_freq")
        source.copy(top_p, "evaluation.top_p")
        draft.set("evaluation.top_k", max(0, source[top_k]), source.origin(top_k))


def _schedule(source: Source, draft: Draft) -> None:
    steps, ratio = source[f"{OPTIM}.lr_warmup_steps"], source[f"{OPTIM}.lr_warmup_steps_ratio"]
    kind, lowest, cycles = (source[f"{OPTIM}.{part}"] for part in ("lr_scheduler_type", "min_lr_ratio", "num_cycles"))
    kind, origin = kind or "constant", source.origin(f"{OPTIM}.lr_scheduler_type")
    if source["model_engine"] == "veomni" and not source.is_set(f"{OPTIM}.lr_scheduler_type"):
        kind, origin = "cosine", source.origin("model_engine")
    if kind not in ("constant", "cosine"):
        draft.refuse(f"{OPTIM}.lr_scheduler_type", kind, "Shoal supports only constant and cosine")
        return
    if kind == "cosine":
        draft.set("learner.lr_scheduler", "cosine_with_min_lr" if lowest else "cosine", origin)
        draft.set("learner.lr_min_ratio", lowest or None, source.origin(f"{OPTIM}.min_lr_ratio"))
        draft.set("learner.lr_num_cycles", cycles, source.origin(f"{OPTIM}.num_cycles"))
    else:
        draft.set("learner.lr_scheduler", "constant_with_warmup" if steps > 0 or ratio else "constant", origin)
    if steps > 0:
        # verl's schedule advances once per batch that it trains on, whatever the number of mini-batches and epochs.
        updates = draft.values.get("grpo.num_mini_batches", 1) * source[f"{ACTOR}.ppo_epochs"]
        optimizer_steps = updates // max(1, schedule_steps(source))
        draft.set("learner.warmup_steps", steps * max(1, optimizer_steps), source.origin(f"{OPTIM}.lr_warmup_steps"))
    elif ratio:
        source.copy(f"{OPTIM}.lr_warmup_steps_ratio", "learner.warmup_ratio")
    betas = source[f"{OPTIM}.betas"]
    if len(betas) != 2:
        draft.refuse(f"{OPTIM}.betas", betas, "two numbers are expected")
        return
    draft.set("learner.adam_beta1", betas[0], source.origin(f"{OPTIM}.betas"))
    draft.set("learner.adam_beta2", betas[1], source.origin(f"{OPTIM}.betas"))


def _lora(source: Source, draft: Draft) -> None:
    """Sets the adapters if one of the ranks is above 0. The rank of FSDP has precedence."""
    names = [f"{MODEL}.{name}" for name in ("lora_rank", "lora_alpha", "target_modules")]
    theirs = [f"{MODEL}.lora.{name}" for name in ("rank", "alpha", "target_modules", "dropout")]
    excluded = [f"{MODEL}.{name}" for name in ("exclude_modules", "lora.exclude_modules")]
    if source[names[0]] < 1 and source[theirs[0]] < 1:
        source.note_unused(*names[1:], *theirs[1:], *excluded, why="changes nothing without a rank")
        return
    for name in excluded:
        if source[name]:
            cure = "learner.lora.target_modules"
            draft.refuse(name, source[name], f"name the layers that get adapters instead, in {cure}", cure=cure)
    used, unused = (names, theirs) if source[names[0]] > 0 else (theirs, names)
    source.note_unused(*unused, why=f"{used[0]} is used instead")
    rank, alpha, targets = (source[name] for name in used[:3])
    if used is theirs and set(targets or _MEGATRON) & _MEGATRON:
        if set(targets or _MEGATRON) != _MEGATRON:
            reason = "each name stands for several layers: name the layers in learner.lora.target_modules"
            draft.refuse(used[2], targets, reason, cure="learner.lora")
        targets = [ALL_LINEAR]
    origin = source.origin(*(name for name in used if source.is_set(name)))
    dropout = source[theirs[3]] if used is theirs else 0.0
    set_lora(draft, origin, rank=rank, alpha=alpha, dropout=dropout, targets=targets)
