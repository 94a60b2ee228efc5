"""The check at the start of a run in which a reward service finds the labels that their verifier cannot use."""

import asyncio
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

from services.coordinator.run.checks.preflight import PreparedInputs
from services.coordinator.store.events import EventLog
from services.coordinator.workers.reward_pool import RewardPool
from shoal.config.tables.data import DataConfig
from shoal.data.rows import row_name
from shoal.error_reasons import ErrorReason
from shoal.errors import FailedPrecondition, InvalidArgument
from shoal.rollout import GroundTruth, Prompt

_NUM_SHOWN, _MAX_SHOWN_CHARS = 3, 240


@dataclass(frozen=True)
class MalformedLabel:
    """A prompt with a label that its verifier cannot use."""

    prompt_id: str
    verifier: str
    reason: str

    def __str__(self) -> str:
        return f"{row_name(self.prompt_id)} ({self.verifier}): {self.reason}"


class Labels:
    """The labels of some prompts, each label once."""

    def __init__(self, prompts: Sequence[Prompt]) -> None:
        self._uses: list[tuple[str, int]] = []
        """For every label of every prompt: the prompt's id, and the label's index in `distinct`."""
        self.distinct: list[GroundTruth] = []
        indices: dict[bytes, int] = {}
        for prompt in {prompt.prompt_id: prompt for prompt in prompts}.values():
            for truth in prompt.ground_truths:
                text = json.dumps([truth.verifier, truth.label], sort_keys=True)
                index = indices.setdefault(hashlib.sha256(text.encode("ascii")).digest(), len(self.distinct))
                if index == len(self.distinct):
                    self.distinct.append(truth)
                self._uses.append((prompt.prompt_id, index))

    def malformed(self, problems: Sequence[str]) -> list[MalformedLabel]:
        """Returns the first malformed label of each prompt.

        `problems` has a text for each label of `distinct`, in order; the text is empty for a good label.
        """
        found: dict[str, MalformedLabel] = {}
        for prompt_id, index in self._uses:
            if problems[index] and prompt_id not in found:
                found[prompt_id] = MalformedLabel(prompt_id, self.distinct[index].verifier, problems[index])
        return list(found.values())


async def unusable_prompts(
    data: DataConfig, rewards: RewardPool, events: EventLog, inputs: PreparedInputs
) -> frozenset[str]:
    """Checks all labels at a reward service; returns the ids of prompts and held-out questions to leave out.

    Raises `InvalidArgument` for a verifier that no reward service has, and if `data.malformed_labels` refuses labels.
    """
    prompts, questions = inputs.prompts.prompts, inputs.evaluation_prompts
    await rewards.check_verifiers((*prompts, *questions))
    if data.malformed_labels == "keep":
        return frozenset()
    labels = await asyncio.to_thread(Labels, (*prompts, *questions))
    try:
        malformed = labels.malformed(await rewards.label_problems(labels.distinct))
    except FailedPrecondition as error:
        if error.reason != ErrorReason.UNIMPLEMENTED:
            raise
        events.add("labels_not_checked", f"labels are not checked before their use: {error.message}")
        return frozenset()
    for message, count in left_out(data, malformed, prompts, questions):
        events.add("prompts_left_out", message, num_left_out=count)
    return frozenset(label.prompt_id for label in malformed)


def left_out(
    data: DataConfig, malformed: Sequence[MalformedLabel], prompts: Sequence[Prompt], questions: Sequence[Prompt]
) -> list[tuple[str, int]]:
    """Returns the message and the number of the prompts, and of the held-out questions, that are left out.

    Raises `InvalidArgument` if `data.malformed_labels` refuses malformed labels, or if no prompt or question is left.
    """
    found = []
    for kind, group in (("prompts", prompts), ("held-out questions", questions)):
        ids = {prompt.prompt_id for prompt in group}
        among = [label for label in malformed if label.prompt_id in ids]
        if not among:
            continue
        first = "; ".join(str(label)[:_MAX_SHOWN_CHARS] for label in among[:_NUM_SHOWN])
        message = f"{len(among)} of {len(ids)} {kind} have a label that their verifier cannot use; the first: {first}"
        if data.malformed_labels == "refuse":
            raise InvalidArgument(f'{message}. Correct the rows, or leave them out with data.malformed_labels = "drop"')
        if len(among) == len(ids):
            raise InvalidArgument(f"{message}. No row is left: correct the rows, or name another verifier")
        found.append((f"left out: {message}", len(among)))
    return found
