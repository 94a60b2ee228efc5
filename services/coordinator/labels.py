"""Labels that their verifier cannot judge by, found where data is read and not when a completion is scored.

What a label must be is known to its verifier alone. Here is what is asked about, and what follows from the answers.
"""

import asyncio
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

from services.coordinator.events import EventLog
from services.coordinator.preflight import PreparedInputs
from services.coordinator.rewards import Rewards
from shoal.config.data import DataConfig
from shoal.errors import FailedPrecondition, InvalidArgument
from shoal.rollout import GroundTruth, Prompt

_SHOWN, _MOST_CHARACTERS = 3, 240


@dataclass(frozen=True)
class MalformedLabel:
    """A prompt with a label that nothing can be judged by."""

    prompt_id: str
    verifier: str
    reason: str

    def __str__(self) -> str:
        source, _, row = self.prompt_id.rpartition(":")
        return f"{source} row {row} ({self.verifier}): {self.reason}"


class Labels:
    """The labels of some prompts, each once."""

    def __init__(self, prompts: Sequence[Prompt]) -> None:
        self._places: list[tuple[str, int]] = []
        """Of every label of every prompt: the prompt, and which of `distinct` it is."""
        self.distinct: list[GroundTruth] = []
        numbers: dict[bytes, int] = {}
        for prompt in {prompt.prompt_id: prompt for prompt in prompts}.values():
            for truth in prompt.ground_truths:
                written = json.dumps([truth.verifier, truth.label], sort_keys=True)
                number = numbers.setdefault(hashlib.sha256(written.encode("ascii")).digest(), len(self.distinct))
                if number == len(self.distinct):
                    self.distinct.append(truth)
                self._places.append((prompt.prompt_id, number))

    def malformed(self, problems: Sequence[str]) -> list[MalformedLabel]:
        """Those that are wrong, the first of each prompt; `problems` are in the order of `distinct`, empty where a
        label is well."""
        found: dict[str, MalformedLabel] = {}
        for prompt_id, number in self._places:
            if problems[number] and prompt_id not in found:
                found[prompt_id] = MalformedLabel(prompt_id, self.distinct[number].verifier, problems[number])
        return list(found.values())


async def unusable_prompts(
    data: DataConfig, rewards: Rewards, events: EventLog, inputs: PreparedInputs
) -> frozenset[str]:
    """The prompts and held-out questions that are left out because of their labels, once a reward service has looked
    at all of them.

    Raises `InvalidArgument` for a verifier that is not there, and where `data.malformed_labels` refuses labels.
    """
    prompts, questions = inputs.prompts.prompts, inputs.evaluation_prompts
    await rewards.check_verifiers((*prompts, *questions))
    if data.malformed_labels == "keep":
        return frozenset()
    labels = await asyncio.to_thread(Labels, (*prompts, *questions))
    try:
        malformed = labels.malformed(await rewards.label_problems(labels.distinct))
    except FailedPrecondition as error:
        if error.reason != "UNIMPLEMENTED":
            raise
        events.add("labels_not_checked", f"labels are not checked before they are used: {error.message}")
        return frozenset()
    for said, number in left_out(data, malformed, prompts, questions):
        events.add("prompts_left_out", said, num_left_out=number)
    return frozenset(label.prompt_id for label in malformed)


def left_out(
    data: DataConfig, malformed: Sequence[MalformedLabel], prompts: Sequence[Prompt], questions: Sequence[Prompt]
) -> list[tuple[str, int]]:
    """What is said of prompts and of held-out questions that are left out, and how many they are.

    Raises `InvalidArgument` where `data.malformed_labels` refuses them, and where none is left.
    """
    found = []
    for what, group in (("prompts", prompts), ("held-out questions", questions)):
        ids = {prompt.prompt_id for prompt in group}
        among = [label for label in malformed if label.prompt_id in ids]
        if not among:
            continue
        first = "; ".join(str(label)[:_MOST_CHARACTERS] for label in among[:_SHOWN])
        said = (
            f"{len(among)} of {len(ids)} {what} have a label that their verifier cannot judge by, the first (rows "
            f"counted from 0): {first}"
        )
        if data.malformed_labels == "refuse":
            raise InvalidArgument(f'{said}. Correct the rows, or leave them out with data.malformed_labels = "drop"')
        if len(among) == len(ids):
            raise InvalidArgument(f"{said}. None is left: correct the rows, or name another verifier")
        found.append((f"left out: {said}", len(among)))
    return found
