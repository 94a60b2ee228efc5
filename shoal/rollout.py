"""The values that the services share, as plain Python objects.

`shoal.wire` converts these objects to messages and back. Shapes: P tokens of a prompt, T tokens of a completion.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from shoal.conversation import ChatMessage, question_of
from shoal.scores import ScoreOutcome

if TYPE_CHECKING:
    from shoal.arrays import BoolArray, Float32Array, Int32Array

MAX_WEIGHT = 1e30
"""The largest magnitude of a weight. With larger weights a sum of rewards could exceed the range of a double."""


@dataclass(frozen=True, order=True)
class WeightVersion:
    """A version of the policy's weights; ordered by attempt, then by policy version. Written "0.12"."""

    attempt: int
    """The number of times that the run was restored from a checkpoint."""
    policy_version: int
    """The number of train steps taken; 0 is the start."""

    def __str__(self) -> str:
        return f"{self.attempt}.{self.policy_version}"

    @classmethod
    def parse(cls, text: str) -> "WeightVersion":
        """Parses the text that `str` gives. Raises ValueError for any other text."""
        attempt, policy_version = text.split(".")
        return cls(int(attempt), int(policy_version))


@dataclass(frozen=True)
class VersionSpan:
    """A range of a completion's tokens, `start` to `end` (exclusive), that were sampled under `version`."""

    version: WeightVersion
    start: int
    end: int


@dataclass(frozen=True)
class GroundTruth:
    """A verifier that scores each completion of a prompt, and the label that it compares with."""

    verifier: str
    label: Any
    """The label: any JSON value. Each verifier documents the form of its labels."""
    weight: float = 1.0


@dataclass(frozen=True)
class EnvironmentTask:
    """A task of an environment."""

    environment: str
    """The environment's registered name."""
    task: dict[str, Any]
    """The task, in the form that the environment documents."""
    tools: tuple[str, ...] | None = None
    """Names of the tools that the policy may use; None for all tools of the environment."""


@dataclass(frozen=True)
class Prompt:
    """A prompt, ready for sampling."""

    prompt_id: str
    """The id of the prompt, stable across runs: "source:row"."""
    token_ids: "Int32Array"
    """The token ids of the chat-templated prompt, [P]."""
    text: str
    ground_truths: tuple[GroundTruth, ...]
    messages: tuple[ChatMessage, ...] = ()
    """The messages from which `text` was rendered; empty if only the text is known."""
    environment: EnvironmentTask | None = None
    """The environment of the prompt's episodes; None if an episode is one completion."""

    @property
    def question(self) -> str:
        """The question for people: without the chat template's markup, if the messages are known."""
        return question_of(self.messages) or self.text


@dataclass(frozen=True)
class SamplingParams:
    """The parameters with which completions are sampled."""

    temperature: float
    max_completion_tokens: int
    stop_token_ids: tuple[int, ...]
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    stop_strings: tuple[str, ...] = ()
    """Non-empty texts that end a completion. The text itself stays a part of the completion."""
    return_support: bool = False
    """Whether the support of each token is returned with the completion."""


class FinishReason(StrEnum):
    """The reason why a completion ended."""

    STOP = "stop"
    """A stop token was sampled, or a stop string completed."""
    LENGTH = "length"
    """The completion or the context reached its length limit."""
    ABORT = "abort"
    """The request was aborted before the completion was whole. Such a completion is never trained on."""


@dataclass(frozen=True)
class Support:
    """For each token of a completion, the tokens from which it was drawn, after top-k, top-p and min-p."""

    token_ids: "Int32Array"
    """The supports of all tokens, one after the other. Each has the sampled token first, then the other tokens."""
    counts: "Int32Array"
    """The number of tokens in the support of each token, [T], at least 1."""

    def part(self, start: int, end: int) -> "Support":
        """Returns the supports of the tokens `start` to `end` (exclusive)."""
        if (start, end) == (0, len(self.counts)):
            return self
        first, last = (int(self.counts[:index].sum()) for index in (start, end))
        return Support(self.token_ids[first:last], self.counts[start:end])


@dataclass(frozen=True)
class Completion:
    """One sampled answer to a prompt."""

    sample_index: int
    token_ids: "Int32Array"
    """The token ids, [T], including the stop token or the tokens of the stop string, if one was sampled."""
    behavior_logprobs: "Float32Array"
    """The log-probability of each token, [T], under the distribution from which the token was drawn; NaN if unknown."""
    finish_reason: FinishReason
    version_spans: tuple[VersionSpan, ...]
    """The versions of the weights, in order. The spans cover 0..T without gaps, or the sampled tokens of an episode."""
    seed: int
    text: str = ""
    loss_mask: "BoolArray | None" = None
    """Which tokens count in the loss, [T]: True for a token that counts. None means that all tokens count."""
    support: Support | None = None
    """The supports; None if each token was drawn from the whole vocabulary, or if supports were not requested."""
    episode: "Episode | None" = None
    """The course of an episode of several turns. Tokens of the environment have NaN log-probabilities and no loss."""

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_bytes(self) -> int:
        """The size of the arrays in bytes."""
        arrays = [self.token_ids, self.behavior_logprobs]
        if self.support is not None:
            arrays += [self.support.token_ids, self.support.counts]
        return sum(array.nbytes for array in arrays)

    @property
    def oldest_version(self) -> WeightVersion:
        """The oldest weights that sampled a token of this completion."""
        return min(span.version for span in self.version_spans)

    def segments(self, prompt_token_ids: "Int32Array") -> "tuple[EpisodeSegment, ...]":
        """Returns the segments of the completion, by default one segment after the prompt of its group."""
        if self.episode is not None and self.episode.segments:
            return self.episode.segments
        return (EpisodeSegment(prompt_token_ids, 0, self.num_tokens),)


@dataclass(frozen=True)
class ToolOutcome:
    """The outcome of a tool call."""

    name: str
    ok: bool
    timed_out: bool
    duration_s: float


@dataclass(frozen=True)
class EpisodeTurn:
    """One turn of an episode: the sampled tokens of the policy, and the answer of the environment."""

    start: int
    """The index of the turn's first sampled token in the completion."""
    end: int
    """The index after the turn's last sampled token."""
    message: ChatMessage
    """The message of the policy."""
    finish_reason: FinishReason
    seed: int
    observations: tuple[ChatMessage, ...] = ()
    reward: float | None = None
    """The reward of the turn; None if the environment gave no reward for the turn."""
    tool_outcomes: tuple[ToolOutcome, ...] = ()
    """The outcomes of the turn's tool calls, in the order of the calls."""
    number: int = 0
    """The turn's number in time order among all turns, from 1, if segments may alternate; else 0."""
    opened_thought: str = ""
    """The mark of the thought with which the chat template began the turn; empty if the template began no thought."""


@dataclass(frozen=True)
class EpisodeSegment:
    """A context of the policy: its prompt, and the tokens `start` to `end` (exclusive) of the completion after it."""

    prompt_token_ids: "Int32Array"
    """The token ids of the prompt, [P]."""
    start: int
    end: int
    messages: tuple[ChatMessage, ...] = ()
    """The prompt as messages, for people; empty if the prompt was given as tokens."""


@dataclass(frozen=True)
class Episode:
    """The course of a completion as an episode of several turns."""

    turns: tuple[EpisodeTurn, ...]
    stop_reason: str
    """The reason for the end of the episode: "done", "no_call", or the limit that the episode reached."""
    is_truncated: bool
    """Whether a limit ended the episode."""
    outcome: ScoreOutcome
    """The environment's outcome of the episode."""
    reward: float | None = None
    """The reward of the whole episode, in addition to rewards of turns; None if there is no such reward."""
    first_messages: tuple[ChatMessage, ...] = ()
    """The environment's messages before the first turn."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """The environment's numbers for the metrics, by name."""
    detail: str = ""
    """The cause of a failure, or the environment's findings, for people."""
    segments: tuple[EpisodeSegment, ...] = ()
    """The segments, in order, which cover the completion; empty if the whole completion follows its group's prompt."""
    num_auxiliary_turns: int = 0
    """Turns of the episode that are not part of the completion."""

    @property
    def turns_in_time(self) -> tuple[EpisodeTurn, ...]:
        """The turns in the order in which they were sampled, in all segments."""
        return tuple(sorted(self.turns, key=lambda turn: turn.number))


@dataclass(frozen=True)
class Rollout:
    """A completion with the values for its training."""

    completion: Completion
    advantage: float
    """The advantage of each token, unless `token_advantages` is set."""
    weight: float = 1.0
    """The factor of the loss of all tokens."""
    reward: float | None = None
    token_advantages: "Float32Array | None" = None
    """The advantage of each token, [T], if tokens have different advantages."""


@dataclass(frozen=True)
class TrainGroup:
    """The rollouts of one prompt in a train step."""

    group_id: str
    prompt_token_ids: "Int32Array"
    """The token ids of the prompt, [P]."""
    rollouts: tuple[Rollout, ...]
    traceparent: str = ""


@dataclass(frozen=True)
class HandedGroup:
    """A finished group that the learner gets before the step that trains on it."""

    attempt: int
    """The attempt of the run that sampled the group."""
    order_number: int
    group_id: str
    prompt_token_ids: "Int32Array"
    """The token ids of the prompt, [P]."""
    completions: tuple[Completion, ...]
    """The completions that the step may train on."""
    traceparent: str = ""
    digest: str = ""
    """The name of the content; empty before the group is converted to messages."""


@dataclass(frozen=True)
class TrainBatch:
    """The input of one train step."""

    train_step_id: str
    expected_version: WeightVersion
    temperature: float
    groups: tuple[TrainGroup, ...] = field(default_factory=tuple)
    next_order_number: int = 0
    """The order number of the first group after this step. Groups before it are trained on by this step or by none."""

    @property
    def num_tokens(self) -> int:
        """The number of tokens in prompts and completions."""
        return sum(
            len(group.prompt_token_ids) + sum(rollout.completion.num_tokens for rollout in group.rollouts)
            for group in self.groups
        )
