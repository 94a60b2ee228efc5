"""The size of packed rows and gradient checkpointing, if they are unset, as a learner chooses them on GPUs."""

from dataclasses import dataclass

from shoal.config.run import RunConfig
from shoal.config.tables.learner import LearnerConfig
from shoal.suggest.memory import FREE_SHARE, RUNTIME_BYTES, learner_memory
from shoal.suggest.shape import ModelShape

_ROW_TOKENS = (16384, 8192, 4096)


@dataclass(frozen=True)
class FittedRows:
    """The settings of a learner on GPUs of a size."""

    learner: LearnerConfig
    """The settings with definite values of `pack_tokens` and `gradient_checkpointing`."""
    fits: bool
    """Whether a train step fits the memory, by the estimate."""


def fit_rows(
    config: RunConfig, shape: ModelShape, *, gpu_bytes: float, is_fused: bool = True, is_stage_open: bool = False
) -> FittedRows:
    """Chooses `pack_tokens` and `gradient_checkpointing` where `config.learner` leaves them unset.

    Checkpointing is on if the longest row would not fit without it. Then the rows are as long as fit. A model that
    cannot be fused gets rows of 4096 tokens without checkpointing: it may keep further norms, or all attention scores.
    `is_stage_open` states that the ZeRO stage, if it is above 0, becomes the lowest that fits.
    """
    learner = config.learner
    free = _free_bytes(config, gpu_bytes)

    def settings(tokens: int, is_checkpointing: bool) -> LearnerConfig:
        return learner.model_copy(update={"pack_tokens": tokens, "gradient_checkpointing": is_checkpointing})

    def fits(tokens: int, is_checkpointing: bool) -> bool:
        # A sequence that is longer than a row gets a row of its own.
        row = settings(max(tokens, config.max_sequence_tokens), is_checkpointing)
        return learner_memory(config.model_copy(update={"learner": row}), shape, is_fused=is_fused).total <= free

    tokens, is_checkpointing = learner.pack_tokens, learner.gradient_checkpointing
    if is_checkpointing is None:
        is_checkpointing = shape.can_be_fused and not fits(learner.row_tokens, False)
    if tokens is None:
        longer = _ROW_TOKENS if shape.can_be_fused else ()
        tokens = next((number for number in longer if fits(number, is_checkpointing)), learner.row_tokens)
    has_room = fits(tokens, is_checkpointing)
    if not has_room and is_stage_open and learner.zero_stage in (1, 2) and shape.can_be_fused:
        higher = learner.model_copy(update={"zero_stage": learner.zero_stage + 1})
        sharded = config.model_copy(update={"learner": higher})
        return fit_rows(sharded, shape, gpu_bytes=gpu_bytes, is_fused=is_fused, is_stage_open=True)
    return FittedRows(settings(tokens, is_checkpointing), has_room)


def _free_bytes(config: RunConfig, gpu_bytes: float) -> float:
    """Returns how much of a GPU's memory a train step may use: 90 %, less the runtime and an engine on the same GPU.

    An engine that sleeps while the learner trains keeps only its runtime there. With KL in the reward, the reference
    reads rows before the engine sleeps, so the whole engine counts.
    """
    free = FREE_SHARE * gpu_bytes - RUNTIME_BYTES
    if not config.launch.single_gpu:
        return free
    generator = config.generator
    sleeps = generator.sleep_while_training and not (config.kl.needs_reference and config.kl.place == "reward")
    return free - (RUNTIME_BYTES if sleeps else generator.gpu_memory_utilization * gpu_bytes)
