"""Estimates the time of a step: cost = G x generate + G x reward + update, with measured rates.

Sampling is bound by memory: for each token of the completions that an engine samples together, a GPU reads all weights
once, and the keys and values of each completion. So its rate is in bytes per second. Training is bound by arithmetic:
six operations per parameter and trained token (eight with checkpointing, which runs the forward pass twice). Both rates
transfer to other models far better than tokens per second do, but the rates are only a first guess: `shoal train`
prints the actual time of a step, and `--measured` takes the rates from such a run.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import StatisticsError, median

from shoal.config.load import parse_config
from shoal.config.run import RunConfig
from shoal.errors import InvalidArgument
from shoal.parsing import parse_json
from shoal.paths import why_unread
from shoal.quantities import counted
from shoal.suggest.memory import engine_bytes
from shoal.suggest.shape import ModelShape, model_shape

_MIN_STEPS = 3
"""The fewest steps to measure. The first step includes the start, and a single further step is not enough."""


@dataclass(frozen=True)
class Rates:
    """Rates of one device."""

    generate_bytes: float
    """Bytes per second that one generator GPU reads while it samples."""
    update_flops: float
    """Operations per second of one learner rank."""
    reward_s: float
    """Seconds of one verifier process per completion."""
    source: str
    pass_s: float = 0.0
    """Additional seconds of each forward pass of an engine, which samples a token of every completion."""
    seats_share: float = 1.0
    """Mean number of completions that an engine samples at a time, while it samples, as a share of its capacity."""
    step_s: float = 0.0
    """Other seconds of each step: reading results, publishing weights."""
    length_share: float = 0.5
    """Mean length of a completion, as a share of the maximum length."""
    prompt_share: float = 0.5
    """Mean length of a prompt, as a share of the maximum length."""
    trained_share: float = 1.0
    """Share of the completions that are trained on. These completions belong to groups with a signal."""


H100 = Rates(
    generate_bytes=2.0e12,
    pass_s=8e-3,
    seats_share=0.5,
    update_flops=4.3e13,
    reward_s=5e-4,
    source=(
        "not of your machine. Sampling: 60 % of an H100's 3.35 TB/s, 8 ms more per forward pass (as an H200 took with "
        "a model of 1.5B), and half of the completions running on average, as with lengths from 0 to the maximum. "
        "Training: the 11,900 tokens/s of prime-rl's published benchmark for 0.6B on an H100, which is 4 % of its peak "
        "arithmetic (an H200 reached 9 % with 1.5B). Scoring: 0.5 ms per completion, of which the gsm8k verifier took "
        "0.03 ms on one core, and the call may take the rest. "
        "--measured RUN uses the rates of your own run"
    ),
)


@dataclass(frozen=True)
class StepTime:
    """Seconds of one step, by part."""

    generate_s: float
    reward_s: float
    update_s: float
    other_s: float

    @property
    def synchronous_s(self) -> float:
        """Time with the parts in sequence, as at staleness 0."""
        return self.generate_s + self.reward_s + self.update_s + self.other_s

    @property
    def asynchronous_s(self) -> float:
        """Time with sampling and training in parallel, as at staleness 1 or more: the time of the slower part."""
        return max(self.generate_s + self.reward_s, self.update_s + self.other_s)


def step_time(config: RunConfig, shape: ModelShape, rates: Rates) -> StepTime:
    """Estimates the time of a step, with completions and prompts of mean length.

    Counts trained tokens as `learner_tokens_per_second_step` does: a prompt with each completion. The configuration has
    the values that the learner chooses on its device (`fit_rows`).
    """
    mean_tokens = config.sampling.max_completion_tokens * rates.length_share
    mean_prompt = config.data.max_prompt_tokens * rates.prompt_share
    trained_tokens = config.grpo.completions_per_step * (mean_tokens + mean_prompt) * rates.trained_share
    verifiers = config.launch.num_rewards * config.reward.num_processes
    seats = seats_in_use(config) * rates.seats_share
    read_s = pass_bytes(config, shape, seats, mean_prompt + mean_tokens / 2) / rates.generate_bytes
    num_passes = config.grpo.completions_per_step / config.launch.num_generators * mean_tokens / seats
    return StepTime(
        generate_s=num_passes * (read_s + rates.pass_s),
        reward_s=config.grpo.completions_per_step * rates.reward_s / verifiers,
        update_s=operations_per_token(config)
        * shape.num_parameters
        * trained_tokens
        * config.grpo.num_epochs
        / (rates.update_flops * config.launch.num_learner_ranks),
        other_s=rates.step_s,
    )


def seats_in_use(config: RunConfig) -> float:
    """Returns the number of completions that an engine samples at a time: all in flight, up to its seats."""
    in_flight = config.grpo.max_groups_in_flight * config.grpo.group_size
    return min(config.generator.max_num_seqs, in_flight / config.launch.num_generators)


def pass_bytes(config: RunConfig, shape: ModelShape, num_sequences: float, context_tokens: float) -> float:
    """Returns the bytes that each GPU of an engine reads for one token of each completion.

    `context_tokens` is the mean number of tokens before the token.
    """
    generator = config.generator
    gpus = generator.tensor_parallel_size * generator.pipeline_parallel_size
    values = shape.num_parameters + num_sequences * context_tokens * shape.cache_values_per_token
    return engine_bytes(config) * values / gpus


def operations_per_token(config: RunConfig) -> int:
    """Returns the operations per parameter and trained token: forward, backward, the second forward of checkpointing,
    and the forward of the reference.

    `learner.gradient_checkpointing` must be set. A frozen model skips the gradients of its weights, half of the
    backward pass.
    """
    trained = 4 if config.learner.lora.is_on else 6
    checkpointing = 2 if config.learner.gradient_checkpointing else 0
    return trained + checkpointing + (2 if config.kl.needs_reference else 0)


def rates_of_run(folder: Path) -> Rates:
    """Computes the rates of a run from its `config.json` and `metrics.jsonl`: medians over all steps but the first.

    Whether the learner recomputed activations, if the configuration leaves it open, is in `logs/learner.log`.

    Raises `InvalidArgument` for a folder that is not a run's folder, and for a run with too few steps.
    """
    try:
        config = parse_config(parse_json((folder / "config.json").read_text(encoding="utf-8")))
        lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        rows = [row for row in map(parse_json, lines) if isinstance(row, dict) and "time/step" in row]
        trained = _as_trained(config, folder)
    except FileNotFoundError as error:
        raise InvalidArgument(
            f"--measured {folder} is not the folder of a run: there is no {Path(error.filename).name} in it"
        ) from None
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"--measured {folder} is not the folder of a run: {why_unread(error)}") from None
    if len(rows) < _MIN_STEPS:
        raise InvalidArgument(f"--measured {folder}: needs at least {_MIN_STEPS} train steps (found: {len(rows)})")
    try:
        return _rates(trained, model_shape(config.model.path, config.model.revision), rows[1:], folder.name)
    except (KeyError, TypeError, StatisticsError) as error:
        raise InvalidArgument(f"--measured {folder}: its metrics are incomplete: {error}") from None


def _as_trained(config: RunConfig, folder: Path) -> RunConfig:
    """Returns a run's configuration with the gradient checkpointing that the learner chose; off without a log."""
    if config.learner.gradient_checkpointing is not None:
        return config
    log = folder / "logs" / "learner.log"
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.is_file() else []
    loaded = [parse_json(line) for line in lines if '"event": "model loaded"' in line]
    is_on = any(isinstance(event, dict) and event.get("gradient_checkpointing") is True for event in loaded[-1:])
    return config.model_copy(update={"learner": config.learner.model_copy(update={"gradient_checkpointing": is_on})})


def _rates(config: RunConfig, shape: ModelShape, rows: Sequence[dict[str, float]], name: str) -> Rates:
    engines, verifiers = config.launch.num_generators, config.launch.num_rewards * config.reward.num_processes

    # Rates count only the seconds in which a service had work.
    busy = [max(1e-3, 1 - row["waiting/generators"]) for row in rows]
    sampled = median([row["generator_tokens_per_second_step"] / share for row, share in zip(rows, busy, strict=True)])
    used = median([row["usage/generator_seats"] / share for row, share in zip(rows, busy, strict=True)])
    seats = max(1e-3, used * config.generator.max_num_seqs)
    trained = median([row["learner_tokens_per_second_step"] for row in rows])
    scoring_s = median([(1 - row["waiting/rewards"]) * row["time/step"] for row in rows])
    outside_s = median(
        [max(0.0, row["time/step"] - row["time/training"] - row["time/waiting_for_groups"]) for row in rows]
    )
    lengths = median([row["val/sequence_lengths"] for row in rows])
    trained_share = median([row["val/total_reward_groups"] for row in rows]) / config.grpo.groups_per_step
    sequences = [row["val/total_reward_groups"] * config.grpo.group_size for row in rows]
    whole = median([row["val/num_step_tokens"] / count for row, count in zip(rows, sequences, strict=True) if count])
    prompts = max(0.0, whole - lengths)
    return Rates(
        # An engine makes one pass for each token of a completion.
        generate_bytes=pass_bytes(config, shape, seats, prompts + lengths / 2) * sampled / engines / seats,
        seats_share=min(1.0, seats / seats_in_use(config)),
        update_flops=operations_per_token(config) * shape.num_parameters * trained / config.launch.num_learner_ranks,
        reward_s=scoring_s * verifiers / config.grpo.completions_per_step,
        step_s=outside_s,
        length_share=min(1.0, lengths / config.sampling.max_completion_tokens),
        prompt_share=min(1.0, prompts / config.data.max_prompt_tokens),
        trained_share=min(1.0, trained_share),
        source=(
            f"measured by run {name}, {counted(len(rows), 'step')} of {config.model.path}: {sampled:,.0f} tokens/s "
            f"sampled by {counted(engines, 'engine')} with {seats:.1f} completions in each at a time, "
            f"{trained:,.0f} tokens/s trained on by {counted(config.launch.num_learner_ranks, 'rank')}, completions of "
            f"{lengths:.0f} tokens; valid for the machine of that run and for models, lengths and batches like its own"
        ),
    )
