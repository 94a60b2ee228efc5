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
    """The description of a verifier that lists show to people."""

    name: str
    reads: str
    """The parts of prompt and completion that the verifier reads."""
    description: str
    """A description of the verifier's input, its value, and the range of the value."""
    unavailable: str = ""
    """The reason why the verifier cannot work here; empty if it can."""
    code_digest: str = ""
    """SHA-256, in hex, of the verifier's code, if the code does not come with Shoal."""


class Scorer(Protocol):
    """The verifiers of one kind. Belongs to one event loop."""

    @property
    def names(self) -> Collection[str]:
        """Names of the scorer's verifiers. No two scorers share a name."""

    def unavailable(self, name: str) -> str:
        """Returns why a verifier cannot be used, and how to change that; empty if it can."""

    async def start(self) -> None:
        """Prepares the scorer. Raises a `ShoalError`, whose message names the unusable part."""

    async def close(self) -> None:
        """Releases all resources of the scorer. Completions without a score become FAILED."""

    async def score(self, truth: GroundTruth, prompt: Prompt, completion: rollout_pb2.Completion) -> VerifierScore:
        """Scores one completion by the verifier of `truth`. Never raises, except when canceled: an error is an
        outcome."""

    async def label_problem(self, truth: GroundTruth) -> str:
        """Returns why a label is unusable; empty if it is usable, or if nothing is known about it."""

    async def describe(self) -> Sequence[ListedVerifier]:
        """Describes all verifiers of the scorer."""


def whole_text(prompt: Prompt, completion: rollout_pb2.Completion) -> str:
    """Returns the completion's text. If the prompt or an episode's last turn has opened a thought, the thought's begin
    mark precedes the text, since otherwise a text that never ends the thought would not look like a thought."""
    if completion.HasField("episode"):
        turns = completion.episode.turns
        return (turns[-1].opened_thought if turns else "") + completion.text
    return opened_thought(prompt.text) + completion.text


def token_ids(completion: rollout_pb2.Completion) -> Sequence[int]:
    """Returns the completion's tokens; for an episode, the policy's tokens. Raises `InvalidArgument` for bad ids."""
    ids: list[int] = int32_from_wire(completion.token_ids, "completion.token_ids").tolist()
    if completion.HasField("episode"):
        return [token for turn in completion.episode.turns for token in ids[turn.start : turn.end]]
    return ids
