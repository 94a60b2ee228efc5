"""What `run.deterministic` asks of the other tables."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shoal.config.run import RunConfig


def check_deterministic(config: "RunConfig") -> None:
    """Raises `ValueError` for settings with which a resumed run would not equal one that was never interrupted."""
    if not config.run.deterministic:
        return
    generator, learner = config.generator, config.learner
    wrong = {
        "run.num_threads, for example 1: the order in which numbers are added depends on the number of threads": (
            config.run.num_threads is None
        ),
        f"grpo.max_staleness 0 (it is {config.grpo.max_staleness}): above 0, completions meet new weights at a moment "
        "that no two runs share": config.grpo.max_staleness > 0,
        f"environments.max_episodes {_num_episodes(config)} for every environment, as many as are played at once: an "
        "episode takes its turns together with all others": any(
            environment.max_episodes < _num_episodes(config) for environment in config.environments
        ),
        f'generator.dtype "float32" (it is "{generator.dtype}")': generator.dtype != "float32",
        f'learner.compute_dtype "float32" (it is "{learner.compute_dtype}")': learner.compute_dtype != "float32",
        f'weights.dtype "auto" or "float32" (it is "{config.weights.dtype}")': config.weights.dtype
        not in ("auto", "float32"),
        f'weights.backend "auto" or "gloo" (it is "{config.weights.backend}"), since it runs on CPUs': (
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
        "launch.single_gpu false, since it runs on CPUs": config.launch.single_gpu,
        "generator.sleep_while_training false, since it runs on CPUs": generator.sleep_while_training,
    }
    if needed := [need for need, is_wrong in wrong.items() if is_wrong]:
        raise ValueError(f"run.deterministic needs {'; and '.join(needed)}")


def _num_episodes(config: "RunConfig") -> int:
    """Returns how many episodes may be under way at once; 0 for a run without any."""
    if not config.plays_episodes:
        return 0
    in_training = config.grpo.groups_per_step * (config.grpo.group_size + 1)
    return in_training + config.evaluation.num_prompts * config.evaluation.samples_per_prompt * bool(
        config.evaluation.sources
    )
