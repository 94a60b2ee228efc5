"""ROLL (alibaba/ROLL): the YAML of its RLVR pipeline."""

import re

from shoal.translate.roll.compose import compose
from shoal.translate.roll.engine_fields import ENGINES
from shoal.translate.roll.fields import PIPELINE
from shoal.translate.roll.run_fields import RUN
from shoal.translate.roll.worker_fields import WORKERS
from shoal.translate.shared.system import System

ROLL = System(
    name="roll",
    table=(*RUN, *PIPELINE, *WORKERS, *ENGINES),
    compose=compose,
    model_field="pretrain",
    data_field="actor_train.data_args.file_name",
    is_nested=True,
    presets=re.compile(r"^\$\{deepspeed_zero\w*\}$"),
)
