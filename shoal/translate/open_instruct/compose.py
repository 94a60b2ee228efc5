"""Settings that several of open-instruct's flags decide together."""

import math
from typing import Any

from shoal.translate.open_instruct.chat_template import set_chat_template
from shoal.translate.open_instruct.data import compose_data, compose_evaluation, num_steps
from shoal.translate.open_instruct.episodes import compose_episodes
from shoal.translate.open_instruct.reward import compose_judge, compose_reward
from shoal.translate.shared.draft import Draft, Source
from shoal.translate.shared.setters import run_name, set_scheduler, set_trust

_REFILLS = 100
_UNBOUNDED = 1_000_000
"""The steps between checkpoints if open-instruct writes none, and the checkpoints to keep if it keeps all."""
_WHOLE_GPU, _SHARED_GPU = 0.9, 0.4
_TORCH_DECAY = 0.01
_MAX_LOG_RATIO = 10.0
"""The bound to which open-instruct clamps the log-ratio of its correction."""
_MASKS = ("rho_mask_lower_bound", "rho_mask_upper_bound", "rho_mask_sequence_level", "rho_mask_tv_divergence")
_RHO = ("use_rho_correction", "rho_clamp_lower_bound", "rho_clamp_upper_bound", *_MASKS)


def compose(source: Source, draft: Draft) -> None:
    """Sets the fields that no single flag decides."""
    _run(source, draft)
    set_chat_template(source, draft)
    _tracking(source, draft)
    _ranks(source, draft)
    _schedule(source, draft)
    _weight_decay(source, draft)
    _kl(source, draft)
    _loss(source, draft)
    _correction(source, draft)
    _advantage(source, draft)
    common = compose_data(source, draft, compose_episodes(source, draft))
    compose_reward(source, draft)
    compose_judge(source, draft)
    compose_evaluation(source, draft, common)
    _checkpoints(source, draft)


def _run(source: Source, draft: Draft) -> None:
    draft.set("run.name", run_name(source["exp_name"]), source.origin("exp_name"))
    if source.is_set("output_dir"):
        draft.notes.append(f"output_dir = {source['output_dir']}: Shoal creates run folders below --data-dir")
    model, tokenizer = source["model_name_or_path"], source["tokenizer_name_or_path"]
    if model:
        source.copy("model_name_or_path", "model.path")
    set_trust(source, draft, "trust_remote_code")
    if tokenizer and tokenizer != model:
        source.copy("tokenizer_name_or_path", "model.tokenizer")
    _pack(source, draft)
    source.copy("active_sampling", "grpo.active_sampling")
    if source["active_sampling"]:
        draft.set("grpo.max_refills", _REFILLS, source.origin("active_sampling"))
        if not source["filter_zero_std_samples"]:
            reason = "requires filter_zero_std_samples, since it replaces the groups that this field drops"
            draft.refuse("active_sampling", True, reason)


def _pack(source: Source, draft: Draft) -> None:
    """Sets the length of packed rows, for which the earlier trainer had no setting."""
    pack, longest = source["pack_length"], source["max_prompt_token_length"] + source["response_length"]
    if source["local_rollout_batch_size"] is not None and not source.is_set("pack_length"):
        draft.set("learner.pack_tokens", longest, source.origin("max_prompt_token_length", "response_length"))
        return
    if pack < longest:
        reason = f"must be at least max_prompt_token_length + response_length ({longest}), as open-instruct requires"
        draft.refuse("pack_length", pack, reason)
    source.copy("pack_length", "learner.pack_tokens")


def _tracking(source: Source, draft: Draft) -> None:
    names = {"wandb_project": "wandb_project", "wandb_entity": "wandb_entity", "wandb_group_name": "wandb_group"}
    for name, ours in names.items():
        if source[name] and source["with_tracking"]:
            source.copy(name, f"tracking.{ours}")
        else:
            source.note_unused(name, why="changes nothing without with_tracking")


def _schedule(source: Source, draft: Draft) -> None:
    name = "lr_scheduler_type"
    scheduler = source[name]
    set_scheduler(draft, scheduler, source.origin(name), field=name, learning_rate=source["learning_rate"])
    steps, ratio = source["warm_up_steps"], source["warmup_ratio"]
    # The draft lacks unreadable values, which are refused.
    mini_batches = draft.values.get("grpo.num_mini_batches") or 1
    total = num_steps(source, draft) * source["num_epochs"] * mini_batches
    warmup = int(total * ratio) if ratio > 0 else steps
    if ratio > 0:
        source.note_unused("warm_up_steps", why="warmup_ratio takes precedence, as in open-instruct")
    if scheduler == "constant" and warmup:
        draft.notes.append(
            f"the warm-up of {warmup} steps is left out: with a constant schedule grpo_fast.py has none; to warm up as "
            f"grpo.py does, --set learner.lr_scheduler=constant_with_warmup --set learner.warmup_steps={warmup}"
        )
    elif warmup:
        names = ("warmup_ratio", "total_episodes") if ratio > 0 else ("warm_up_steps",)
        draft.set("learner.warmup_steps", warmup, source.origin(*names))


def _weight_decay(source: Source, draft: Draft) -> None:
    """Sets the weight decay as open-instruct's code applies it, which differs from the name of the flag."""
    decay, flag = source["weight_decay"], "set_weight_decay_on_bias_and_norm"
    if source[flag]:
        source.copy("weight_decay", "learner.weight_decay")
        if decay:
            draft.set("learner.weight_decay_on_bias_and_norm", False, source.origin(flag))
            draft.notes.append(f"{flag} = true: biases and norms have no weight decay, as in open-instruct")
        return
    draft.set("learner.weight_decay", _TORCH_DECAY, source.origin(flag))
    draft.notes.append(
        f"{flag} = false: open-instruct then leaves the weight decay of all parameters to torch's AdamW, whose default "
        f"is {_TORCH_DECAY}; weight_decay = {decay:g} changes nothing"
    )


def _ranks(source: Source, draft: Draft) -> None:
    ranks = sum(source["num_learners_per_node"])
    draft.set("launch.num_learner_ranks", ranks, source.origin("num_learners_per_node"))
    _batches_per_rank(source, draft, ranks)
    if (source["fsdp_shard_degree"] or 1) > 1 and not source.is_set("deepspeed_stage"):
        draft.set("learner.zero_stage", 3, source.origin("fsdp_shard_degree"))
    if source["single_gpu_mode"] and source["vllm_gpu_memory_utilization"] >= _WHOLE_GPU:
        # This leaves nothing for a learner on the same GPU.
        draft.set("generator.gpu_memory_utilization", _SHARED_GPU, source.origin("single_gpu_mode"))
        source.note_unused(
            "vllm_gpu_memory_utilization",
            why=f"this leaves the learner no memory, so {_SHARED_GPU} is used: set generator.gpu_memory_utilization",
        )
    zpg, stage = source["deepspeed_zpg"], source["deepspeed_stage"]
    if stage == 3 and zpg > 1 and ranks > 1 and (source.is_set("deepspeed_zpg") or ranks % zpg == 0):
        source.copy("deepspeed_zpg", "learner.zero_hpz_partition_size")
    elif source.is_set("deepspeed_zpg") and zpg > 1:
        draft.notes.append(f"deepspeed_zpg = {zpg} changes nothing here: it needs ZeRO stage 3 and several ranks")


def _batches_per_rank(source: Source, draft: Draft, ranks: int) -> None:
    """Sets the sizes that the earlier trainer counted per rank: prompts of a rollout, completions of a mini-batch."""
    prompts, completions = source["local_rollout_batch_size"], source["local_mini_batch_size"]
    if prompts is not None:
        origin = source.origin("local_rollout_batch_size", "num_learners_per_node")
        draft.set("grpo.groups_per_step", prompts * ranks, origin)
        draft.notes.append(
            f"local_rollout_batch_size = {prompts}: an earlier trainer counted prompts per rank; its defaults may "
            "differ from the defaults used here: to use them, give a clone of that version by --checkout DIR"
        )
    if completions is None:
        return
    of_rank = (prompts or 0) * source["num_samples_per_prompt_rollout"]
    if not prompts or completions < 1 or of_rank % completions:
        reason = f"must divide local_rollout_batch_size x num_samples_per_prompt_rollout ({of_rank})"
        draft.refuse("local_mini_batch_size", completions, reason, cure="grpo.num_mini_batches")
        return
    names = ("local_rollout_batch_size", "num_samples_per_prompt_rollout", "local_mini_batch_size")
    draft.set("grpo.num_mini_batches", of_rank // completions, source.origin(*names))


def _kl(source: Source, draft: Draft) -> None:
    beta, loads = source["beta"], source["load_ref_policy"]
    source.copy("beta", "kl.coef")
    if not loads:
        draft.set("kl.reference", "never", source.origin("load_ref_policy"))
        if beta:
            reason = f"without a reference policy beta must be 0 (it is {beta:g}): change one of them"
            draft.refuse("load_ref_policy", False, reason)
    elif not beta and source.is_set("load_ref_policy"):
        draft.set("kl.reference", "always", source.origin("load_ref_policy"))
    needed = beta > 0 or draft.values.get("kl.reference") == "always"
    if needed:
        draft.set("kl.input_clamp", 40.0, source.origin("beta"))
    else:
        # The estimator and its related settings do nothing without a reference.
        draft.set("kl.estimator", None, source.origin("kl_estimator"))
    every, alpha = source["ref_policy_update_freq"], source["alpha"]
    if every and alpha and needed:
        source.copy("ref_policy_update_freq", "kl.reference_update_steps")
        source.copy("alpha", "kl.reference_alpha")
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
    if not source.is_set("truncated_importance_sampling_ratio_cap") and any(map(source.is_set, _RHO)):
        cap = None  # This is a default, which the newer flags override.
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
            draft.refuse(name, bound, f"must be {'below' if below else 'above'} 1, or 0 for no bound")
    if not is_on:
        name = "use_rho_correction" if cap != 0 else "truncated_importance_sampling_ratio_cap"
        draft.set("correction.weight", "none", source.origin(name))
        return
    if source["use_vllm_logprobs"]:
        reason = (
            "with the engine's log-probabilities as the ratio's baseline, there is nothing to correct: set "
            "use_rho_correction to false, as open-instruct also requires"
        )
        draft.refuse("use_vllm_logprobs", True, reason)
        return
    level = "geometric" if by_sequence and not by_tv else "token"
    draft.set("correction.weight", level, source.origin("use_rho_correction", "rho_mask_sequence_level"))
    if lower > 0:
        source.copy("rho_clamp_lower_bound", "correction.weight_low")
    highest = upper if upper and upper > 0 else round(math.exp(_MAX_LOG_RATIO), 3)
    draft.set("correction.weight_high", highest, source.origin(upper_name))
    bounds = {name: bound for name, bound in (("low", mask_low), ("high", mask_high)) if bound > 0}
    if bounds:
        test: dict[str, Any] = {"statistic": "tv" if by_tv else "ratio"}
        test["level"] = "sequence_mean" if by_tv or by_sequence else "token"
        test |= {"only_harmful": True} if by_tv else {}
        draft.set("correction.filters", [test | bounds], source.origin(*_MASKS))


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
        draft.refuse("advantage_normalization_type", how, "Shoal supports only centered and standard")


def _checkpoints(source: Source, draft: Draft) -> None:
    folder, every, exports = source["checkpoint_state_dir"], source["checkpoint_state_freq"], source["save_freq"]
    if folder and every <= 0:
        draft.refuse("checkpoint_state_dir", folder, f"needs checkpoint_state_freq above 0 (it is {every})")
    if folder:
        draft.notes.append(
            f"checkpoint_state_dir = {folder}: Shoal keeps checkpoints in the run's folder, below --data-dir"
        )
    draft.set("checkpoint.every_steps", every if every > 0 else _UNBOUNDED, source.origin("checkpoint_state_freq"))
    draft.set("checkpoint.export_every_steps", max(0, exports), source.origin("save_freq"))
    _mirror(source, draft)
    keep, origin = source["keep_last_n_checkpoints"], source.origin("keep_last_n_checkpoints")
    keeps_all = keep is None or keep < 1
    draft.set("checkpoint.keep_last", _UNBOUNDED if keeps_all else keep, origin)
    draft.set("checkpoint.export_keep_last", 0 if keeps_all else keep, origin)


def _mirror(source: Source, draft: Draft) -> None:
    states, models = source["gs_checkpoint_state_dir"], source["gs_bucket_path"]
    name, url = ("gs_checkpoint_state_dir", states) if states else ("gs_bucket_path", models)
    if states:
        source.note_unused("gs_bucket_path", why="gs_checkpoint_state_dir names the mirror instead")
    if url and not url.startswith("gs://"):
        draft.refuse(name, url, "must begin with gs://")
    elif url:
        draft.set("checkpoint.mirror", url, source.origin(name))
