"""Checks that tables fit together. Each function raises `ValueError` for tables that do not fit."""

from collections.abc import Callable, Collection

from shoal.config.run_tables import RunTables
from shoal.config.tables.episodes import PARSERS_THAT_STOP
from shoal.config.tables.generator import ADAPTER_RANKS


def check_fits(config: RunTables) -> None:
    """Raises `ValueError` for the first reason for which the tables do not fit together."""
    for check in _CHECKS:
        check(config)


def _check_context(config: RunTables) -> None:
    given = config.generator.max_model_len
    longest = config.data.max_prompt_tokens + config.max_completion_tokens
    if given is not None and given < longest:
        table = "sampling" if longest == config.max_sequence_tokens else "evaluation"
        raise ValueError(
            f"generator.max_model_len ({given}) must be at least data.max_prompt_tokens + "
            f"{table}.max_completion_tokens ({longest}): raise generator.max_model_len, or leave this field unset"
        )


def _check_queues(config: RunTables) -> None:
    # A group that does not fit would be refused and retried until its deadline.
    generator, reward = config.generator, config.reward
    for names, room in (
        (
            "generator.max_num_seqs + generator.max_queued_requests",
            generator.max_num_seqs + generator.max_queued_requests,
        ),
        ("reward.num_processes + reward.max_queued", reward.num_processes + reward.max_queued),
    ):
        if room < config.grpo.group_size:
            raise ValueError(
                f"{names} ({room}) must be at least grpo.group_size ({config.grpo.group_size}): a service accepts "
                "the completions of a group together"
            )
        if config.evaluation.sources and room < config.evaluation.samples_per_prompt:
            raise ValueError(
                f"{names} ({room}) must be at least evaluation.samples_per_prompt "
                f"({config.evaluation.samples_per_prompt}): a service accepts the answers to a question together"
            )


def _check_algorithm(config: RunTables) -> None:
    if config.grpo.group_size == 1 and config.advantage.baseline in ("group_mean", "leave_one_out", "second_best"):
        raise ValueError(
            f"grpo.group_size: must be at least 2 with advantage.baseline {config.advantage.baseline!r} (given: 1): a "
            "group of one completion has no other completion to compare with"
        )
    if config.advantage.per_verifier and config.kl.place == "reward" and config.kl.reward_level == "completion":
        raise ValueError(
            'kl.reward_level "completion" subtracts the KL from the reward of a completion, but with '
            'advantage.per_verifier there is no single reward: set kl.reward_level to "token"'
        )
    for name, is_on in (
        ("advantage.per_verifier", config.advantage.per_verifier),
        ("advantage.partial_rewards", config.advantage.partial_rewards),
    ):
        if is_on and config.reward.shapes:
            raise ValueError(
                f"{name} uses the verifiers' values one by one, before [reward] combines them: leave the fields of "
                "[reward] that change the sum (verification_reward, format, overlong, length and others) at their "
                "defaults, and name r1_format, soft_overlong or repetition_penalty as verifiers in the data instead"
            )
    if config.correction.is_on and config.loss.baseline == "behavior":
        raise ValueError(
            "loss.baseline: correction compares the proximal policy with the behavior policy: set "
            'loss.baseline to "proximal"; with "behavior" the ratio itself already uses the engine\'s probabilities'
        )


def _check_overlong(config: RunTables) -> None:
    overlong = config.reward.overlong
    limit = overlong.max_length_tokens or config.sampling.max_completion_tokens
    if overlong.factor and overlong.buffer_tokens > limit:
        field = "reward.overlong.max_length_tokens" if overlong.max_length_tokens else "sampling.max_completion_tokens"
        raise ValueError(
            f"reward.overlong.buffer_tokens ({overlong.buffer_tokens}) must be at most {field} ({limit}): "
            "otherwise even an empty completion is punished for its length"
        )


def _check_best_metrics(config: RunTables) -> None:
    """Raises `ValueError` if a metric of evaluations chooses among checkpoints or exports that are not evaluated."""
    settings, evaluation = config.checkpoint, config.evaluation
    for name, metric, every_steps, kind in (
        ("best_metric", settings.best_metric, settings.every_steps, "every_steps"),
        ("export_best_metric", settings.export_best_metric, settings.export_every_steps, "export_every_steps"),
    ):
        every = evaluation.every_steps
        if metric.startswith("eval/") and (not evaluation.sources or not every or every_steps % every):
            raise ValueError(
                f"checkpoint.{name} {metric!r} is measured in evaluations, so only an evaluated step has this metric: "
                f"set evaluation.sources, and evaluation.every_steps to a divisor of checkpoint.{kind} ({every_steps}; "
                f"given: {every})"
            )
    if settings.best_metric.startswith("eval/") and settings.keep_last < 2:
        raise ValueError(
            f"checkpoint.keep_last must be at least 2 with best_metric {settings.best_metric!r} (given: 1): a "
            "checkpoint is written before its policy is evaluated"
        )


def _check_mini_batches(config: RunTables) -> None:
    completions = config.grpo.groups_per_step // config.grpo.num_mini_batches * config.grpo.group_size
    ranks = config.data_parallel_size
    if completions < ranks:
        raise ValueError(
            f"an optimizer step has {completions} completions for {ranks} ranks, which is less than one completion per "
            "rank: raise grpo.groups_per_step, or lower launch.num_learner_ranks or grpo.num_mini_batches"
        )


def _check_ranks(config: RunTables) -> None:
    num_ranks = config.launch.num_learner_ranks
    for name in ("sequence_parallel_size", "zero_hpz_partition_size"):
        if num_ranks % getattr(config.learner, name):
            raise ValueError(
                f"learner.{name} ({getattr(config.learner, name)}) must divide the learner's ranks, "
                f"launch.num_learner_ranks ({num_ranks}): set launch.num_learner_ranks to the number of ranks that are "
                "started, also with torchrun"
            )


def _check_schedule(config: RunTables) -> None:
    config.learner.check_schedule(config.num_warmup_steps, config.num_optimizer_steps)


def _check_adapters(config: RunTables) -> None:
    """Raises `ValueError` for settings with which an engine cannot receive its policy as an adapter."""
    generator, lora, weights = config.generator, config.learner.lora, config.weights
    if generator.lora == "merged":
        return
    if not lora.is_on:
        raise ValueError(
            f'generator.lora "adapter" needs learner.lora.rank above 0 (it is {lora.rank}): otherwise the '
            "learner trains the whole model"
        )
    unfit = {
        f"learner.lora.rank {lora.rank}: vLLM takes at most {ADAPTER_RANKS[-1]}": lora.rank > ADAPTER_RANKS[-1],
        f'learner.lora.quantization "{lora.quantization}": the adapters belong to the quantized model, but '
        "generators have the original model": lora.quantization != "none",
        "generator.keep_stale_kv: each completion keeps its version and cache anyway": generator.keep_stale_kv,
        "weights.backend nccl: adapters are received while the engine's own NCCL is in use": weights.backend == "nccl",
    }
    for reason, is_so in unfit.items():
        if is_so:
            raise ValueError(
                f'generator.lora "adapter" does not go with {reason}; change this setting, or use "merged"'
            )


def _check_deterministic(config: RunTables) -> None:
    """Raises `ValueError` for settings with which a resumed run would differ from a run without interruption."""
    if not config.run.deterministic:
        return
    generator, learner = config.generator, config.learner
    wrong = {
        "run.num_threads, for example 1: the order in which numbers are added depends on the number of threads": (
            config.run.num_threads is None
        ),
        f"grpo.max_staleness 0 (it is {config.grpo.max_staleness}): above 0, completions get new weights at a "
        "moment that differs between runs": config.grpo.max_staleness > 0,
        f"environments.max_episodes of at least {_num_episodes(config)} for every environment: so many episodes may be "
        "under way at the same time, and all of them must take their turns together": any(
            environment.max_episodes < _num_episodes(config) for environment in config.environments
        ),
        f'generator.dtype "float32" (it is "{generator.dtype}")': generator.dtype != "float32",
        f'learner.compute_dtype "float32" (it is "{learner.compute_dtype}")': learner.compute_dtype != "float32",
        f'weights.dtype "auto" or "float32" (it is "{config.weights.dtype}")': config.weights.dtype
        not in ("auto", "float32"),
        f'weights.backend "auto" or "gloo" (it is "{config.weights.backend}"), since the run uses CPUs': (
            config.weights.backend == "nccl"
        ),
        f'generator.lora "merged" (it is "{generator.lora}"): an adapter is loaded while completions are sampled': (
            generator.lora != "merged"
        ),
        f'learner.lora.quantization "none" (it is "{learner.lora.quantization}")': learner.lora.quantization != "none",
        **{
            f"generator.{name} 1 (it is {getattr(generator, name)})": getattr(generator, name) > 1
            for name in ("tensor_parallel_size", "pipeline_parallel_size")
        },
        "launch.single_gpu false, since the run uses CPUs": config.launch.single_gpu,
        "generator.sleep_while_training false, since the run uses CPUs": generator.sleep_while_training,
    }
    if needed := [need for need, is_wrong in wrong.items() if is_wrong]:
        raise ValueError(f"run.deterministic needs {'; and '.join(needed)}")


def _num_episodes(config: RunTables) -> int:
    """Returns how many episodes may be under way at the same time; 0 for a run without episodes."""
    if not config.plays_episodes:
        return 0
    in_training = config.grpo.groups_per_step * (config.grpo.group_size + 1)
    return in_training + config.evaluation.num_prompts * config.evaluation.samples_per_prompt * bool(
        config.evaluation.sources
    )


def _check_episodes(config: RunTables) -> None:
    """Raises `ValueError` for settings that do not go together with episodes."""
    if not config.plays_episodes:
        return
    _check_names(config)
    limit = config.sampling.max_completion_tokens
    if config.episodes.max_turn_tokens is not None and config.episodes.max_turn_tokens > limit:
        raise ValueError(
            f"episodes.max_turn_tokens ({config.episodes.max_turn_tokens}) must be at most "
            f"sampling.max_completion_tokens ({limit}), which bounds the whole episode"
        )
    if config.episodes.call_timeout_s > config.episodes.timeout_s:
        raise ValueError(
            f"episodes.call_timeout_s ({config.episodes.call_timeout_s:g}) must be at most episodes.timeout_s "
            f"({config.episodes.timeout_s:g}), the time of a whole episode"
        )
    parser = config.episodes.tool_parser
    if config.episodes.inline_results and parser not in PARSERS_THAT_STOP and not config.sampling.stop_strings:
        raise ValueError(
            f'episodes.inline_results continues a turn after a call, but with tool_parser "{parser}" a call does not '
            f"end the sampling: use {' or '.join(map(repr, PARSERS_THAT_STOP))}; or name the end of a call in "
            "sampling.stop_strings; or leave episodes.inline_results empty, so that the chat template writes "
            "results"
        )
    advantage = config.advantage
    if config.episodes.turn_rewards == "tokens" and (
        advantage.baseline in ("greedy", "second_best", "length_weighted") or advantage.is_running
    ):
        raise ValueError(
            'episodes.turn_rewards "tokens" compares the rewards of single turns, but advantage.baseline '
            f"{advantage.baseline!r} with scale {advantage.scale!r} does not compare these rewards: use baseline "
            '"group_mean" and a scale other than "running_std", or turn_rewards "sum"'
        )


def _check_names(config: RunTables) -> None:
    """Raises `ValueError` for a source of prompts with an environment that the configuration does not have."""
    known = {environment.name for environment in config.environments}
    for section, sources in (("data", config.data.sources), ("evaluation", config.evaluation.sources)):
        for number, source in enumerate(sources):
            name = source.environment
            if name is not None and name.lower() not in known:
                known_names = f"known: {', '.join(sorted(known))}" if known else "there is none"
                raise ValueError(
                    f"{section}.sources.{number}.environment: no environment is called {name!r}; declare it under "
                    f"[[environments]] ({known_names})"
                )


def why_unfiltered(config: RunTables, verifiers: Collection[str]) -> str:
    """Returns why groups cannot be filtered by what these verifiers call correct; empty if they can, or need not be."""
    if config.grpo.filter_groups_by != "correct" or any(config.reward.says_correct(name) for name in verifiers):
        return ""
    return (
        'grpo.filter_groups_by: "correct" needs a verifier that decides what is correct, but none of '
        f'{", ".join(sorted(verifiers))} does so: set the field to "reward", or name in reward.correct the verifiers '
        'whose value of 1 means "correct"'
    )


def _check_filter(config: RunTables) -> None:
    """Raises `ValueError` if groups are filtered by correctness, and none of the verifiers that the sources name
    decides about correctness. If rows name verifiers or environments, the data decide."""
    sources = config.data.sources
    if any(source.verifier is None or source.names_environments for source in sources):
        return
    given = [name.lower() for source in sources for name in source.verifiers]
    names = {config.reward.remap.get(name, name) for name in given}
    if why := why_unfiltered(config, names):
        raise ValueError(why)


def _check_single_gpu(config: RunTables) -> None:
    if config.generator.sleep_while_training and config.grpo.max_staleness > 0:
        raise ValueError(
            f"generator.sleep_while_training needs grpo.max_staleness 0 (it is {config.grpo.max_staleness}): "
            "above 0 the generator samples while the learner trains"
        )
    if not config.launch.single_gpu:
        return
    for name, count in {
        "launch.num_learner_ranks": config.launch.num_learner_ranks,
        "launch.num_generators": config.launch.num_generators,
        "generator.tensor_parallel_size": config.generator.tensor_parallel_size,
        "generator.pipeline_parallel_size": config.generator.pipeline_parallel_size,
    }.items():
        if count > 1:
            raise ValueError(f"launch.single_gpu needs exactly one of each process: {name} is {count}; set {name} to 1")
    if config.weights.backend == "nccl":
        raise ValueError("launch.single_gpu: NCCL refuses two members on one GPU; set weights.backend to gloo or auto")
    if config.generator.gpu_memory_utilization >= 0.9:
        raise ValueError(
            "launch.single_gpu: the learner needs a part of the GPU: set generator.gpu_memory_utilization below 0.9, "
            f"for example 0.4 (it is {config.generator.gpu_memory_utilization})"
        )


def _check_reference(config: RunTables) -> None:
    if config.learner.lora.is_on and config.kl.reference_update_steps is not None:
        raise ValueError(
            "kl.reference_update_steps: with learner.lora the reference is the model without its adapters, which does "
            "not follow the policy; unset kl.reference_update_steps, or set learner.lora.rank to 0"
        )


_CHECKS: tuple[Callable[[RunTables], None], ...] = (
    _check_context,
    _check_queues,
    _check_algorithm,
    _check_overlong,
    _check_best_metrics,
    _check_mini_batches,
    _check_ranks,
    _check_schedule,
    _check_adapters,
    _check_deterministic,
    _check_episodes,
    _check_filter,
    _check_single_gpu,
    _check_reference,
)
