"""Settings that several of TRL's fields decide together."""

import math
from pathlib import Path
from typing import Any

from shoal.translate.shared.draft import Draft, Origin, Source
from shoal.translate.shared.setters import REFUSED_SCHEDULERS, run_name, set_scheduler, set_trackers
from shoal.translate.trl.batches import compose_batches, compose_lengths
from shoal.translate.trl.lora import compose_lora
from shoal.translate.trl.reward import compose_reward
from shoal.translate.trl.versions import note_version

_AGGREGATION = {
    "grpo": "seq-mean-token-mean",
    "bnpo": "token-mean",
    "dr_grpo": "seq-mean-token-sum-norm",
    "dapo": "token-mean",
    "cispo": "token-mean",
    "vespo": "token-mean",
    "sapo": "seq-mean-token-mean",
    "luspo": "seq-mean-token-sum",
}
_ADAM = ("adamw_torch", "adamw_torch_fused", "adamw_hf", "adamw_8bit", "paged_adamw_8bit", "adamw_bnb_8bit")
_OF_DATA = ("dataset", "dataset_config", "split", "path")


def compose(source: Source, draft: Draft) -> None:
    """Sets the fields that no single field of TRL decides."""
    compose_lengths(source, draft)
    note_version(source, draft)
    compose_all_but_lengths(source, draft)


def compose_all_but_lengths(source: Source, draft: Draft) -> None:
    """Sets the fields of `compose`, except the lengths of prompts and completions."""
    named = source["run_name"] or Path(source["output_dir"] or "").name or "grpo"
    draft.set("run.name", run_name(named), source.origin("run_name" if source["run_name"] else "output_dir"))
    if source["model_name_or_path"]:
        source.copy("model_name_or_path", "model.path")
    _data(source, draft)
    _model(source, draft)
    set_trackers(source, draft, "report_to", source["report_to"])
    for name, ours in (("wandb_project",) * 2, ("wandb_entity",) * 2, ("wandb_run_group", "wandb_group")):
        if source[name]:
            source.copy(name, f"tracking.{ours}")
    steps = compose_batches(source, draft)
    _completions(source, draft, optimizer_steps=steps)
    _schedule(source, draft)
    compose_lora(source, draft)
    compose_loss(source, draft)
    _kl(source, draft)
    _correction(source, draft)
    _advantage(source, draft)
    compose_reward(source, draft)
    _note_columns(source, draft)


def _data(source: Source, draft: Draft) -> None:
    name, columns = source["dataset_name"], source["dataset_prompt_column"] or "prompt"
    table = {"dataset": name, "messages_column": columns, "ground_truth_column": "solution"}
    for field, ours, default in (("dataset_config", "dataset_config", None), ("dataset_train_split", "split", "train")):
        if source[field] != default:
            table[ours] = source[field]
    if source["system_prompt"] is not None:
        draft.of_sources["system_prompt"] = source["system_prompt"]
        draft.notes.append("system_prompt: every source of data gets it, unless the source sets its own system_prompt")
    if (loaded := source["train_dataset"]) and not name:
        _loaded(loaded, columns, source, draft)
    if name:
        draft.set("data.sources", [table], source.origin("dataset_name"))


def _loaded(loaded: dict[str, Any], column: str, source: Source, draft: Draft) -> None:
    """Uses the data that the source's own code loads, if it does not change the rows."""
    table = {name: loaded[name] for name in _OF_DATA if name in loaded}
    shown = _shown_data(table)
    if not table:
        reason = "Shoal reads this field only from Python files: name the data with --set data.sources=..."
        draft.refuse("train_dataset", loaded, reason, cure="data.sources", is_needed=True)
        return
    if loaded["changes"]:
        reason = (
            f"the file changes its rows ({', '.join(loaded['changes'])}), and Shoal does not run it: save them with "
            '.to_json("train.jsonl"), and give --set \'data.sources=[{path = "train.jsonl", messages_column = '
            f'"{column}"}}]\''
        )
        draft.refuse("train_dataset", shown, reason, cure="data.sources", is_needed=True)
        return
    columns = {"messages_column": column, "ground_truth_column": "solution"}
    draft.set("data.sources", [table | columns], Origin(f"{source.spelled('train_dataset')} = {shown}", True))


def _note_columns(source: Source, draft: Draft) -> None:
    """Notes which columns of the data are read, since the script does not show which columns TRL would read."""
    field = "dataset_name" if source["dataset_name"] else "train_dataset"
    if not source[field] or not (sources := draft.values.get("data.sources")):
        return
    (table,) = sources
    shown = _shown_data({name: table[name] for name in _OF_DATA if name in table})
    if columns := table.get("label_columns"):
        labels = f"labels from {', '.join(columns)}, which its reward functions read"
    else:
        labels = f"labels from column {table['ground_truth_column']}, which TRL's accuracy_reward reads"
    advice = "change this" if "verifier" in table else "change this, and name a verifier (verifier = ...)"
    draft.notes.append(
        f"{source.spelled(field)} = {shown}: questions come from column {table['messages_column']}, {labels}; "
        f"{advice}, with --set data.sources=..."
    )


def _shown_data(table: dict[str, Any]) -> str:
    return ", ".join(map(str, table.values()))


def _completions(source: Source, draft: Draft, *, optimizer_steps: int) -> None:
    """Shows completions as often as TRL logs, which counts the interval in optimizer steps."""
    every, number = source["logging_steps"], source["num_completions_to_print"]
    if not source["log_completions"]:
        return
    if every < 1:
        every = math.ceil(every * max(0, source["max_steps"])) or 10
    origin = source.origin("log_completions", "logging_steps")
    draft.set("tracking.completions_every_steps", max(1, int(every) // optimizer_steps), origin)
    if number is not None:
        source.copy("num_completions_to_print", "tracking.num_completions")
    else:
        draft.notes.append(
            "log_completions: TRL shows all completions of a generation batch; tracking.num_completions says how many "
            "are shown here, and `shoal run rollouts` has all of them"
        )


def _model(source: Source, draft: Draft) -> None:
    """Sets attention, revision and trust from `model_init_kwargs`. Refuses its other keys."""
    name, attention = "attn_implementation", source["attn_implementation"]
    settings = dict(source["model_init_kwargs"] or {})
    if source["trust_remote_code"] or settings.pop("trust_remote_code", False):
        trusting = "trust_remote_code" if source["trust_remote_code"] else "model_init_kwargs"
        draft.set("model.trust_remote_code", True, source.origin(trusting))
        draft.notes.append(f"{trusting}: every service runs the Python code that comes with the model")
    if attention is None and name in settings:
        name, attention = "model_init_kwargs", settings[name]
    for setting, value in settings.items():
        if setting not in ("attn_implementation", "dtype", "torch_dtype", "device_map", "use_cache", "revision"):
            draft.refuse("model_init_kwargs", f"{setting} = {value}", "Shoal loads the model as its files define it")
    if settings.get("revision"):
        draft.set("model.revision", settings["revision"], source.origin("model_init_kwargs"))
    if attention in ("sdpa", "flash_attention_2", "eager"):
        chosen = "auto" if attention == "flash_attention_2" else attention
        draft.set("learner.attention", chosen, source.origin(name))
    elif attention is not None:
        draft.refuse(name, attention, "Shoal supports only sdpa, flash_attention_2, eager", cure="learner.attention")


def _schedule(source: Source, draft: Draft) -> None:
    scheduler = source["lr_scheduler_type"].lower()
    options = source["lr_scheduler_kwargs"]
    origin = source.origin("lr_scheduler_type", *(["lr_scheduler_kwargs"] if options else []))
    field = "lr_scheduler_kwargs" if options and scheduler not in REFUSED_SCHEDULERS else "lr_scheduler_type"
    set_scheduler(draft, scheduler, origin, field=field, learning_rate=source["learning_rate"], options=options)
    steps, ratio = source["warmup_steps"], source["warmup_ratio"]
    if 0 < steps < 1:
        steps, ratio = 0, steps
    if scheduler == "constant":
        if steps or ratio:
            draft.notes.append("warmup_steps and warmup_ratio change nothing: a constant schedule has no warm-up")
    elif steps:
        draft.set("learner.warmup_steps", int(steps), source.origin("warmup_steps"))
    elif ratio:
        draft.set("learner.warmup_ratio", ratio, source.origin("warmup_ratio"))
    optimizer = source["optim"]
    if optimizer not in _ADAM:
        draft.refuse("optim", optimizer, f"Shoal's optimizer is AdamW: choose one of {', '.join(_ADAM)}")
    elif "8bit" in optimizer:
        draft.notes.append(
            f"optim = {optimizer}: Shoal's AdamW has float32 states, which take more memory and are more precise"
        )
    draft.set("learner.fused_adam", "fused" in optimizer or "8bit" in optimizer, source.origin("optim"))
    draft.set("learner.compute_dtype", "float32" if source["bf16"] is False else "auto", source.origin("bf16"))


def compose_loss(source: Source, draft: Draft) -> None:
    """Sets objective, clipping and aggregation."""
    loss, level = source["loss_type"], source["importance_sampling_level"]
    origin = source.origin("loss_type", "importance_sampling_level")
    if loss not in _AGGREGATION or level not in ("token", "sequence"):
        reason = f"Shoal supports only {', '.join(_AGGREGATION)}, with importance_sampling_level token or sequence"
        draft.refuse("loss_type", f"{loss}, {level}", reason)
        return
    objective = loss if loss in ("cispo", "sapo", "vespo", "luspo") else "ppo_clip"
    if objective == "ppo_clip" and level == "sequence":
        objective = "gspo"
    draft.set("loss.objective", objective, origin)
    draft.set("loss.aggregation", _AGGREGATION[loss], origin)
    if loss == "bnpo":
        draft.notes.append(
            "loss_type = bnpo: TRL takes the mean over the tokens of each device and forward pass, and averages these "
            "means; Shoal takes one mean over all tokens of an optimizer step"
        )
    # The denominator of the ratio is the learner's own probability before the first update.
    draft.set("loss.baseline", "proximal", origin)
    low, high = source["epsilon"], source["epsilon_high"]
    if objective in ("ppo_clip", "gspo", "luspo"):
        source.copy("epsilon", "loss.clip_low")
        draft.set("loss.clip_high", low if high is None else high, source.origin("epsilon", "epsilon_high"))
        source.copy("delta", "loss.dual_clip")
    elif objective == "cispo":
        cap = low if high is None else high
        draft.set("loss.cispo_cap", cap, source.origin("epsilon_high"))
        draft.notes.append(f"loss_type cispo caps the ratio itself at {cap:g}, as in TRL")
    options = {
        "sapo": {"sapo_temperature_neg": "sapo_tau_negative", "sapo_temperature_pos": "sapo_tau_positive"},
        "vespo": {
            f"vespo_{name}_{short}": f"vespo_{name}_{sign}"
            for name in ("k", "lambda")
            for short, sign in (("pos", "positive"), ("neg", "negative"))
        },
    }
    for kind, names in options.items():
        for name, ours in names.items():
            value = source[name]
            if objective == kind:
                draft.set(f"loss.{ours}", value, source.origin(name))
    unused = [name for name in ("epsilon", "epsilon_high", "delta") if source.is_set(name)]
    if objective in ("sapo", "vespo") and unused:
        draft.notes.append(f"{', '.join(unused)}: {objective} does not clip")


def _kl(source: Source, draft: Draft) -> None:
    beta, corrected = source["beta"] or 0.0, source["use_bias_correction_kl"]
    draft.set("kl.coef", beta, source.origin("beta"))
    every, alpha, syncs = source["ref_model_sync_steps"], source["ref_model_mixup_alpha"], source["sync_ref_model"]
    if not beta:
        return
    draft.set("kl.gradient", "bias_corrected" if corrected else "plain", source.origin("use_bias_correction_kl"))
    if syncs:
        per_step = source["num_iterations"] * draft.values.get("grpo.num_mini_batches", 1)
        draft.set("kl.reference_update_steps", max(1, every // per_step), source.origin("ref_model_sync_steps"))
        draft.set("kl.reference_alpha", alpha, source.origin("ref_model_mixup_alpha"))


def _correction(source: Source, draft: Draft) -> None:
    is_on, mode = source["vllm_importance_sampling_correction"], source["vllm_importance_sampling_mode"]
    high, low = source["vllm_importance_sampling_clip_max"], source["vllm_importance_sampling_clip_min"]
    origin = source.origin("vllm_importance_sampling_correction", "vllm_importance_sampling_mode")
    if not is_on:
        draft.set("correction.weight", "none", origin)
        return
    level, _, how = mode.partition("_")
    if level not in ("token", "sequence") or how not in ("truncate", "mask"):
        draft.refuse("vllm_importance_sampling_mode", mode, "must be token or sequence, then _truncate or _mask")
        return
    draft.set("correction.weight", level, origin)
    draft.set("correction.weight_high", high or 1e6, source.origin("vllm_importance_sampling_clip_max"))
    if low:
        source.copy("vllm_importance_sampling_clip_min", "correction.weight_low")
    if how == "mask":
        test: dict[str, Any] = {"statistic": "ratio", "level": "token" if level == "token" else "sequence_sum"}
        test |= {name: bound for name, bound in (("low", low), ("high", high)) if bound}
        draft.set("correction.filters", [test], origin)


def _advantage(source: Source, draft: Draft) -> None:
    scale, many = source["scale_rewards"], source["multi_objective_aggregation"]
    origin, scale = source.origin("scale_rewards"), str(scale).lower()
    names = {"group": "group_std", "true": "group_std", "batch": "batch_std", "none": "none", "false": "none"}
    if scale not in names:
        draft.refuse("scale_rewards", scale, "Shoal supports only group, batch, none")
        return
    options = {"baseline": "group_mean", "scale": names[scale], "std_ddof": 1, "std_eps": 1e-4}
    for name, value in options.items():
        draft.set(f"advantage.{name}", value, origin)
    # TRL's sum skips the reward functions that return None.
    draft.set("advantage.partial_rewards", True, source.origin("multi_objective_aggregation"))
    if many == "normalize_then_sum":
        draft.set("advantage.per_verifier", True, source.origin("multi_objective_aggregation"))
        draft.set("advantage.batch_normalize", True, source.origin("multi_objective_aggregation"))
    elif many != "sum_then_normalize":
        draft.refuse("multi_objective_aggregation", many, "must be sum_then_normalize or normalize_then_sum")
