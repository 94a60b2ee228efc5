"""How many of the instructions a completion follows."""

import re
from typing import Any

from services.reward.verdict import Unscorable, Verdict
from services.reward.verifiers.ifeval import language, sentences
from services.reward.verifiers.ifeval.labels import Instruction, read_function, read_instructions

_ANSWER_TAG = re.compile(r"</?answer>")


def load() -> None:
    """Reads the models of sentences and languages; takes a second or two."""
    sentences.load()
    language.load()


def verify(completion: str, label: Any, *, strict_wording: bool = False) -> Verdict:
    """Checks instructions by open-instruct's ids: those of IFEval (arXiv:2311.07911) and 29 more.

    The answer is what follows the last </think>, without answer tags. Label: {"instruction_id": [...], "kwargs":
    [...]}, or a list of such, as objects or as JSON or Python text. Value: the fraction of the instructions that the
    answer follows, 0 to 1; 0 for an empty answer or list.
    """
    instructions = read_instructions(label, strict_wording=strict_wording)
    if not instructions:
        if strict_wording:
            raise Unscorable("the label has no instruction")
        return Verdict(0.0, "the label has no instruction")
    return _verdict(completion, instructions)


def verify_strict(completion: str, label: Any) -> Verdict:
    """Checks instructions as `ifeval` does, but by their wording where open-instruct's checker judges another thing.

    Keywords are whole words and not regular expressions, marks are no words, a text in no language is not in
    English, and so on; docs/rewards.md lists it. Label and value: as of `ifeval`; an empty list is unscorable.
    """
    return verify(completion, label, strict_wording=True)


def verify_old(completion: str, label: Any, *, strict_wording: bool = False) -> Verdict:
    """Checks one instruction in open-instruct's older form.

    The answer is what follows the last </think>, without answer tags. Label: {"func_name": ..., and its arguments},
    as an object or as JSON text. Value: 1 if the answer follows it, else 0; 0 for an empty answer.
    """
    return _verdict(completion, [read_function(label, strict_wording=strict_wording)])


def verify_old_strict(completion: str, label: Any) -> Verdict:
    """Checks one instruction in the older form as `ifeval_old` does, but by its wording; docs/rewards.md lists it.

    Label and value: as of `ifeval_old`.
    """
    return verify_old(completion, label, strict_wording=True)


def _verdict(completion: str, instructions: list[Instruction]) -> Verdict:
    answer = _ANSWER_TAG.sub("", completion.rpartition("</think>")[2]).strip()
    # All are asked, also about an empty answer: whether a label can be judged does not depend on the completion.
    broken = [name for name, constraint, given in instructions if not constraint.follows(answer, given)]
    if not answer:
        return Verdict(0.0, "the answer is empty")
    followed = len(instructions) - len(broken)
    return Verdict(followed / len(instructions), f"not followed: {', '.join(broken)}" if broken else "all followed")
