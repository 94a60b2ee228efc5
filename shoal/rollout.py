"""The nouns that the services share, as plain Python values.

All code uses these; `shoal.wire` turns them into messages and back. Shapes: P tokens of a prompt, T tokens of a
completion.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from shoal.conversation import ChatMessage, question_of
from shoal.scores import ScoreOutcome

if TYPE_CHECKING:
    from shoal.arrays import BoolArray, Float32Array, Int32Array


@dataclass(frozen=True, order=True)
class WeightVersion:
    """A version of the policy's weights; ordered by attempt, then by policy version. Written "0.12"."""

    attempt: int
    """Number of times the run was restored from a checkpoint."""
    policy_version: int
    """Number of train steps taken; 0 is the start."""

    def __str__(self) -> str:
        return f"{self.attempt}.{self.policy_version}"

    @classmethod
    def parse(cls, text: str) -> "WeightVersion":
        """Parses the result of `str`. Raises ValueError for anything else."""
        attempt, policy_version = text.split(".")
        return cls(int(attempt), int(policy_version))


@dataclass(frozen=True)
class VersionSpan:
    """Tokens `start` to `end` (exclusive) of a completion were sampled under `version`."""

    version: WeightVersion
    start: int
    end: int


MAX_WEIGHT = 1e30
"""Largest magnitude of a weight: with larger weights a sum of rewards could leave the range of a double."""


@dataclass(frozen=True)
class GroundTruth:
    """A verifier for each completion of a prompt, with its label."""

    verifier: str
    label: Any
    """Any JSON value; each verifier documents its own form."""
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
    """Stable across runs: "source:row"."""
    token_ids: "Int32Array"
    """[P] the chat-templated prompt."""
    text: str
    ground_truths: tuple[GroundTruth, ...]
    messages: tuple[ChatMessage, ...] = ()
    """The messages that `text` was rendered from; empty if only the text is known."""
    environment: EnvironmentTask | None = None
    """The environment of its episodes; None if an episode is one completion."""

    @property
    def question(self) -> str:
        """The question for people: without the chat template's markup, if the messages are known."""
        return question_of(self.messages) or self.text


@dataclass(frozen=True)
class SamplingParams:
    """The parameters that completions are sampled with."""

    temperature: float
    max_completion_tokens: int
    stop_token_ids: tuple[int, ...]
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    stop_strings: tuple[str, ...] = ()
    """Non-empty texts that end a completion. The text itself stays a part of the completion."""
    return_support: bool = False
    """Return the support of each token with the completion."""


class FinishReason(StrEnum):
    """The reason why a completion ended."""

    STOP = "stop"
    """A stop token was sampled, or a stop string completed."""
    LENGTH = "length"
    """The completion or the context reached its limit."""
    ABORT = "abort"
    """The request was aborted before the completion was whole; never trained on."""


@dataclass(frozen=True)
class Support:
    """The tokens that each token of a completion was drawn from, after top-k, top-p and min-p."""

    token_ids: "Int32Array"
    """The supports of all tokens, end to end: in each the sampled token first, then the others."""
    counts: "Int32Array"
    """[T] the number of tokens in the support of each token, at least 1."""

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
    """[T], including the stop token or the tokens of the stop string, if one was sampled."""
    behavior_logprobs: "Float32Array"
    """[T] log-probability of each token under the distribution that it was drawn from; NaN where unknown."""
    finish_reason: FinishReason
    version_spans: tuple[VersionSpan, ...]
    """In order. They cover 0..T without gaps; in an episode they cover exactly the sampled tokens."""
    seed: int
    text: str = ""
    loss_mask: "BoolArray | None" = None
    """[T] True where the token counts in the loss; None means that all count."""
    support: Support | None = None
    """The supports; None if each token was drawn from the whole vocabulary, or if supports were not requested."""
    episode: "Episode | None" = None
    """How the completion was played, where it has several turns. The tokens of the environment have a log-probability
    of NaN and do not count in the loss."""

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_bytes(self) -> int:
        """Size of the arrays."""
        arrays = [self.token_ids, self.behavior_logprobs]
        if self.support is not None:
            arrays += [self.support.token_ids, self.support.counts]
        return sum(array.nbytes for array in arrays)

    @property
    def oldest_version(self) -> WeightVersion:
        """The oldest weights that sampled a token of this completion."""
        return min(span.version for span in self.version_spans)

    def segments(self, prompt_token_ids: "Int32Array") -> "tuple[EpisodeSegment, ...]":
        """Returns its segments; a completion without any is one, behind the prompt of its group."""
        if self.episode is not None and self.episode.segments:
            return self.episode.segments
        return (EpisodeSegment(prompt_token_ids, 0, self.num_tokens),)


@dataclass(frozen=True)
class ToolOutcome:
    """What became of a tool call."""

    name: str
    ok: bool
    timed_out: bool
    duration_s: float


@dataclass(frozen=True)
class EpisodeTurn:
    """One turn of an episode: what the policy sampled, and what came back."""

    start: int
    """First sampled token in the completion."""
    end: int
    """One past the last sampled token."""
    message: ChatMessage
    """What the policy said."""
    finish_reason: FinishReason
    seed: int
    observations: tuple[ChatMessage, ...] = ()
    reward: float | None = None
    """None if the environment gave none for the turn."""
    tool_outcomes: tuple[ToolOutcome, ...] = ()
    """The outcomes, in the order of the turn's tool calls."""
    number: int = 0
    """The turn's place in time among all turns, from 1, if segments may alternate; 0 if turns are in order of time."""
    opened_thought: str = ""
    """The mark of the thought that the chat template began the turn with; empty without one."""


@dataclass(frozen=True)
class EpisodeSegment:
    """A context of the policy: its prompt, and the tokens `start` to `end` (exclusive) of the completion after it."""

    prompt_token_ids: "Int32Array"
    """[P]"""
    start: int
    end: int
    messages: tuple[ChatMessage, ...] = ()
    """The prompt as messages, for people; empty if it was given as tokens."""


@dataclass(frozen=True)
class Episode:
    """The course of a completion as an episode of several turns."""

    turns: tuple[EpisodeTurn, ...]
    stop_reason: str
    """"done", "no_call", or the limit that the episode reached."""
    is_truncated: bool
    """Whether a limit ended it."""
    outcome: ScoreOutcome
    """The environment's outcome."""
    reward: float | None = None
    """The reward of the whole episode, in addition to rewards of turns; None if there is none."""
    first_messages: tuple[ChatMessage, ...] = ()
    """The environment's messages before the first turn."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """The environment's numbers for the metrics."""
    detail: str = ""
    """The cause of a failure, or the environment's findings, for people."""
    segments: tuple[EpisodeSegment, ...] = ()
    """The segments, in order; they cover the completion. Empty if all of it follows the prompt of its group."""
    num_auxiliary_turns: int = 0
    """Turns that are not part of the completion."""

    @property
    def turns_in_time(self) -> tuple[EpisodeTurn, ...]:
        """The turns in the order in which they were sampled, whatever their segments."""
        return tuple(sorted(self.turns, key=lambda turn: turn.number))


@dataclass(frozen=True)
class Rollout:
    """A completion with the values that it is trained with."""

    completion: Completion
    advantage: float
    """The advantage of each token, unless `token_advantages` is set."""
    weight: float = 1.0
    """Factor of the loss of all tokens."""
    reward: float | None = None
    token_advantages: "Float32Array | None" = None
    """The advantage of each token, [T], if the tokens' advantages differ."""


@dataclass(frozen=True)
class TrainGroup:
    """The rollouts of one prompt in a train step."""

    group_id: str
    prompt_token_ids: "Int32Array"
    """[P]"""
    rollouts: tuple[Rollout, ...]
    traceparent: str = ""


@dataclass(frozen=True)
class TrainBatch:
    """The input of one train step."""

    train_step_id: str
    expected_version: WeightVersion
    temperature: float
    groups: tuple[TrainGroup, ...] = field(default_factory=tuple)

    @property
    def num_tokens(self) -> int:
        """Number of tokens in prompts and completions."""
        return sum(
            len(group.prompt_token_ids) + sum(rollout.completion.num_tokens for rollout in group.rollouts)
            for group in self.groups
        )
