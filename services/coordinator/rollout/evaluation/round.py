"""One evaluation, in which one version of the weights answers all questions, and the answers are scored."""

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace

from services.coordinator.rollout.completions import EpisodeRequest
from services.coordinator.rollout.evaluation.result import AnsweredQuestion, EvaluationResult
from services.coordinator.rollout.rollout_parts import RolloutParts
from services.coordinator.rollout.rounds import EpisodeTurns, turn_rounds_of
from services.coordinator.rollout.sampler import MAX_TIMEOUTS
from services.coordinator.workers.deterministic_batches import Seat, seats_of
from services.coordinator.workers.group_progress import GroupProgress, GrowingGroup
from services.coordinator.workers.lost_work import LostWork, WorkFailed
from shoal.concurrency import first_error
from shoal.config import RunConfig
from shoal.data import HeldOut
from shoal.errors import DeadlineExceeded, InvalidArgument
from shoal.grpo.seeds import evaluation_environment_seed, evaluation_seed
from shoal.rollout import Completion, Prompt, SamplingParams, WeightVersion
from shoal.scores import Score, ScoreOutcome

_log = logging.getLogger(__name__)

_PRIORITY = -1
"""Priority of evaluations, which come before groups for training, since the train step waits for the answers."""


@dataclass(frozen=True)
class _Question:
    """A held-out question on its way to its answers."""

    name: str
    prompt: Prompt
    seeds: Sequence[int]
    """The seeds, one for each answer."""
    seat: Seat | None
    """The seat of the question in a deterministic run; None for episodes."""
    turns: Sequence[EpisodeTurns | None]
    """The part of each episode of the question in the rounds of turns; None without `run.deterministic`."""


@dataclass
class EvaluationRound:
    """Samples and scores the answers to all questions, at one version of the weights."""

    name: str
    """A name that distinguishes its requests from all others of the run."""
    version: WeightVersion
    parts: RolloutParts
    all_sampled: asyncio.Event = field(init=False, default_factory=asyncio.Event)
    """Set when the generators are done; scoring may continue."""
    num_unsampled: int = field(init=False, default=0)
    num_scored: int = field(init=False, default=0)
    num_questions: int = field(init=False, default=0)
    _sampling_s: float = field(init=False, default=0.0)

    def describe_progress(self) -> str:
        """Describes the number of sampled and scored answers."""
        num_sampled = self.num_questions - self.num_unsampled
        return f"{num_sampled} of {self.num_questions} questions sampled, {self.num_scored} scored"

    async def result(self, held_out: HeldOut) -> EvaluationResult:
        """Samples and scores the answers to all questions."""
        began, questions, slots = self.parts.pause.running_s(), self._questions(held_out.prompts), self._slots()
        self.num_unsampled = self.num_questions = len(questions)
        async with first_error(asyncio.TaskGroup()) as tasks:
            answers = [tasks.create_task(self._answer(question, slots, began)) for question in questions]
        settings = self.parts.config().evaluation
        return EvaluationResult(
            version=self.version,
            answered=tuple(task.result() for task in answers),
            num_samples=settings.samples_per_prompt,
            sampling_s=self._sampling_s,
            ks=tuple(settings.pass_at_k),
            left_out=held_out.left_out,
        )

    async def _answer(
        self, question: _Question, slots: AbstractAsyncContextManager[None], began: float
    ) -> AnsweredQuestion:
        lost = LostWork(self.parts.config().coordinator.max_group_losses)
        async with slots:
            completions = await self._sample(question, lost)
        self.num_unsampled -= 1
        if not self.num_unsampled:
            self._sampling_s = self.parts.pause.running_s() - began
            self.all_sampled.set()
        scores = await self._score(question, completions, lost)
        self.num_scored += 1
        return AnsweredQuestion(question.prompt, completions, scores, self.parts.config().reward)

    def _questions(self, prompts: Sequence[Prompt]) -> list[_Question]:
        config = self.parts.config()
        every = range(config.evaluation.samples_per_prompt)
        single = self._seats(prompts, "single", plays_episodes=False)
        rounds = turn_rounds_of(self._seats(prompts, "episodes", plays_episodes=True), lambda _: len(every))
        return [
            _Question(
                f"{self.name}/{index}",
                prompt,
                [evaluation_seed(config.run.seed, prompt.prompt_id, number) for number in every],
                single.get(index),
                [EpisodeTurns(rounds[index], (index, number)) if index in rounds else None for number in every],
            )
            for index, prompt in enumerate(prompts)
        ]

    def _seats(self, prompts: Sequence[Prompt], kind: str, *, plays_episodes: bool) -> dict[int, Seat]:
        """Returns the seats of the questions of one kind, by index, in a deterministic run."""
        chosen = [[i] for i, prompt in enumerate(prompts) if (prompt.environment is not None) is plays_episodes]
        num_samples = self.parts.config().evaluation.samples_per_prompt
        return seats_of(chosen, name=f"{self.name}/{kind}", num_completions=num_samples, config=self.parts.config())

    def _slots(self) -> AbstractAsyncContextManager[None]:
        """Returns the slot of a question in sampling, which questions of a batch do not need."""
        if self.parts.config().run.deterministic:
            return contextlib.nullcontext()
        # As many as the generators decode at the same time: more would only delay training's groups in their queues.
        num_at_once = self.parts.config().generator.max_num_seqs * max(1, self.parts.generators.num_serving)
        return asyncio.Semaphore(max(1, num_at_once // self.parts.config().evaluation.samples_per_prompt))

    async def _sample(self, question: _Question, lost: LostWork) -> tuple[Completion, ...]:
        """Samples the answers to one question with the evaluated version; none after two timeouts, or many losses."""
        pause, num_timeouts = self.parts.pause, 0
        once = self._sample_once if question.prompt.environment is None else self._play
        async for number in lost:
            await pause.moving()
            num_pauses = pause.num_pauses
            try:
                return await once(question, f"{question.name}/{number + 1}")
            except WorkFailed as error:
                _log.info("a question is sampled again", extra={"question": question.name, "reason": str(error)})
                if lost.count(error):
                    break
            except DeadlineExceeded:
                # A deadline that passed during a pause does not count.
                num_timeouts += num_pauses == pause.num_pauses
                if num_timeouts == MAX_TIMEOUTS:
                    break
        if question.seat is not None:
            question.seat.leave()
        return ()

    async def _play(self, question: _Question, name: str) -> tuple[Completion, ...]:
        """Plays the episodes of one question. No episode has an answer if the environment refuses the task."""
        prompt, config = question.prompt, self.parts.config()
        episodes = [
            EpisodeRequest(
                f"{name}/{index}",
                prompt,
                index,
                seed,
                evaluation_environment_seed(config.run.seed, prompt.prompt_id),
                evaluation_sampling(config, self.parts.sampling),
                _PRIORITY,
                self.version,
                question.turns[index],
            )
            for index, seed in enumerate(question.seeds)
        ]
        try:
            return await self.parts.episodes.answer(episodes)
        except InvalidArgument as error:
            _log.warning("a question is not answered", extra={"question": name, "reason": error.message})
            for each in filter(None, question.turns):
                each.leave()
            return ()

    async def _sample_once(self, question: _Question, request_id: str) -> tuple[Completion, ...]:
        seeds, generators, texts = question.seeds, self.parts.generators, self.parts.completions
        progress = GroupProgress(seeds)
        async with generators.room(len(seeds), priority=_PRIORITY, version=self.version, seat=question.seat) as binding:
            async for _ in generators.sample(
                binding,
                question.prompt,
                progress,
                evaluation_sampling(self.parts.config(), self.parts.sampling),
                request_id=request_id,
                timeout_s=texts.timeout_s,
                with_text=texts.with_text,
            ):
                pass
            if not progress.is_of(self.version):
                raise WorkFailed(binding.member.name, "it answered with weights of another version", is_loss=False)
        return tuple(progress.in_order)

    async def _score(self, question: _Question, completions: Sequence[Completion], lost: LostWork) -> Sequence[Score]:
        """Returns one score for each answer; FAILED after two timeouts, or too many losses."""
        for _ in range(MAX_TIMEOUTS if completions else 0):
            group = GrowingGroup(completions)
            group.complete()
            with contextlib.suppress(DeadlineExceeded, WorkFailed):
                timeout_s = self.parts.completions.timeout_s
                return await self.parts.rewards.score(
                    question.name, question.prompt, group, {}, timeout_s=timeout_s, lost=lost
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
