"""How long a step may take: cost = G x generate + G x reward + update, with rates that were measured.

A rate is arithmetic that a device really did in a second, from tokens per second and the two operations that a
parameter takes for each token sampled, six for each token trained on (eight with checkpointing, which runs the forward
pass twice). It carries over to other models far better than tokens per second do, and still only as a first guess:
`shoal train` prints what a step really took, and `--measured` takes the rates from such a run.
"""

from dataclasses import dataclass

from shoal.config.derived import derived_values
from shoal.config.run import RunConfig
from shoal.config.suggest.shape import ModelShape


@dataclass(frozen=True)
class Rates:
    """What one device does."""

    generate_flops: float
    """Per second, of one generator's GPU."""
    update_flops: float
    """Per second, of one learner rank."""
    reward_s: float
    """Of one verifier process, for one completion."""
    source: str
    step_s: float = 0.0
    """Of each step beside the three: reading results, publishing weights."""
    length_share: float = 0.5
    """Mean length of a completion, as a share of the longest."""
    prompt_share: float = 0.5
    """The same of prompts."""
    trained_share: float = 1.0
    """Of the completions those that are trained on: groups without signal are not."""


H100 = Rates(
    generate_flops=1.0e13,
    update_flops=4.3e13,
    reward_s=5e-4,
    source=(
        "published figures, not measured here, of one H100: sampling at the 1 % of its arithmetic that the Olmo 3 "
        "report gives for 7B models (table 23), training at the 11,900 tokens/s that prime-rl's published benchmark "
        "gives for 0.6B; scoring at 0.5 ms a completion, of which the gsm8k verifier took 0.03 ms on one core here and "
        "the call may take the rest; with --measured RUN those of a run of your own"
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
        """One part after the other, as at staleness 0."""
        return self.generate_s + self.reward_s + self.update_s + self.other_s

    @property
    def asynchronous_s(self) -> float:
        """Sampling and training side by side, as at staleness 1 and more: the slower one."""
        return max(self.generate_s + self.reward_s, self.update_s + self.other_s)


def step_time(config: RunConfig, shape: ModelShape, rates: Rates) -> StepTime:
    """The cost model at a configuration, with completions and prompts of the mean length.

    Tokens trained on are counted as `learner_tokens_per_second_step` counts them, a prompt with each completion."""
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
    """That a parameter takes for each token trained on: forward and backward, both again with checkpointing's forward,
    and the reference's forward."""
    return (8 if config.learner.gradient_checkpointing else 6) + (2 if config.kl.needs_reference else 0)
