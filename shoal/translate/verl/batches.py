"""verl's batches, GPUs, steps and pace."""

import math

from shoal.translate.shared.draft import Draft, Origin, Source
from shoal.translate.verl.names import ACTOR, ROLLOUT, trainer_of

_REQUIRED, _SYNCS = "async_training.require_batches", "async_training.trigger_parameter_sync_step"
_STALENESS, _PARTIAL = "async_training.staleness_threshold", "async_training.partial_rollout"
_SAMPLED = "rollout.total_rollout_steps"
_SYNC_STEP = "trainer.v1.separate_async.parameter_sync_step"
_MODE, _SPAN = "trainer.v1.trainer_mode", "trainer.v1.sampler.max_off_policy_threshold"

_FILTERS = {None: "reward", "acc": "correct", "score": "correct", "seq_reward": "reward", "seq_final_reward": "reward"}
"""Values of `grpo.filter_groups_by`, by verl's metric. `acc` and `score` lack the overlong penalty."""


def compose_batches(source: Source, draft: Draft) -> None:
    """Sets mini-batches, GPUs, steps, checkpoints and refills."""
    if trainer_of(source["program"]) == "fully_async":
        _asynchronous_batches(source, draft)
    else:
        _batches(source, draft)
        unused = (_REQUIRED, _SYNCS, _STALENESS, _PARTIAL, _SAMPLED)
        source.note_unused(*unused, why="only fully_async_main uses it")
    tokens, shared = f"{ACTOR}.ppo_max_token_len_per_gpu", f"{ACTOR}.ulysses_sequence_parallel_size"
    if source[f"{ACTOR}.use_dynamic_bsz"]:
        origin = source.origin(tokens, *([shared] if source.is_set(shared) else []))
        draft.set("learner.pack_tokens", source[tokens] * max(1, source[shared]), origin)
    else:
        source.note_unused(tokens, why="changes nothing without use_dynamic_bsz")
    _place(source, draft)
    _pace(source, draft)
    saves = source["trainer.save_freq"]
    draft.set("checkpoint.every_steps", saves if saves > 0 else 50, source.origin("trainer.save_freq"))
    _filter_groups(source, draft)


def _filter_groups(source: Source, draft: Draft) -> None:
    """Sets the filter of groups with equal values of verl's metric, and the number of groups that replace them."""
    names = [f"algorithm.filter_groups.{name}" for name in ("enable", "max_num_gen_batches", "metric")]
    enable, refills, metric = names
    is_on, num_refills, by = (source[name] for name in names)
    if not is_on:
        source.note_unused(refills, metric, why="changes nothing without filter_groups.enable")
        return
    draft.set("grpo.keep_zero_signal", False, source.origin(enable))
    draft.set("grpo.max_refills", num_refills if num_refills > 0 else 100, source.origin(refills))
    if by not in _FILTERS:
        known = ", ".join(filter(None, _FILTERS))
        draft.refuse(metric, by, f"Shoal supports only {known}", cure="grpo.filter_groups_by")
    else:
        draft.set("grpo.filter_groups_by", _FILTERS[by], source.origin(metric))


def schedule_steps(source: Source) -> int:
    """Returns how often verl's learning rate schedule advances in one train step of Shoal."""
    if trainer_of(source["program"]) == "fully_async":
        return int(source[_SYNCS])
    return int(source[_SYNC_STEP]) if source[_MODE] == "separate_async" else 1


def _batches(source: Source, draft: Draft) -> None:
    prompts, mini = source["data.train_batch_size"], source[f"{ACTOR}.ppo_mini_batch_size"]
    origin = source.origin("data.train_batch_size", f"{ACTOR}.ppo_mini_batch_size")
    if mini < 1 or prompts % mini:
        draft.refuse(f"{ACTOR}.ppo_mini_batch_size", mini, f"must divide data.train_batch_size ({prompts})")
    else:
        draft.set("grpo.num_mini_batches", prompts // mini, origin)
    if source["trainer.total_training_steps"]:
        source.copy("trainer.total_training_steps", "run.num_steps")
        source.note_unused("trainer.total_epochs", why="trainer.total_training_steps ends the run")
    else:
        source.copy("trainer.total_epochs", "run.total_epochs")


def _asynchronous_batches(source: Source, draft: Draft) -> None:
    """Sets the size of a train step: what fully_async_main trains on between two publishes."""
    mini, batches = source[f"{ACTOR}.ppo_mini_batch_size"], source[_REQUIRED] * source[_SYNCS]
    if mini < 1 or batches < 1:
        draft.refuse(_REQUIRED, source[_REQUIRED], f"must be at least 1, as {_SYNCS} and ppo_mini_batch_size must")
        return
    origin = source.origin(f"{ACTOR}.ppo_mini_batch_size", _REQUIRED, _SYNCS)
    draft.set("grpo.groups_per_step", mini * batches, origin)
    draft.set("grpo.num_mini_batches", batches, origin)
    source.note_unused("data.train_batch_size", why="fully_async_main uses ppo_mini_batch_size instead")
    if sampled := source[_SAMPLED]:
        draft.set("run.num_steps", max(1, sampled // (mini * batches)), source.origin(_SAMPLED))
        source.note_unused("trainer.total_epochs", why=f"{_SAMPLED} ends the run, unless the data end before")
    else:
        source.copy("trainer.total_epochs", "run.total_epochs")
    source.note_unused("trainer.total_training_steps", why=f"fully_async_main counts prompts instead, by {_SAMPLED}")


def _place(source: Source, draft: Draft) -> None:
    nodes, gpus = source["trainer.nnodes"], source["trainer.n_gpus_per_node"]
    draft.set("launch.num_learner_ranks", nodes * gpus, source.origin("trainer.nnodes", "trainer.n_gpus_per_node"))
    tensor = max(1, source[f"{ROLLOUT}.tensor_model_parallel_size"])
    own_nodes, own_gpus = source[f"{ROLLOUT}.nnodes"], source[f"{ROLLOUT}.n_gpus_per_node"] or gpus
    if own_nodes > 0:
        origin = source.origin(f"{ROLLOUT}.nnodes", f"{ROLLOUT}.n_gpus_per_node")
        draft.set("launch.num_generators", max(1, own_nodes * own_gpus // tensor), origin)
    else:
        draft.set("launch.num_generators", max(1, nodes * gpus // tensor), source.origin("trainer.n_gpus_per_node"))
        source.note_unused(f"{ROLLOUT}.n_gpus_per_node", why="counts only with rollout.nnodes")
        draft.notes.append(
            "verl's engines and learners take turns on the same GPUs; in Shoal each has its own GPUs: check "
            "launch.num_generators and launch.num_learner_ranks"
        )
    draft.set("learner.zero_stage", 3, Origin("verl's engines share parameters, gradients and optimizer", False))
    name = f"{ACTOR}.fsdp_config.param_offload"
    if source[name] and not source[f"{ACTOR}.fsdp_config.optimizer_offload"]:
        why = "learner.offload_parameters needs learner.offload_optimizer too: set both if memory is short"
        source.note_unused(name, why=why)
    else:
        source.copy(name, "learner.offload_parameters")


def _pace(source: Source, draft: Draft) -> None:
    """Sets the staleness, which is 0 unless one of verl's asynchronous trainers samples during training."""
    mode = source[_MODE]
    warmups = [f"trainer.v1.{name}.num_warmup_batches" for name in ("colocate_async", "separate_async")]
    trainer = trainer_of(source["program"])
    if trainer != "ppo" or mode != "separate_async":
        source.note_unused(_SYNC_STEP, why="only trainer.v1.trainer_mode=separate_async uses it")
    else:
        why = "verl publishes after so many mini-batches, which are one train step in Shoal"
        source.note_unused(_SYNC_STEP, why=why)
    if trainer != "ppo":
        source.note_unused(_MODE, _SPAN, *warmups, why=f"the trainer {trainer} has its own pace")
    if trainer == "fully_async":
        draft.set("grpo.max_staleness", math.ceil(source[_STALENESS]), source.origin(_STALENESS))
        source.copy(_PARTIAL, "weights.inflight_updates")
        return
    if trainer == "one_step_off":
        draft.set("grpo.max_staleness", 1, source.origin("program"))
        draft.set("weights.inflight_updates", False, source.origin("program"))
        return
    if mode not in ("sync", "colocate_async", "separate_async"):
        draft.refuse(_MODE, mode, "must be sync, colocate_async or separate_async", cure="grpo.max_staleness")
        return
    if mode == "sync":
        source.note_unused(_SPAN, *warmups, why="the trainer is synchronous")
        draft.set("grpo.max_staleness", 0, source.origin(_MODE))
        return
    warmup = f"trainer.v1.{mode}.num_warmup_batches"
    source.note_unused(*(name for name in warmups if name != warmup), why=f"changes nothing with the mode {mode}")
    # A completion that is trained on in the step that sampled it spans one version.
    bound = min(math.ceil(source[warmup]), max(0, source[_SPAN] - 1))
    draft.set("grpo.max_staleness", bound, source.origin(_MODE, warmup, _SPAN))
    draft.notes.append(f"{_MODE} = {mode}: weights are published after every step; grpo.max_staleness bounds staleness")
