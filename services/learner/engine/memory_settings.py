"""The size of packed rows and gradient checkpointing, if they are unset: by the memory of the ranks' GPUs."""

import importlib.util
import logging
from pathlib import Path

import torch

from services.learner.model.gpu_kernels import can_run_kernels
from services.learner.ranks.process_group import ProcessGroup
from shoal.config import RunConfig
from shoal.config.tables.learner import LearnerConfig
from shoal.errors import InvalidArgument
from shoal.suggest.memory import FREE_SHARE, RUNTIME_BYTES, learner_memory
from shoal.suggest.shape import ModelShape, model_shape

_log = logging.getLogger(__name__)
_ROW_TOKENS = (16384, 8192, 4096)


def settle_on_memory(
    config: RunConfig, settings: LearnerConfig, folder: Path, process_group: ProcessGroup, *, is_stage_open: bool
) -> LearnerConfig:
    """Returns `settings` with definite values of `pack_tokens` and `gradient_checkpointing`, the same on every rank.

    `is_stage_open` states that neither the configuration nor a checkpoint has the ZeRO stage. On several ranks the
    stage is then the lowest that fits the memory.

    Call this on all ranks, with the settings of `settle_on_machine` and the folder of the model. On a CPU, and for a
    model whose memory cannot be estimated well, an unset `pack_tokens` is 4096 and checkpointing is off.
    """
    is_checkpointing = bool(settings.gradient_checkpointing)
    usual = settings.model_copy(update={"pack_tokens": settings.row_tokens, "gradient_checkpointing": is_checkpointing})
    if process_group.device.type == "cpu" or None not in (settings.pack_tokens, settings.gradient_checkpointing):
        return usual
    own = torch.cuda.get_device_properties(process_group.device).total_memory
    is_fused = importlib.util.find_spec("liger_kernel") is not None and can_run_kernels(process_group.device)
    # The largest negative numbers are those of the smallest GPU, and of a rank without kernels.
    smallest, all_fused = -process_group.all_reduce(torch.tensor([-own, -int(is_fused)]), maximum=True)
    try:
        shape = model_shape(str(folder))
    except InvalidArgument as error:
        _log.info("no estimate of the memory, so rows have %d tokens: %s", usual.row_tokens, error.message)
        return usual
    if not shape.can_be_fused:
        # Such a model may keep further norms, or all attention scores.
        return usual
    launch = config.launch.model_copy(update={"num_learner_ranks": process_group.size})
    settled = config.model_copy(update={"learner": settings, "launch": launch})
    return fit_rows(settled, shape, gpu_bytes=int(smallest), is_fused=bool(all_fused), is_stage_open=is_stage_open)


def fit_rows(
    config: RunConfig, shape: ModelShape, *, gpu_bytes: int, is_fused: bool = True, is_stage_open: bool = False
) -> LearnerConfig:
    """Returns `config.learner` with definite values of `pack_tokens` and `gradient_checkpointing`, for GPUs of a size.

    The learner may use 90 % of the memory; with `launch.single_gpu`, what `generator.gpu_memory_utilization` leaves of
    them. Checkpointing is on if the longest row would not fit without it. Then the rows are as long as fit.
    """
    learner = config.learner
    engine_share = config.generator.gpu_memory_utilization if config.launch.single_gpu else 0.0
    free = gpu_bytes * (FREE_SHARE - engine_share) - RUNTIME_BYTES

    def settings(tokens: int, is_checkpointing: bool) -> LearnerConfig:
        return learner.model_copy(update={"pack_tokens": tokens, "gradient_checkpointing": is_checkpointing})

    def fits(tokens: int, is_checkpointing: bool) -> bool:
        # A sequence that is longer than a row gets a row of its own.
        row = settings(max(tokens, config.max_sequence_tokens), is_checkpointing)
        return learner_memory(config.model_copy(update={"learner": row}), shape, is_fused=is_fused).total <= free

    is_checkpointing = learner.gradient_checkpointing
    if is_checkpointing is None:
        is_checkpointing = not fits(learner.row_tokens, False)
    tokens = learner.pack_tokens or next((n for n in _ROW_TOKENS if fits(n, is_checkpointing)), _ROW_TOKENS[-1])
    if not fits(tokens, is_checkpointing):
        if is_stage_open and learner.zero_stage in (1, 2):
            higher = learner.model_copy(update={"zero_stage": learner.zero_stage + 1})
            sharded = config.model_copy(update={"learner": higher})
            return fit_rows(sharded, shape, gpu_bytes=gpu_bytes, is_fused=is_fused, is_stage_open=True)
        _log.warning("by the estimate, training does not fit the GPU's memory: use more ranks, or a higher zero_stage")
    return settings(tokens, is_checkpointing)
