"""verl's batches, GPUs and steps."""

from shoal.translate.shared.draft import Draft, Origin, Source
from shoal.translate.verl.names import ACTOR, ROLLOUT


def compose_batches(source: Source, draft: Draft) -> None:
    """Sets mini-batches, GPUs, steps, checkpoints and refills."""
    prompts, mini = source["data.train_batch_size"], source[f"{ACTOR}.ppo_mini_batch_size"]
    origin = source.origin("data.train_batch_size", f"{ACTOR}.ppo_mini_batch_size")
    if mini < 1 or prompts % mini:
        draft.refuse(f"{ACTOR}.ppo_mini_batch_size", mini, f"must divide data.train_batch_size ({prompts})")
    else:
        draft.set("grpo.num_mini_batches", prompts // mini, origin)
    dynamic, tokens = source[f"{ACTOR}.use_dynamic_bsz"], source[f"{ACTOR}.ppo_max_token_len_per_gpu"]
    if dynamic:
        draft.set("learner.pack_tokens", tokens, source.origin(f"{ACTOR}.ppo_max_token_len_per_gpu"))
    nodes, gpus = source["trainer.nnodes"], source["trainer.n_gpus_per_node"]
    draft.set("launch.num_learner_ranks", nodes * gpus, source.origin("trainer.nnodes", "trainer.n_gpus_per_node"))
    tensor = source[f"{ROLLOUT}.tensor_model_parallel_size"]
    draft.set("launch.num_generators", max(1, nodes * gpus // max(1, tensor)), source.origin("trainer.n_gpus_per_node"))
    draft.notes.append(
        "verl's engines and learners take turns on the same GPUs; here each has its own: check launch.num_generators "
        "and launch.num_learner_ranks"
    )
    draft.set("learner.zero_stage", 3, Origin("verl's engines share parameters, gradients and optimizer", False))
    _pace(source, draft)
    steps, epochs = source["trainer.total_training_steps"], source["trainer.total_epochs"]
    if steps:
        draft.set("run.num_steps", steps, source.origin("trainer.total_training_steps"))
        source.note_unused(draft, "trainer.total_epochs", why="trainer.total_training_steps ends the run")
    else:
        draft.set("run.total_epochs", epochs, source.origin("trainer.total_epochs"))
    saves = source["trainer.save_freq"]
    draft.set("checkpoint.every_steps", saves if saves > 0 else 50, source.origin("trainer.save_freq"))
    refills = source["algorithm.filter_groups.max_num_gen_batches"]
    if source["algorithm.filter_groups.enable"]:
        draft.set("grpo.keep_zero_signal", False, source.origin("algorithm.filter_groups.enable"))
        draft.set(
            "grpo.max_refills",
            refills if refills > 0 else 100,
            source.origin("algorithm.filter_groups.max_num_gen_batches"),
        )


def _pace(source: Source, draft: Draft) -> None:
    """Sets the staleness: 0 unless one of verl's asynchronous trainers samples while it trains."""
    name, bound = "trainer.v1.trainer_mode", "trainer.v1.sampler.max_off_policy_threshold"
    mode, threshold = source[name], source[bound]
    if mode not in ("sync", "colocate_async", "separate_async"):
        draft.refuse(name, mode, "known: sync, colocate_async, separate_async", cure="grpo.max_staleness")
        return
    if mode == "sync":
        source.note_unused(draft, bound, why="the trainer is synchronous")
        draft.set("grpo.max_staleness", 0, source.origin(name))
        return
    draft.set("grpo.max_staleness", max(1, threshold), source.origin(name, bound))
    draft.notes.append(
        f"{name} = {mode}: weights are published after every step, and no group is staler than the bound"
    )
