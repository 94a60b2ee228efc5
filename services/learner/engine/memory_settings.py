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
from shoal.suggest.rows import fit_rows
from shoal.suggest.shape import model_shape

_log = logging.getLogger(__name__)


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
    is_settled = not is_stage_open and None not in (settings.pack_tokens, settings.gradient_checkpointing)
    if process_group.device.type == "cpu" or is_settled:
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
    launch = config.launch.model_copy(update={"num_learner_ranks": process_group.size})
    settled = config.model_copy(update={"learner": settings, "launch": launch})
    rows = fit_rows(settled, shape, gpu_bytes=int(smallest), is_fused=bool(all_fused), is_stage_open=is_stage_open)
    if not rows.fits and shape.can_be_fused:
        _log.warning(
            "by the estimate, training does not fit the GPU's memory: use more ranks, or a higher zero_stage; with "
            "launch.single_gpu, set generator.sleep_while_training, or lower generator.gpu_memory_utilization"
        )
    return rows.learner
