"""verl (verl-project/verl): overrides of its PPO trainer, a.b=c."""

import re

from shoal.config.translate.system import System
from shoal.config.translate.verl.compose import compose
from shoal.config.translate.verl.fields import FIELDS
from shoal.config.translate.verl.names import MODEL

VERL = System(
    name="verl",
    table=tuple(FIELDS),
    compose=compose,
    model_field=f"{MODEL}.path",
    data_field="data.train_files",
    implied={"grpo.keep_zero_signal": (True, "verl trains on groups of equal rewards too: they count in the divisor")},
    programs=(re.compile(r"^verl\.trainer\.main_ppo\w*$|main_ppo\w*\.py$|^verl\..*\.main_\w+$"),),
    is_nested=True,
)
