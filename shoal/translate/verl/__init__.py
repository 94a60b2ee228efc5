"""verl (verl-project/verl): overrides, a.b=c, of verl's PPO trainer."""

from shoal.translate.shared.system import System
from shoal.translate.verl.compose import compose
from shoal.translate.verl.fields import FIELDS
from shoal.translate.verl.names import MODEL, PROGRAMS
from shoal.translate.verl.unsupported_fields import UNSUPPORTED

VERL = System(
    name="verl",
    table=(*FIELDS, *UNSUPPORTED),
    compose=compose,
    model_field=f"{MODEL}.path",
    data_field="data.train_files",
    implied={"grpo.keep_zero_signal": (True, "verl trains on groups of equal rewards too: they count in the divisor")},
    programs=PROGRAMS,
    is_nested=True,
)
