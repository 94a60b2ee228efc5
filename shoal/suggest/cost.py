"""Estimates the time of a step: cost = G x generate + G x reward + update, with measured rates.

A rate is the arithmetic that a device did per second. It follows from tokens per second, with two operations per
parameter and sampled token, and six per trained token (eight with checkpointing, which runs the forward pass twice). It
transfers to other models far better than tokens per second, but is still only a first guess: `shoal train` prints the
actual time of a step, and `--measured` takes the rates from such a run.
"""

from dataclasses import dataclass

from shoal.config.derived import derived_values
from shoal.config.run import RunConfig
from shoal.suggest.shape import ModelShape


@dataclass(frozen=True)
class Rates:
    """Rates of one device."""

    generate_flops: float
    """Operations per second of one generator GPU."""
    update_flops: float
    """Operations per second of one learner rank."""
    reward_s: float
    """Seconds of one verifier process per completion."""
    source: str
    step_s: float = 0.0
    """Seconds of each step besides these: reading results, publishing weights."""
    length_share: float = 0.5
    """Mean length of a completion, as a share of the maximum."""
    prompt_share: float = 0.5
    """Mean length of a prompt, as a share of the maximum."""
    trained_share: float = 1.0
    """Share of the completions that are trained on: those of groups with signal."""


H100 = Rates(
    generate_flops=1.0e13,
    update_flops=4.3e13,
    reward_s=5e-4,
    source=(
        "published figures, not measured here, of one H100: sampling at the 1 % of its arithmetic that the Olmo 3 "
        "report gives for 7B models (table 23), training at the 11,900 tokens/s that prime-rl's published benchmark "
        "gives for 0.6B; scoring at 0.5 ms per completion, of which the gsm8k verifier took 0.03 ms on one core "
        "here, and the call may take the rest; --measured RUN uses the rates of your own run"
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
        """Time with sampling and training in parallel, as at staleness 1 or more: that of the slower one."""
        return max(self.generate_s + self.reward_s, self.update_s + self.other_s)


def step_time(config: RunConfig, shape: ModelShape, rates: Rates) -> StepTime:
    """Estimates the time of a step, with completions and prompts of mean length.

    Counts trained tokens like `learner_tokens_per_second_step`: a prompt with each completion."""
    derived = derived_values(config)
    mean_tokens = config.sampling.max_completion_tokens * rates.length_share
    completion_tokens = derived.completions_per_step * mean_tokens
    prompt_tokens = derived.completions_per_step * config.data.max_prompt_tokens * rates.prompt_share
    trained_tokens = (completion_tokens + prompt_tokens) * rates.trained_share
    engines = max(1, derived.num_generator_gpus)
    verifiers = config.launch.num_rewards * config.reward.num_processes
    return StepTime(
        generate_s=2 * shape.num_parameters * completion_tokens / (rates.generate_flops * engines),
        reward_s=derived.completions_per_step * rates.reward_s / verifiers,
        update_s=operations_per_token(config)
        * shape.num_parameters
        * trained_tokens
        * config.grpo.num_epochs
        / (rates.update_flops * derived.world_size),
        other_s=rates.step_s,
    )


def operations_per_token(config: RunConfig) -> int:
    """Returns the operations per parameter and trained token: forward, backward, the second forward of checkpointing,
    and the forward of the reference. A frozen model has no gradients of its weights, half of the backward."""
    trained = 4 if config.learner.lora.is_on else 6
    checkpointing = 2 if config.learner.gradient_checkpointing else 0
    return trained + checkpointing + (2 if config.kl.needs_reference else 0)
