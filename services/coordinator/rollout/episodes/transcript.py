"""The tokens and turns of an episode so far."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from services.coordinator.rollout.episodes.messages import EpisodeResult, Observation
from shoal.arrays import Int32Array
from shoal.conversation import ChatMessage
from shoal.rollout import Completion, Episode, EpisodeTurn, FinishReason, Prompt, Support
from shoal.scores import ScoreOutcome
from shoal.token_run import TokenRun, joined


class Transcript:
    """The policy's turns and the environment's answers, as tokens and as messages."""

    def __init__(self, prompt: Prompt, sample_index: int, seed: int) -> None:
        self.turns: list[EpisodeTurn] = []
        self.first_messages: tuple[ChatMessage, ...] = ()
        self.num_calls = 0
        """Tool calls that were handed to the environment."""
        self.prompt_ids = prompt.token_ids
        self.prompt_messages = prompt.messages
        self._sample_index = sample_index
        self._seed = seed
        self._runs: list[tuple[TokenRun, bool]] = []
        """Tokens in order, and whether the policy sampled them."""
        self.num_tokens = 0
        """Tokens after the prompt."""
        self._num_observed = -1
        """Number of turns that the environment has answered; -1 before the environment's first message."""

    @property
    def context(self) -> Int32Array:
        """The prompt and all tokens after it."""
        return np.concatenate([self.prompt_ids, *(run.token_ids for run, _ in self._runs)])

    @property
    def last_token(self) -> int:
        """The last sampled token, which exists after each turn."""
        return int(self._runs[-1][0].token_ids[-1])

    @property
    def is_observed(self) -> bool:
        """Whether the environment has answered the last turn, or the start if there is no turn."""
        return self._num_observed == len(self.turns)

    def environment_says(self, token_ids: Sequence[int], *, with_support: bool) -> None:
        """Adds tokens that the policy did not sample."""
        ids = np.array(token_ids, dtype=np.int32)
        # Its only candidate is itself. So either each token of a completion has a support, or none has.
        support = Support(ids, np.ones(len(ids), np.int32)) if with_support else None
        self._add(TokenRun(ids, np.full(len(ids), np.nan, np.float32), (), support), is_sampled=False)

    def policy_says(
        self,
        run: TokenRun,
        message: ChatMessage,
        finish_reason: FinishReason,
        seed: int,
        opened_thought: str,
        number: int = 0,
    ) -> None:
        """Adds a turn. `opened_thought` and `number` are the fields of `EpisodeTurn`."""
        start = self.num_tokens
        self._add(run, is_sampled=True)
        end = self.num_tokens
        turn = EpisodeTurn(start, end, message, finish_reason, seed, number=number, opened_thought=opened_thought)
        self.turns.append(turn)

    def forget_last_turn(self) -> None:
        """Removes the last turn, and everything after the previous turn."""
        self.turns.pop()
        end = self.turns[-1].end if self.turns else 0
        while self.num_tokens > end:
            self.num_tokens -= self._runs.pop()[0].num_tokens
        if self.turns:
            self.turns[-1] = replace(self.turns[-1], observations=(), tool_outcomes=())

    def pay(self, turn: int, reward: float) -> None:
        """Sets the reward of a turn, counted from 0."""
        self.turns[turn] = replace(self.turns[turn], reward=reward)

    def observed(self, observation: Observation) -> None:
        """Adds the environment's answer to the start, or to the last turn."""
        self._num_observed = len(self.turns)
        if not self.turns:
            self.first_messages = observation.messages
            return
        self.turns[-1] = replace(
            self.turns[-1],
            observations=observation.messages,
            reward=observation.reward,
            tool_outcomes=observation.tool_outcomes,
        )

    def append(self, other: "Transcript") -> None:
        """Appends the tokens and turns of another segment."""
        self.turns += [
            replace(turn, start=turn.start + self.num_tokens, end=turn.end + self.num_tokens) for turn in other.turns
        ]
        self._runs += other._runs
        self.num_tokens += other.num_tokens

    def completion(self, result: EpisodeResult, stop_reason: str, *, is_truncated: bool) -> Completion:
        """Returns the whole episode. Its text is the policy's last message."""
        run = joined([run for run, _ in self._runs])
        masks = [np.full(part.num_tokens, is_sampled) for part, is_sampled in self._runs]
        outcome, detail = result.outcome, result.detail
        if outcome is ScoreOutcome.SCORED and not any(turn.end > turn.start for turn in self.turns):
            outcome, detail = ScoreOutcome.UNSCORABLE, "no turn of the policy fits after the environment's message"
        return Completion(
            sample_index=self._sample_index,
            token_ids=run.token_ids,
            behavior_logprobs=run.logprobs,
            finish_reason=FinishReason.LENGTH if is_truncated else FinishReason.STOP,
            version_spans=run.version_spans,
            seed=self._seed,
            text=self.turns[-1].message.content if self.turns else "",
            loss_mask=np.concatenate(masks) if masks else np.zeros(0, dtype=bool),
            support=run.support,
            episode=Episode(
                turns=tuple(self.turns),
                stop_reason=stop_reason,
                is_truncated=is_truncated,
                outcome=outcome,
                reward=result.reward,
                first_messages=self.first_messages,
                metrics=result.metrics,
                detail=detail,
            ),
        )

    def _add(self, run: TokenRun, *, is_sampled: bool) -> None:
        self._runs.append((run, is_sampled))
        self.num_tokens += run.num_tokens
