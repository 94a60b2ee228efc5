"""The `ifeval` verifier: instructions that a program can check (IFEval, arXiv:2311.07911)."""

from typing import Any

from pydantic import Field

from services.reward.common import language
from services.reward.common.deadline import within
from services.reward.common.text import without_tags
from services.reward.common.verdict import Unscorable, Verdict
from services.reward.common.verifier import Verifier
from services.reward.verifiers.ifeval import sentences
from services.reward.verifiers.ifeval.labels import Instruction, read_instructions
from shoal.config.tables.section import Section


class InstructionOptions(Section):
    strict_wording: bool = False
    """Judge by the wording of an instruction wherever open-instruct's checker differs from the wording. docs/rewards.md
    lists the differences."""
    timeout_s: float = Field(default=5.0, gt=0)
    """Time limit for checking one answer. After this time the completion is UNSCORABLE, for example because a label's
    keyword is a regular expression with catastrophic backtracking. Keep this time below `reward.timeout_s`, which kills
    the process."""


def load() -> None:
    """Loads the sentence and language models, in a second or two."""
    sentences.load()
    language.load()


def verify(completion: str, label: Any, options: InstructionOptions = InstructionOptions()) -> Verdict:
    """Checks instructions by open-instruct's ids: IFEval's (arXiv:2311.07911) and 29 more.

    The answer is read without answer tags. Label: {"instruction_id": [...], "kwargs": [...]}, or a list of such
    objects, as objects or as JSON or Python text. Value: the fraction of the instructions that the answer follows, 0 to
    1; 0 for an empty answer. `strict_wording` judges by the wording of the instructions where open-instruct's checkers
    judge something else; docs/rewards.md lists the differences. Unscorable past `timeout_s`.
    """
    instructions = read_instructions(label, strict_wording=options.strict_wording)
    if not instructions:
        raise Unscorable("the label has no instruction")
    return follow(completion, instructions, options.timeout_s)


VERIFIER = Verifier(verify, values="0 to 1", options=InstructionOptions, load=load, package="punkt")


def follow(completion: str, instructions: list[Instruction], timeout_s: float) -> Verdict:
    """Returns the fraction of the instructions that the answer follows. Raises `Unscorable`."""
    answer = without_tags(completion)
    # Check all instructions, even on an empty answer: a label must be scorable for every completion or for none.
    broken = within(
        timeout_s,
        "checking the instructions",
        lambda: [name for name, constraint, arguments in instructions if not constraint.follows(answer, arguments)],
    )
    if not answer:
        return Verdict(0.0, "the answer is empty")
    followed = len(instructions) - len(broken)
    return Verdict(followed / len(instructions), f"not followed: {', '.join(broken)}" if broken else "all followed")
