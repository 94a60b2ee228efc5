"""Settings that several of ROLL's fields decide together."""

import math
from typing import Any

from shoal.translate.roll.algorithm import compose_advantage, compose_kl, compose_loss
from shoal.translate.roll.batches import compose_batches
from shoal.translate.roll.correction import compose_correction
from shoal.translate.roll.data import compose_data, compose_evaluation
from shoal.translate.roll.engine_fields import ENGINE, GENERATING
from shoal.translate.roll.masks import compose_masks
from shoal.translate.roll.reward_worker import read_workers
from shoal.translate.roll.rewards import compose_rewards
from shoal.translate.roll.worker_fields import DATA, MODEL, STRATEGY_NAME, TRAINING
from shoal.translate.shared.draft import Draft, Source
from shoal.translate.shared.setters import run_name, set_context, set_scheduler, set_trackers

_MEGATRON = "megatron_train"
_PARTS_OF_VISION = ("vision_model", "visual", "vision_tower", "audio_model", "audio_tower", "talker", "code2wav")
"""Parts that only models of images or sounds have."""
_OWN_TEMPLATES = (None, "native", "qwen2_5", "qwen3")
"""ROLL's names for the tokenizer's own chat template, with thoughts if the model has thoughts."""
_WITHOUT_THOUGHTS = ("qwen3_nothink", "native_nothink", "native_nonthinking")
"""ROLL's names for the tokenizer's own chat template with `enable_thinking` false."""


def compose(source: Source, draft: Draft) -> None:
    """Sets the fields that no single setting of ROLL decides."""
    draft.set("run.name", run_name(source["exp_name"]), source.origin("exp_name"))
    _tracking(source, draft)
    _model(source, draft)
    _trained_part(source, draft)
    _schedule(source, draft)
    _decay(source, draft)
    _lengths(source, draft)
    _sampling(source, draft)
    workers = read_workers(source, draft)
    compose_rewards(workers, source, draft)
    compose_data(workers, source, draft)
    compose_evaluation(source, draft)
    compose_batches(source, draft)
    compose_advantage(workers, source, draft)
    compose_kl(source, draft)
    compose_loss(source, draft)
    compose_correction(source, draft)
    compose_masks(workers, source, draft)
    ratio = "async_generation_ratio"
    draft.set("grpo.max_staleness", math.ceil(source[ratio]), source.origin(ratio))


def _tracking(source: Source, draft: Draft) -> None:
    set_trackers(source, draft, "track_with", source["track_with"])
    options = source["tracker_kwargs"] or {}
    if draft.values.get("tracking.wandb"):
        if options.get("mode") in ("offline", "disabled"):
            draft.set("tracking.wandb", options["mode"], source.origin("track_with"))
        if options.get("project"):
            draft.set("tracking.wandb_project", options["project"], source.origin("track_with"))
    if others := [name for name in options if name not in ("mode", "project")]:
        draft.notes.append(f"tracker_kwargs: {', '.join(others)} are left out; [tracking] has Shoal's options")
    steps, every, most = source["max_steps"], source["save_steps"], source["max_ckpt_to_keep"]
    draft.set("checkpoint.every_steps", every or max(1, steps), source.origin("save_steps"))
    if most:
        source.copy("max_ckpt_to_keep", "checkpoint.keep_last")


def _model(source: Source, draft: Draft) -> None:
    """Sets the model and its chat template. ROLL takes the model from the workers if all of them name a model."""
    field, name = "pretrain", source["pretrain"]
    workers = [f"{worker}.model_args.model_name_or_path" for worker in ("actor_train", "actor_infer", "reference")]
    if all(source[worker] for worker in workers):
        field, name = workers[0], source[workers[0]]
        for other in workers[1:]:
            if source[other] != name:
                draft.refuse(other, source[other], f"policy, engine and reference must begin with one model ({name})")
    else:
        source.note_unused(*workers, why="ROLL replaces it by pretrain")
    if name:
        draft.set("model.path", name, source.origin(field))
    template = "global_template" if source["global_template"] else f"{DATA}.template"
    if template == "global_template":
        source.note_unused(f"{DATA}.template", why="global_template replaces it")
    thinks = f"{DATA}.enable_thinking"
    if source[template] in _OWN_TEMPLATES:
        source.note_unused(template, why="Shoal uses the tokenizer's chat template, unless model.chat_template is set")
        if source[thinks] is not None:
            draft.set("model.chat_template_kwargs", {"enable_thinking": source[thinks]}, source.origin(thinks))
    elif source[template] in _WITHOUT_THOUGHTS:
        draft.set("model.chat_template_kwargs", {"enable_thinking": False}, source.origin(template))
    elif source[template] == "chatml":
        draft.set("model.chat_template", "chatml", source.origin(template))
    else:
        known = ", ".join((*filter(None, _OWN_TEMPLATES), *_WITHOUT_THOUGHTS, "chatml"))
        draft.refuse(template, source[template], f"Shoal supports only {known}", cure="model.chat_template")
    if source[template] not in _OWN_TEMPLATES:
        source.note_unused(thinks, why=f"{template} decides it")


def _trained_part(source: Source, draft: Draft) -> None:
    """Sets adapters (ROLL trains adapters if the layers of the adapters are named), or the frozen part of the model."""
    target, *others = (f"{MODEL}.lora_{name}" for name in ("target", "rank", "alpha", "dropout"))
    prefix = f"{MODEL}.freeze_module_prefix"
    rank, alpha, dropout = (source[name] for name in others)
    if not source[target]:
        source.note_unused(*others, why=f"ROLL trains adapters only with {target}")
        if source[prefix]:
            _frozen(prefix, source, draft)
        return
    source.note_unused(prefix, why="the whole model is frozen, since adapters are trained")
    layers = _names(source[target])
    if any(set(name) & set("*$|(\\") or name.startswith("linear_") for name in layers):
        reason = "contains patterns or Megatron's names: give names of layers as in the model's files, or all"
        draft.refuse(target, source[target], reason, cure="learner.lora")
        return
    layers = ["all-linear"] if layers == ["all"] else layers
    adapters = {"rank": rank, "alpha": alpha or 2 * rank, "dropout": dropout or 0.0, "target_modules": layers}
    draft.set("learner.lora", adapters, source.origin(target, *others))
    if source[STRATEGY_NAME] == _MEGATRON:
        draft.notes.append(
            "learner.lora: each linear layer has its own adapter; in Megatron, query, key and value share an adapter, "
            "and gate and up share one"
        )


def _frozen(field: str, source: Source, draft: Draft) -> None:
    """Sets the frozen part, without parts of vision models, which no model in Shoal has."""
    names = _names(source[field])
    if parts := [name for name in names if name.partition(".")[0] in _PARTS_OF_VISION]:
        draft.notes.append(f"{field}: text models have no {', '.join(parts)}")
    names = [name for name in names if name not in parts]
    if names and source[STRATEGY_NAME] == _MEGATRON:
        reason = "these are Megatron's names: give names as in the model's files"
        draft.refuse(field, source[field], reason, cure="learner.freeze")
    elif names:
        draft.set("learner.freeze", names, source.origin(field))


def _names(value: Any) -> list[str]:
    items = value if isinstance(value, list) else str(value).split(",")
    return [str(item).strip() for item in items]


def _schedule(source: Source, draft: Draft) -> None:
    rate, scheduler = f"{TRAINING}.learning_rate", f"{TRAINING}.lr_scheduler_type"
    steps, ratio = f"{TRAINING}.warmup_steps", f"{TRAINING}.warmup_ratio"
    source.copy(rate, "learner.learning_rate")
    name, origin = source[scheduler], source.origin(scheduler)
    if name == "constant" and source[STRATEGY_NAME] == _MEGATRON and (source[steps] or source[ratio]):
        name, origin = "constant_with_warmup", source.origin(scheduler, STRATEGY_NAME)
    set_scheduler(draft, name, origin, field=scheduler, learning_rate=source[rate])
    if name == "constant":
        source.note_unused(steps, ratio, why="the schedule constant has no warm-up")
    elif source[steps] or not source[ratio]:
        source.copy(steps, "learner.warmup_steps")
        source.note_unused(ratio, why="warmup_steps takes precedence")
    else:
        source.copy(ratio, "learner.warmup_ratio")


def _decay(source: Source, draft: Draft) -> None:
    """Sets the weight decay, and whether it applies to biases and norms, which ROLL's trainer decides."""
    decay = f"{TRAINING}.weight_decay"
    source.copy(decay, "learner.weight_decay")
    if source[decay] and source[STRATEGY_NAME] in (_MEGATRON, "deepspeed_train"):
        draft.set("learner.weight_decay_on_bias_and_norm", False, source.origin(STRATEGY_NAME))


def _lengths(source: Source, draft: Draft) -> None:
    prompt, response, whole = source["prompt_length"], source["response_length"], source["sequence_length"]
    # ROLL reads response_length only if sequence_length is not set.
    name = "response_length" if whole is None else "sequence_length"
    if whole is not None:
        source.note_unused("response_length", why="ROLL uses sequence_length - prompt_length instead")
        response = whole - prompt
    if response is None:
        draft.refuse(name, None, "no length of completions is set: give one", cure="sampling.max_completion_tokens")
        return
    draft.set("sampling.max_completion_tokens", response, source.origin(name))
    if source[f"{ENGINE}.max_model_len"] is not None:
        shown = f"prompt_length + response_length ({prompt + response})"
        set_context(source, draft, f"{ENGINE}.max_model_len", prompt + response, shown)


def _sampling(source: Source, draft: Draft) -> None:
    """Sets how completions are drawn. ROLL's defaults apply if the source sets any part of the sampling."""
    names = [f"{GENERATING}.{name}" for name in ("temperature", "top_p", "top_k")]
    temperature, top_p, top_k = (source[name] for name in names)
    others = ("max_new_tokens", "num_return_sequences", "num_beams", "stop_strings")
    if not any(source.is_set(name) for name in (*names, *(f"{GENERATING}.{other}" for other in others))):
        return
    draft.set("sampling.temperature", temperature, source.origin(names[0]))
    if temperature != 1:
        draft.notes.append(
            "sampling.temperature: the learner divides logits by it, as the engine does, and ROLL's learner does not"
        )
    draft.set("sampling.top_p", 1.0 if top_p is None else top_p, source.origin(names[1]))
    draft.set("sampling.top_k", max(0, top_k or 0), source.origin(names[2]))
