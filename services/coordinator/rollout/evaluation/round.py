"""One evaluation: all questions answered by one version of the weights, and scored."""

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace

from services.coordinator.rollout.completions import EpisodeRequest
from services.coordinator.rollout.evaluation.result import AnsweredQuestion, EvaluationResult
from services.coordinator.rollout.rollout_parts import RolloutParts
from services.coordinator.rollout.sampler import MAX_TIMEOUTS
from services.coordinator.workers.batches import Seat, seats_of
from services.coordinator.workers.group_progress import GroupProgress
from services.coordinator.workers.losses import Losses, WorkFailed
from services.coordinator.workers.rewards.growing_group import GrowingGroup
from services.coordinator.workers.turn_batches import EpisodeTurns, turn_rounds_of
from shoal.concurrency import first_error
from shoal.config import RunConfig
from shoal.data import HeldOut
from shoal.errors import DeadlineExceeded, InvalidArgument
from shoal.grpo.seeds import evaluation_environment_seed, evaluation_seed
from shoal.rollout import Completion, Prompt, SamplingParams, WeightVersion
from shoal.scores import Score, ScoreOutcome

_log = logging.getLogger(__name__)

Turns = Sequence[EpisodeTurns | None]
"""The part of each episode of a question in the rounds of turns; None without `run.deterministic`."""

_PRIORITY = -1
"""Before groups for training, since the train step waits for the answers."""


@dataclass
class EvaluationRound:
    """All questions, at one version."""

    name: str
    """Distinguishes its requests from all others of the run."""
    version: WeightVersion
    parts: RolloutParts
    all_sampled: asyncio.Event = field(init=False, default_factory=asyncio.Event)
    """Set when the generators are done; scoring may continue."""
    num_unsampled: int = field(init=False, default=0)
    num_scored: int = field(init=False, default=0)
    num_questions: int = field(init=False, default=0)

    def describe_progress(self) -> str:
        """Describes how many answers are sampled and scored."""
        num_sampled = self.num_questions - self.num_unsampled
        return f"{num_sampled} of {self.num_questions} questions sampled, {self.num_scored} scored"

    async def result(self, held_out: HeldOut) -> EvaluationResult:
        """Samples and scores the answers to all questions."""
        began, prompts = self.parts.pause.running_s(), held_out.prompts
        self.num_unsampled = self.num_questions = len(prompts)
        num_samples = self.parts.config().evaluation.samples_per_prompt
        single = self._seats(prompts, "single", plays_episodes=False)
        rounds = turn_rounds_of(self._seats(prompts, "episodes", plays_episodes=True), lambda _: num_samples)
        turns = {i: [EpisodeTurns(each, (i, n)) for n in range(num_samples)] for i, each in rounds.items()}
        nobody: Turns = [None] * num_samples
        slots, sampled_s = self._slots(), 0.0

        async def answer(index: int, prompt: Prompt) -> AnsweredQuestion:
            nonlocal sampled_s
            name = f"{self.name}/{index}"
            losses = Losses(self.parts.config().coordinator.max_group_losses)
            async with slots:
                completions = await self._sample(prompt, name, losses, single.get(index), turns.get(index, nobody))
            self.num_unsampled -= 1
            if not self.num_unsampled:
                sampled_s = self.parts.pause.running_s() - began
                self.all_sampled.set()
            scores = await self._score(prompt, completions, name, losses)
            self.num_scored += 1
            return AnsweredQuestion(prompt, completions, scores, self.parts.config().reward)

        async with first_error(asyncio.TaskGroup()) as tasks:
            answers = [tasks.create_task(answer(index, prompt)) for index, prompt in enumerate(prompts)]
        return EvaluationResult(
            version=self.version,
            answered=tuple(task.result() for task in answers),
            num_samples=num_samples,
            sampling_s=sampled_s,
            ks=tuple(self.parts.config().evaluation.pass_at_k),
            left_out=held_out.left_out,
        )

    def _seats(self, prompts: Sequence[Prompt], kind: str, *, plays_episodes: bool) -> dict[int, Seat]:
        """Returns the seats of the questions of one kind, by index, in a deterministic run."""
        chosen = [[i] for i, prompt in enumerate(prompts) if (prompt.environment is not None) is plays_episodes]
        num_samples = self.parts.config().evaluation.samples_per_prompt
        return seats_of(chosen, name=f"{self.name}/{kind}", num_completions=num_samples, config=self.parts.config())

    def _slots(self) -> AbstractAsyncContextManager[None]:
        """Returns what a question needs to be sampled; all of a batch have to be there, and need nothing."""
        if self.parts.config().run.deterministic:
            return contextlib.nullcontext()
        # As many as the generators decode at once: more would only delay training's groups in their queues.
        num_at_once = self.parts.config().generator.max_num_seqs * max(1, self.parts.generators.num_serving)
        return asyncio.Semaphore(max(1, num_at_once // self.parts.config().evaluation.samples_per_prompt))

    async def _sample(
        self, prompt: Prompt, name: str, losses: Losses, seat: Seat | None, turns: Turns
    ) -> tuple[Completion, ...]:
        """Samples the answers to one question, all of the evaluated version; none after two timeouts, or too many
        losses."""
        seeds = [
            evaluation_seed(self.parts.config().run.seed, prompt.prompt_id, index)
            for index in range(self.parts.config().evaluation.samples_per_prompt)
        ]
        num_tries, num_timeouts = 0, 0
        while num_timeouts < MAX_TIMEOUTS and not losses.are_too_many:
            await losses.pause()
            await self.parts.pause.moving()
            num_tries += 1
            num_pauses = self.parts.pause.num_pauses
            try:
                if prompt.environment is not None:
                    return await self._play(prompt, seeds, f"{name}/{num_tries}", turns)
                return await self._sample_once(prompt, seeds, f"{name}/{num_tries}", seat)
            except WorkFailed as error:
                losses.count(error)
                _log.info("a question is sampled again", extra={"question": name, "reason": str(error)})
                continue
            except DeadlineExceeded:
                # A deadline that passed during a pause does not count.
                num_timeouts += num_pauses == self.parts.pause.num_pauses
        if seat is not None:
            seat.leave()
        return ()

    async def _play(self, prompt: Prompt, seeds: Sequence[int], name: str, turns: Turns) -> tuple[Completion, ...]:
        """Plays the episodes of one question. None of them has an answer if the environment refuses the task."""
        episodes = [
            EpisodeRequest(
                f"{name}/{index}",
                prompt,
                index,
                seed,
                evaluation_environment_seed(self.parts.config().run.seed, prompt.prompt_id),
                evaluation_sampling(self.parts.config(), self.parts.sampling),
                _PRIORITY,
                self.version,
                turns[index],
            )
            for index, seed in enumerate(seeds)
        ]
        try:
            return await self.parts.episodes.answer(episodes)
        except InvalidArgument as error:
            _log.warning("a question is not answered", extra={"question": name, "reason": error.message})
            for each in filter(None, turns):
                each.leave()
            return ()

    async def _sample_once(
        self, prompt: Prompt, seeds: Sequence[int], request_id: str, seat: Seat | None
    ) -> tuple[Completion, ...]:
        completions = []
        async with self.parts.generators.room(
            len(seeds), priority=_PRIORITY, version=self.version, seat=seat
        ) as binding:
            async for completion in self.parts.generators.sample(
                binding,
                prompt,
                GroupProgress(seeds),
                evaluation_sampling(self.parts.config(), self.parts.sampling),
                request_id=request_id,
                timeout_s=self.parts.completions.timeout_s,
                with_text=self.parts.completions.with_text,
            ):
                completions.append(completion)
            if not all(self._is_of_version(completion) for completion in completions):
                raise WorkFailed(binding.member.name, "an answer is not of the evaluated version", is_loss=False)
        return tuple(sorted(completions, key=lambda completion: completion.sample_index))

    def _is_of_version(self, completion: Completion) -> bool:
        return all(span.version == self.version for span in completion.version_spans)

    async def _score(
        self, prompt: Prompt, completions: Sequence[Completion], name: str, losses: Losses
    ) -> Sequence[Score]:
        """Returns one score for each answer; FAILED after two timeouts, or too many losses."""
        for _ in range(MAX_TIMEOUTS if completions else 0):
            group = GrowingGroup()
            for completion in completions:
                group.add(completion)
            group.complete()
            with contextlib.suppress(DeadlineExceeded, WorkFailed):
                return await self.parts.rewards.score(
                    name, prompt, group, {}, timeout_s=self.parts.completions.timeout_s, losses=losses
                )
        return tuple(Score(completion.sample_index, ScoreOutcome.FAILED, 0.0) for completion in completions)


def evaluation_sampling(config: RunConfig, training: SamplingParams) -> SamplingParams:
    """Returns the evaluation's sampling settings, with the stop tokens of training."""
    settings = config.evaluation
    return replace(
        training,
        temperature=settings.temperature,
        max_completion_tokens=settings.max_completion_tokens or config.sampling.max_completion_tokens,
        top_p=settings.top_p,
        top_k=settings.top_k,
        min_p=settings.min_p,
        return_support=False,
        stop_strings=training.stop_strings if settings.stop_strings is None else tuple(settings.stop_strings),
    )
