"""Estimates the time of a step: cost = G x generate + G x reward + update, with measured rates.

Sampling is bound by memory: for each token of the completions that an engine samples together, a GPU reads all weights
once, and the keys and values of each completion. So its rate is in bytes per second. Training is bound by arithmetic:
six operations per parameter and trained token (eight with checkpointing, which runs the forward pass twice). Both rates
transfer to other models far better than tokens per second do, but they are only a first guess: `shoal train` prints the
actual time of a step, and `--measured` takes the rates from such a run.
"""

from dataclasses import dataclass

from shoal.config.run import RunConfig
from shoal.suggest.memory import engine_bytes
from shoal.suggest.shape import ModelShape


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
    """Mean length of a completion, as a share of the maximum."""
    prompt_share: float = 0.5
    """Mean length of a prompt, as a share of the maximum."""
    trained_share: float = 1.0
    """Share of the completions that are trained on, which are those of groups with a signal."""


H100 = Rates(
    generate_bytes=2.0e12,
    pass_s=8e-3,
    seats_share=0.5,
    update_flops=4.3e13,
    reward_s=5e-4,
    source=(
        "not of your machine: sampling at 60 % of the 3.35 TB/s that an H100 is sold with, 8 ms more for each token of "
        "all completions, as one H200 took with a model of 1.5B, and half of the completions going on, as lengths "
        "from 0 to the maximum have it; training at the 11,900 tokens/s that prime-rl's published benchmark gives for "
        "0.6B on an H100, 4 % of its arithmetic, of which one H200 reached 9 % here with 1.5B; scoring at 0.5 ms per "
        "completion, of which the gsm8k verifier took 0.03 ms on one core here, and the call may take the rest; "
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

    Counts trained tokens as `learner_tokens_per_second_step` does: a prompt with each completion.
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
    """Returns the number of completions that an engine can sample at a time: those in flight, up to its seats."""
    in_flight = config.grpo.max_groups_in_flight * config.grpo.group_size
    return min(config.generator.max_num_seqs, in_flight / config.launch.num_generators)


def pass_bytes(config: RunConfig, shape: ModelShape, num_sequences: float, context_tokens: float) -> float:
    """Returns the bytes that each GPU of an engine reads for one token of each completion.

    `context_tokens` is the mean number of tokens before it.
    """
    generator = config.generator
    gpus = generator.tensor_parallel_size * generator.pipeline_parallel_size
    values = shape.num_parameters + num_sequences * context_tokens * shape.cache_values_per_token
    return engine_bytes(config) * values / gpus


def operations_per_token(config: RunConfig) -> int:
    """Returns the operations per parameter and trained token: forward, backward, the second forward of checkpointing,
    and the forward of the reference. A frozen model skips the gradients of its weights, half of the backward pass."""
    trained = 4 if config.learner.lora.is_on else 6
    checkpointing = 2 if config.learner.gradient_checkpointing else 0
    return trained + checkpointing + (2 if config.kl.needs_reference else 0)
