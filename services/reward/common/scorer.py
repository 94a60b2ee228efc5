"""The interface of everything that scores completions."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from shoal.chat_templates.thoughts import opened_thought
from shoal.rollout import GroundTruth, Prompt
from shoal.scores import VerifierScore
from shoal.v1 import rollout_pb2
from shoal.wire import int32_from_wire


@dataclass(frozen=True)
class ListedVerifier:
    """A verifier, for people."""

    name: str
    reads: str
    """What it reads of prompt and completion."""
    description: str
    """What it reads, what it returns, and in which range."""
    unavailable: str = ""
    """Why it cannot work here; empty if it can."""
    code_digest: str = ""
    """SHA-256, in hex, of its code, if that does not come with Shoal."""


class Scorer(Protocol):
    """The verifiers of one kind. Belongs to one event loop."""

    @property
    def names(self) -> Collection[str]:
        """Names of its verifiers. No two scorers share one."""
        ...

    def unavailable(self, name: str) -> str:
        """Returns why a verifier cannot be used, and how to change that; empty if it can."""
        ...

    async def start(self) -> None:
        """Makes it ready to score. Raises a `ShoalError` that names what cannot work."""
        ...

    async def close(self) -> None:
        """Releases what it has started. What is open is FAILED."""
        ...

    async def score(self, truth: GroundTruth, prompt: Prompt, completion: rollout_pb2.Completion) -> VerifierScore:
        """Scores one completion by the verifier of `truth`. Never raises, except when canceled: an error is an
        outcome."""
        ...

    async def label_problem(self, truth: GroundTruth) -> str:
        """Returns why a label cannot be judged by; empty if it can, or if nothing is known of it."""
        ...

    async def describe(self) -> Sequence[ListedVerifier]:
        """Describes all its verifiers."""
        ...


def whole_text(prompt: Prompt, completion: rollout_pb2.Completion) -> str:
    """Returns the completion's text behind the mark of the thought that the prompt has opened, if it has: without the
    mark, nobody sees that a completion which never ends the thought is one."""
    return opened_thought(prompt.text) + completion.text


def token_ids(completion: rollout_pb2.Completion) -> Sequence[int]:
    """Returns the completion's tokens; of an episode, those of the policy. Raises `InvalidArgument` for malformed
    bytes."""
    ids: list[int] = int32_from_wire(completion.token_ids, "completion.token_ids").tolist()
    if completion.HasField("episode"):
        return [token for turn in completion.episode.turns for token in ids[turn.start : turn.end]]
    return ids
