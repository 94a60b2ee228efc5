"""Settings that several of open-instruct's flags decide together."""

import math
from pathlib import Path
from typing import Any

from shoal.translate.open_instruct.chat_template import set_chat_template
from shoal.translate.open_instruct.judge import compose_judge
from shoal.translate.open_instruct.reward import compose_reward
from shoal.translate.shared.draft import Draft, Source
from shoal.translate.shared.run_name import run_name
from shoal.translate.shared.scheduler import set_scheduler

_REFILLS = 100
_MAX_LOG_RATIO = 10.0
"""open-instruct clamps the log-ratio of its correction to this."""


_EVALUATION = (
    "dataset_mixer_eval_list_splits",
    "local_eval_every",
    "num_evals",
    "eval_on_step_0",
    "eval_pass_at_k",
    "eval_top_p",
    "eval_response_length",
)


def compose(source: Source, draft: Draft) -> None:
    """Sets the fields that no flag decides alone."""
    _run(source, draft)
    set_chat_template(source, draft)
    _tracking(source, draft)
    _schedule(source, draft)
    _ranks(source, draft)
    _kl(source, draft)
    _loss(source, draft)
    _correction(source, draft)
    _advantage(source, draft)
    _data(source, draft)
    compose_reward(source, draft)
    compose_judge(source, draft)
    _evaluation(source, draft)
    _checkpoints(source, draft)


def _run(source: Source, draft: Draft) -> None:
    name = run_name(source["exp_name"])
    draft.set("run.name", name, source.origin("exp_name"))
    if source.is_set("output_dir"):
        draft.notes.append(f"output_dir = {source['output_dir']}: Shoal creates run folders below --data-dir")
    model, tokenizer = source["model_name_or_path"], source["tokenizer_name_or_path"]
    if model:
        draft.set("model.path", model, source.origin("model_name_or_path"))
    if source["trust_remote_code"]:
        draft.set("model.trust_remote_code", True, source.origin("trust_remote_code"))
        draft.notes.append("trust_remote_code = true: every service runs the Python code that comes with the model")
    if tokenizer and tokenizer != model:
        draft.set("model.tokenizer", tokenizer, source.origin("tokenizer_name_or_path"))
    longest = source["max_prompt_token_length"] + source["response_length"]
    if source["pack_length"] < longest:
        draft.refuse(
            "pack_length",
            source["pack_length"],
            f"must be at least max_prompt_token_length + response_length ({longest}), as open-instruct requires",
        )
    draft.set("learner.pack_tokens", source["pack_length"], source.origin("pack_length"))
    draft.set("grpo.active_sampling", source["active_sampling"], source.origin("active_sampling"))
    if source["active_sampling"]:
        draft.set("grpo.max_refills", _REFILLS, source.origin("active_sampling"))
        if not source["filter_zero_std_samples"]:
            draft.refuse(
                "active_sampling", True, "needs filter_zero_std_samples: it replaces the groups that the filter drops"
            )


def _tracking(source: Source, draft: Draft) -> None:
    names = {"wandb_project": "wandb_project", "wandb_entity": "wandb_entity", "wandb_group_name": "wandb_group"}
    for name, ours in names.items():
        if source[name] and source["with_tracking"]:
            draft.set(f"tracking.{ours}", source[name], source.origin(name))
        else:
            source.note_unused(draft, name, why="changes nothing without with_tracking")


def _schedule(source: Source, draft: Draft) -> None:
    scheduler = source["lr_scheduler_type"]
    set_scheduler(
        draft,
        scheduler,
        source.origin("lr_scheduler_type"),
        field="lr_scheduler_type",
        learning_rate=source["learning_rate"],
    )
    steps, ratio = source["warm_up_steps"], source["warmup_ratio"]
    per_step = source["num_samples_per_prompt_rollout"] * source["num_unique_prompts_rollout"]
    total = source["total_episodes"] // max(1, per_step) * source["num_epochs"] * source["num_mini_batches"]
    warmup = steps or int(total * ratio)
    if scheduler == "constant" and warmup:
        draft.notes.append(
            f"warm-up of {warmup} optimizer steps: a constant schedule has no warm-up, also in open-instruct"
        )
    elif warmup:
        names = ("warm_up_steps",) if steps else ("warmup_ratio", "total_episodes")
        draft.set("learner.warmup_steps", warmup, source.origin(*names))


def _ranks(source: Source, draft: Draft) -> None:
    ranks = sum(source["num_learners_per_node"])
    draft.set("launch.num_learner_ranks", ranks, source.origin("num_learners_per_node"))
    if source["single_gpu_mode"] and not source.is_set("vllm_gpu_memory_utilization"):
        # The default of 0.9 leaves nothing for a learner on the same GPU.
        draft.set("generator.gpu_memory_utilization", 0.4, source.origin("single_gpu_mode"))
    zpg, stage = source["deepspeed_zpg"], source["deepspeed_stage"]
    if stage == 3 and zpg > 1 and ranks > 1 and (source.is_set("deepspeed_zpg") or ranks % zpg == 0):
        draft.set("learner.zero_hpz_partition_size", zpg, source.origin("deepspeed_zpg"))
    elif source.is_set("deepspeed_zpg") and zpg > 1:
        draft.notes.append(f"deepspeed_zpg = {zpg} changes nothing here: it needs ZeRO stage 3 and several ranks")


def _kl(source: Source, draft: Draft) -> None:
    beta, loads = source["beta"], source["load_ref_policy"]
    draft.set("kl.coef", beta, source.origin("beta"))
    if not loads:
        draft.set("kl.reference", "never", source.origin("load_ref_policy"))
        if beta:
            draft.refuse(
                "load_ref_policy",
                False,
                f"without a reference policy beta must be 0 (it is {beta:g}): change one of them",
            )
    elif not beta and source.is_set("load_ref_policy"):
        draft.set("kl.reference", "always", source.origin("load_ref_policy"))
    needed = beta > 0 or draft.values.get("kl.reference") == "always"
    if needed:
        draft.set("kl.input_clamp", 40.0, source.origin("beta"))
    else:
        # The estimator and the settings beside it do nothing without a reference.
        draft.set("kl.estimator", None, source.origin("kl_estimator"))
    every, alpha = source["ref_policy_update_freq"], source["alpha"]
    if every and alpha and needed:
        draft.set("kl.reference_update_steps", every, source.origin("ref_policy_update_freq"))
        draft.set("kl.reference_alpha", alpha, source.origin("alpha"))
    elif every:
        draft.notes.append(f"ref_policy_update_freq = {every} changes nothing: there is no reference to update")


def _loss(source: Source, draft: Draft) -> None:
    name = "masked_mean_denominator" if source["masked_mean_denominator"] is not None else "loss_denominator"
    denominator = str(source[name])
    try:
        value = None if denominator == "token" else float(denominator)
    except ValueError:
        value = 0.0
    if value is not None and not value > 0:
        draft.refuse(name, denominator, 'must be "token" or a positive number')
    axis = source["masked_mean_axis"]
    if value is not None:
        draft.set("loss.aggregation", "fixed-denominator", source.origin(name))
        draft.set("loss.denominator", value, source.origin(name))
    elif axis == "1":
        draft.set("loss.aggregation", "seq-mean-token-mean", source.origin("masked_mean_axis"))
    else:
        draft.set("loss.aggregation", "token-mean", source.origin(name))
    behavior = source["use_vllm_logprobs"]
    draft.set("loss.baseline", "behavior" if behavior else "proximal", source.origin("use_vllm_logprobs"))


def _correction(source: Source, draft: Draft) -> None:
    cap = source["truncated_importance_sampling_ratio_cap"]
    upper_name = "rho_clamp_upper_bound" if cap is None else "truncated_importance_sampling_ratio_cap"
    is_on = source["use_rho_correction"] and cap != 0
    lower, upper = source["rho_clamp_lower_bound"], source[upper_name]
    mask_low, mask_high = source["rho_mask_lower_bound"], source["rho_mask_upper_bound"]
    by_sequence, by_tv = source["rho_mask_sequence_level"], source["rho_mask_tv_divergence"]
    for name, bound, below in (
        ("rho_clamp_lower_bound", lower, True),
        (upper_name, upper, False),
        ("rho_mask_lower_bound", mask_low, True),
        ("rho_mask_upper_bound", mask_high, False),
    ):
        if is_on and bound and bound > 0 and (bound >= 1) == below:
            draft.refuse(name, bound, f"must be {'below' if below else 'above'} 1, or 0 for none")
    if not is_on:
        name = "use_rho_correction" if cap != 0 else "truncated_importance_sampling_ratio_cap"
        draft.set("correction.weight", "none", source.origin(name))
        return
    if source["use_vllm_logprobs"]:
        draft.refuse(
            "use_vllm_logprobs",
            True,
            "with the engine's log-probabilities as the ratio's baseline there is nothing to correct: set "
            "use_rho_correction false, as open-instruct also requires",
        )
        return
    level = "geometric" if by_sequence and not by_tv else "token"
    draft.set("correction.weight", level, source.origin("use_rho_correction", "rho_mask_sequence_level"))
    if lower > 0:
        draft.set("correction.weight_low", lower, source.origin("rho_clamp_lower_bound"))
    highest = upper if upper and upper > 0 else round(math.exp(_MAX_LOG_RATIO), 3)
    draft.set("correction.weight_high", highest, source.origin(upper_name))
    bounds = {"low": mask_low, "high": mask_high}
    bounds = {name: bound for name, bound in bounds.items() if bound > 0}
    if bounds:
        test: dict[str, Any] = {"statistic": "tv" if by_tv else "ratio"}
        test["level"] = "sequence_mean" if by_tv or by_sequence else "token"
        if by_tv:
            test["only_harmful"] = True
        names = ("rho_mask_lower_bound", "rho_mask_upper_bound", "rho_mask_sequence_level", "rho_mask_tv_divergence")
        draft.set("correction.filters", [test | bounds], source.origin(*names))


def _advantage(source: Source, draft: Draft) -> None:
    how, origin = source["advantage_normalization_type"], source.origin("advantage_normalization_type")
    draft.set("advantage.baseline", "group_mean", origin)
    if how == "centered":
        draft.set("advantage.scale", "none", origin)
    elif how == "standard":
        draft.set("advantage.scale", "group_std", origin)
        draft.set("advantage.std_ddof", 0, origin)
        draft.set("advantage.std_eps", 1e-8, origin)
    else:
        draft.refuse("advantage_normalization_type", how, "known: centered and standard")


def _data(source: Source, draft: Draft) -> None:
    common: dict[str, Any] = {}
    for name, ours, default in (
        ("ground_truths_key", "ground_truth_column", "ground_truth"),
        ("sft_messages_key", "messages_column", "messages"),
    ):
        if source[name] != default:
            common[ours] = source[name]
    common["weight"] = source["verification_reward"]
    if prompt := source["system_prompt_override_file"]:
        try:
            common["system_prompt"] = Path(prompt).read_text(encoding="utf-8")
        except OSError:
            draft.refuse("system_prompt_override_file", prompt, "no such file here: translate on a machine that has it")
    tables = _sources(source, draft, "dataset_mixer_list", "dataset_mixer_list_splits", common)
    draft.set("data.sources", tables, source.origin("dataset_mixer_list", "verification_reward"))


def _sources(source: Source, draft: Draft, name: str, splits_name: str, common: dict[str, Any]) -> list[dict[str, Any]]:
    items, splits = source[name] or [], source[splits_name]
    if len(items) % 2:
        draft.refuse(name, items, "must alternate names and amounts")
        return []
    pairs = list(zip(items[::2], items[1::2], strict=True))
    if len(splits) == 2 * len(pairs):
        splits = splits[::2]
    if len(splits) not in (1, len(pairs)) and pairs:
        draft.refuse(splits_name, splits, f"must be one split, or one per data set ({len(pairs)})")
        return []
    tables = []
    for index, (data, amount) in enumerate(pairs):
        is_file = data.endswith((".jsonl", ".parquet"))
        table: dict[str, Any] = {"path": data} if is_file else {"dataset": data}
        split = splits[index if len(splits) > 1 else 0]
        if split != "train" and not is_file:
            table["split"] = split
        try:
            table |= {"fraction": float(amount)} if "." in amount else {"count": int(amount)}
        except ValueError:
            draft.refuse(
                name,
                f"{data} {amount}",
                "the amount must be a number: a share with a decimal point, or a count without one",
            )
            return []
        if table.get("fraction") == 1.0:
            del table["fraction"]
        tables.append(table | common)
    return tables


def _evaluation(source: Source, draft: Draft) -> None:
    tables = _sources(source, draft, "dataset_mixer_eval_list", "dataset_mixer_eval_list_splits", {})
    every, on_start, samples = source["local_eval_every"], source["eval_on_step_0"], source["eval_pass_at_k"]
    length, top_p = source["eval_response_length"], source["eval_top_p"]
    every_name, times = "local_eval_every", source["num_evals"]
    if times and times > 0 and not source.is_set("local_eval_every"):
        per_step = source["num_samples_per_prompt_rollout"] * source["num_unique_prompts_rollout"]
        every, every_name = max(1, source["total_episodes"] // max(1, per_step) // times), "num_evals"
    if on_start and every <= 0:
        draft.refuse("eval_on_step_0", True, f"needs local_eval_every above 0 (it is {every})")
    if not tables:
        if not source["dataset_mixer_eval_list"]:
            source.note_unused(draft, *_EVALUATION, why="changes nothing without dataset_mixer_eval_list")
        return
    draft.set("evaluation.sources", tables, source.origin("dataset_mixer_eval_list"))
    counts = [table.get("count") for table in tables]
    total = sum(count or 0 for count in counts) if all(counts) else 1_000_000
    draft.set("evaluation.num_prompts", total, source.origin("dataset_mixer_eval_list"))
    draft.set("evaluation.every_steps", max(0, every), source.origin(every_name))
    draft.set("evaluation.on_start", on_start, source.origin("eval_on_step_0"))
    draft.set("evaluation.samples_per_prompt", samples, source.origin("eval_pass_at_k"))
    draft.set("evaluation.temperature", source["temperature"], source.origin("temperature"))
    if length is not None:
        draft.set("evaluation.max_completion_tokens", length, source.origin("eval_response_length"))
    if top_p is not None:
        draft.set("evaluation.top_p", top_p, source.origin("eval_top_p"))
    # open-instruct also evaluates on training questions: most of its scripts name the same data for both.
    draft.set("evaluation.held_out", False, source.origin("dataset_mixer_eval_list"))


def _checkpoints(source: Source, draft: Draft) -> None:
    folder, every, exports = source["checkpoint_state_dir"], source["checkpoint_state_freq"], source["save_freq"]
    if folder and every <= 0:
        draft.refuse("checkpoint_state_dir", folder, f"needs checkpoint_state_freq above 0 (it is {every})")
    if folder:
        draft.notes.append(
            f"checkpoint_state_dir = {folder}: Shoal keeps checkpoints in the run's folder, below --data-dir"
        )
    name = "checkpoint_state_freq"
    if not source.is_set(name) and source.is_set("save_freq") and exports > 0:
        name = "save_freq"
    draft.set("checkpoint.every_steps", max(1, source[name]) if source[name] > 0 else 200, source.origin(name))
    if source.is_set("save_freq"):
        draft.notes.append(f"save_freq = {exports}: Shoal exports the model at the end of the run only")
