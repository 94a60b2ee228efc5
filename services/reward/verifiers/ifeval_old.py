"""One instruction that a program can check, in open-instruct's older form."""

from typing import Any

from services.reward.common.verdict import Verdict
from services.reward.common.verifier import Verifier
from services.reward.verifiers.ifeval.labels import read_function
from services.reward.verifiers.ifeval.verify import InstructionOptions, follow, load


def verify(completion: str, label: Any, options: InstructionOptions = InstructionOptions()) -> Verdict:
    """Checks one instruction in open-instruct's older form.

    The answer is read without answer tags. Label: {"func_name": ..., and its arguments}, as an object or as JSON text.
    Value: 1 if the answer follows it, else 0; 0 for an empty answer. Options: those of `ifeval`.
    """
    instructions = [read_function(label, strict_wording=options.strict_wording)]
    return follow(completion, instructions, options.timeout_s)


VERIFIER = Verifier(verify, values="1 or 0", options=InstructionOptions, load=load, package="punkt")
