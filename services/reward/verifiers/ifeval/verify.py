"""How many of the instructions a completion follows."""

from typing import Any

from services.reward import language
from services.reward.deadline import deadline
from services.reward.text import without_thinking
from services.reward.verdict import Unscorable, Verdict
from services.reward.verifiers.ifeval import sentences
from services.reward.verifiers.ifeval.labels import Instruction, read_function, read_instructions

DEFAULT_TIMEOUT_S = 5.0


def load() -> None:
    """Reads the models of sentences and languages; takes a second or two."""
    sentences.load()
    language.load()


def verify(
    completion: str, label: Any, *, strict_wording: bool = False, timeout_s: float = DEFAULT_TIMEOUT_S
) -> Verdict:
    """Checks instructions by open-instruct's ids: those of IFEval (arXiv:2311.07911) and 29 more.

    The answer is what follows the last </think>, without answer tags. Label: {"instruction_id": [...], "kwargs":
    [...]}, or a list of such, as objects or as JSON or Python text. Value: the fraction of the instructions that the
    answer follows, 0 to 1; 0 for an empty answer or list. `strict_wording` goes by what instructions say where
    open-instruct's checkers judge something else; docs/rewards.md lists it. Unscorable past `timeout_s`.
    """
    instructions = read_instructions(label, strict_wording=strict_wording)
    if not instructions:
        if strict_wording:
            raise Unscorable("the label has no instruction")
        return Verdict(0.0, "the label has no instruction")
    return _verdict(completion, instructions, timeout_s)


def verify_old(
    completion: str, label: Any, *, strict_wording: bool = False, timeout_s: float = DEFAULT_TIMEOUT_S
) -> Verdict:
    """Checks one instruction in open-instruct's older form.

    The answer is what follows the last </think>, without answer tags. Label: {"func_name": ..., and its arguments},
    as an object or as JSON text. Value: 1 if the answer follows it, else 0; 0 for an empty answer. Options: as of
    `ifeval`.
    """
    return _verdict(completion, [read_function(label, strict_wording=strict_wording)], timeout_s)


def _verdict(completion: str, instructions: list[Instruction], timeout_s: float) -> Verdict:
    answer = without_thinking(completion)
    # All are asked, also about an empty answer: whether a label can be judged does not depend on the completion.
    with deadline(timeout_s, "checking the instructions"):
        broken = [name for name, constraint, given in instructions if not constraint.follows(answer, given)]
    if not answer:
        return Verdict(0.0, "the answer is empty")
    followed = len(instructions) - len(broken)
    return Verdict(followed / len(instructions), f"not followed: {', '.join(broken)}" if broken else "all followed")
