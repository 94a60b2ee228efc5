"""The nouns that the services share, as plain Python values.

All code speaks these; `shoal.wire` turns them into messages and back. Shapes: P tokens of a prompt, T tokens of
a completion.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt

Int32Array = npt.NDArray[np.int32]
Float32Array = npt.NDArray[np.float32]
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, order=True)
class WeightVersion:
    """A version of the policy's weights; ordered by attempt, then by policy version.

    Example: `WeightVersion(attempt=0, policy_version=12)`, written "0.12".
    """

    attempt: int
    """Number of times the run was restored from a checkpoint."""
    policy_version: int
    """Train steps that the weights have seen; 0 is the start."""

    def __str__(self) -> str:
        return f"{self.attempt}.{self.policy_version}"

    @classmethod
    def parse(cls, text: str) -> "WeightVersion":
        """Reads what `str` wrote. Raises ValueError on anything else."""
        attempt, policy_version = text.split(".")
        return cls(int(attempt), int(policy_version))


@dataclass(frozen=True)
class VersionSpan:
    """Tokens `start` to `end` (exclusive) of a completion were sampled under `version`."""

    version: WeightVersion
    start: int
    end: int


MOST_WEIGHT = 1e30
"""A larger weight, in either direction, would let a sum of rewards leave the range of a double."""


@dataclass(frozen=True)
class GroundTruth:
    """One verifier to apply to each completion of a prompt, and what it compares with."""

    verifier: str
    label: Any
    """Any JSON value; the verifier documents which."""
    weight: float = 1.0


@dataclass(frozen=True)
class ChatMessage:
    """One turn of a conversation."""

    role: str
    """For example "user"."""
    content: str


def question_of(messages: Sequence[ChatMessage]) -> str:
    """A conversation as people read it: a single message as it is; several, system messages included, each as
    "role: content"."""
    if len(messages) == 1:
        return messages[0].content
    return "\n".join(f"{message.role}: {message.content}" for message in messages)


@dataclass(frozen=True)
class Prompt:
    """One question, ready to be sampled from."""

    prompt_id: str
    """Stable across runs: "source:row"."""
    token_ids: Int32Array
    """[P] the chat-templated prompt."""
    text: str
    ground_truths: tuple[GroundTruth, ...]
    messages: tuple[ChatMessage, ...] = ()
    """What `text` was made of; empty where only the text is known."""

    @property
    def question(self) -> str:
        """What is asked, as people read it: without the marks of a chat template, where messages are known."""
        return question_of(self.messages) or self.text


@dataclass(frozen=True)
class SamplingParams:
    """How completions are drawn."""

    temperature: float
    max_completion_tokens: int
    stop_token_ids: tuple[int, ...]
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    stop_strings: tuple[str, ...] = ()
    """Texts that end a completion, none of them empty; what completes one stays a part of it."""


class FinishReason(StrEnum):
    """Why a completion ended."""

    STOP = "stop"
    """A stop token was sampled, or a stop string completed."""
    LENGTH = "length"
    """The completion or the context reached its limit."""
    ABORT = "abort"
    """Given up before it was complete; never trained on."""


@dataclass(frozen=True)
class Completion:
    """One sampled answer to a prompt."""

    sample_index: int
    token_ids: Int32Array
    """[T] with the stop token, or the tokens of the stop string, if one was sampled."""
    behavior_logprobs: Float32Array
    """[T] log-probability of each token under the distribution it was drawn from; NaN where unknown."""
    finish_reason: FinishReason
    version_spans: tuple[VersionSpan, ...]
    """Cover 0..T in order, without gaps."""
    seed: int
    text: str = ""
    loss_mask: BoolArray | None = None
    """[T] True where the token counts in the loss; None means that all count."""

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def oldest_version(self) -> WeightVersion:
        """The oldest weights that sampled a token here."""
        return min(span.version for span in self.version_spans)


class ScoreOutcome(StrEnum):
    """What scoring a completion came to."""

    SCORED = "scored"
    UNSCORABLE = "unscorable"
    """It cannot be judged; it carries no reward."""
    FAILED = "failed"
    """The verifier broke or ran out of time; never a reward of 0."""


@dataclass(frozen=True)
class StepScore:
    """A verifier's judgement of one step of a completion."""

    end_char: int
    """Characters of the completion's text up to the end of the step."""
    value: float


@dataclass(frozen=True)
class VerifierScore:
    """One verifier's judgement of one completion."""

    verifier: str
    outcome: ScoreOutcome
    value: float = 0.0
    """Meaningful only when SCORED."""
    detail: str = ""
    duration_s: float = 0.0
    step_scores: tuple[StepScore, ...] = ()
    """In order; empty where it judges the whole alone."""
    code_digest: str = ""
    """SHA-256, in hex, of the code that judged, where it does not come with Shoal."""


@dataclass(frozen=True)
class RewardPart:
    """A share in the reward of one completion."""

    name: str
    """For example "verifiable" or "overlong"."""
    value: float
    """What it adds to the reward."""


@dataclass(frozen=True)
class Score:
    """The reward of one completion."""

    sample_index: int
    outcome: ScoreOutcome
    """SCORED only if every verifier scored; else the worst of theirs."""
    reward: float
    """What `reward` in the configuration makes of it all; by default the weighted sum of the verifiers' values.
    Meaningful only when SCORED."""
    verifier_scores: tuple[VerifierScore, ...] = ()
    parts: tuple[RewardPart, ...] = ()
    """What the reward is made of; they sum up to it."""


@dataclass(frozen=True)
class Rollout:
    """A completion with what it is trained with."""

    completion: Completion
    advantage: float
    """The same for each token, unless `token_advantages` says otherwise."""
    weight: float = 1.0
    """Factor of the loss of all its tokens."""
    reward: float | None = None
    token_advantages: Float32Array | None = None
    """[C], where tokens differ."""


@dataclass(frozen=True)
class TrainGroup:
    """The rollouts of one prompt, as a train step takes them."""

    group_id: str
    prompt_token_ids: Int32Array
    """[P]"""
    rollouts: tuple[Rollout, ...]
    traceparent: str = ""


@dataclass(frozen=True)
class TrainBatch:
    """What one train step is taken over."""

    train_step_id: str
    expected_version: WeightVersion
    temperature: float
    groups: tuple[TrainGroup, ...] = field(default_factory=tuple)
