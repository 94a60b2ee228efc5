"""Evaluation: held-out questions, answered by one version of the weights, through the same path as training.

    step boundary -> all questions sampled at the version that the generators hold -> the next step
                          \\-> scored -> reported, beside the next step

The training loop stands still while answers are sampled, so that no publish changes the weights under them, and
continues as soon as the last one is sampled. Groups for training are sampled all the while, except in a pause: then an
evaluation that is requested has the generators for itself, and the run stays paused. An evaluation has seeds of its own
and does not touch the ledger: training is the same with and without it.
"""

import asyncio
import contextlib
import logging
from collections.abc import Collection, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace

from services.coordinator.reporting.report import Report
from services.coordinator.rollout.controls import RunControls
from services.coordinator.rollout.current_version import CurrentVersion
from services.coordinator.rollout.evaluation_result import AnsweredQuestion, EvaluationResult
from services.coordinator.rollout.sampler import MAX_TIMEOUTS, Sampler
from services.coordinator.run.commands import RunCommands
from services.coordinator.run.step_boundary import StepBoundary
from services.coordinator.workers.batches import Seat, seats_of
from services.coordinator.workers.generator_pool import GeneratorPool
from services.coordinator.workers.handover.group_progress import GroupProgress
from services.coordinator.workers.losses import Losses, WorkFailed
from services.coordinator.workers.rewards.reward_pool import GrowingGroup, RewardPool
from shoal.concurrency import first_error
from shoal.config import RunConfig
from shoal.error_reasons import ErrorReason
from shoal.errors import DeadlineExceeded, FailedPrecondition, ShoalError
from shoal.grpo.seeds import evaluation_seed
from shoal.rollout import Completion, Prompt, SamplingParams, Score, ScoreOutcome, WeightVersion

_log = logging.getLogger(__name__)

_PRIORITY = -1
"""Before groups for training, since the train step waits for the answers."""


class Evaluations:
    """Runs the evaluations of a run: when they are due or requested, one at a time, each reported once."""

    def __init__(
        self,
        config: RunConfig,
        prompts: Sequence[Prompt],
        name: str,
        *,
        version: CurrentVersion,
        controls: RunControls,
        boundary: StepBoundary,
        commands: RunCommands,
        sampler: Sampler,
        generators: GeneratorPool,
        rewards: RewardPool,
        report: Report,
    ) -> None:
        """`name` distinguishes the requests of this run and attempt from others."""
        self._config = config
        self._prompts = prompts
        self._name = name
        self._version = version
        self._controls = controls
        self._boundary = boundary
        self._commands = commands
        self._sampler = sampler
        self._generators = generators
        self._rewards = rewards
        self._report = report
        self._last_round: asyncio.Task[None] | None = None
        self._rounds: set[asyncio.Task[None]] = set()
        """Unfinished evaluations: at most one is being sampled, the others are being scored."""
        self._num_rounds = 0
        self._begun: set[int] = set()
        """Steps whose policy is evaluated already, or being scored: a skipped step leads to the same policy again."""
        self.blocked_s = 0.0
        """Total time that the training loop has stood still for evaluations, pauses apart."""

    def leave_out(self, prompt_ids: Collection[str]) -> None:
        """Removes questions, before the first evaluation."""
        self._prompts = [prompt for prompt in self._prompts if prompt.prompt_id not in prompt_ids]

    async def request(self) -> EvaluationResult:
        """Requests an evaluation at the next step boundary, and waits for the result.

        A paused run is evaluated at once, and stays paused. Raises `FailedPrecondition` when the run has no questions,
        or ends before the result.
        """
        if not self._prompts:
            raise FailedPrecondition(
                "the run has no held-out questions: it was started without evaluation.sources",
                reason=ErrorReason.NO_QUESTIONS,
            )
        return await self._controls.request_evaluation()

    async def run_if_due(self) -> None:
        """Evaluates the policy if the configuration asks for it at this step, and it has not been; see `run`."""
        is_due = self._config.evaluation.is_due(self._version.policy_version, self._config.run.num_steps)
        if is_due and self._controls.stop is None:
            await self._run_once()

    async def run_last(self) -> None:
        """Evaluates the policy that a stopped run ends with, if there are questions, and it has not been."""
        if self._prompts:
            await self._run_once()

    async def _run_once(self) -> None:
        step = self._version.policy_version
        if step not in self._begun and not self._report.has_evaluated(step):
            await self.run()

    async def run(self) -> None:
        """Evaluates the weights that the generators hold; returns once every answer is sampled.

        Cancels the evaluation when the run must stop now.
        """
        if self._controls.evaluation_requests:
            await self._commands.begin_evaluation()
        began = self._controls.running_s()
        version = self._version.weights
        self._num_rounds += 1
        self._begun.add(version.policy_version)
        evaluation = _Evaluation(
            self._config,
            f"{self._name}/evaluation-{version.policy_version}-{self._num_rounds}",
            version,
            self._controls,
            self._sampler,
            self._generators,
            self._rewards,
        )
        requests = self._controls.take_evaluation_requests()
        running = asyncio.create_task(self._run(evaluation, requests, after=self._last_round))
        self._last_round = running
        self._rounds.add(running)
        running.add_done_callback(self._rounds.discard)
        sampled = asyncio.create_task(evaluation.all_sampled.wait())
        either = asyncio.create_task(_first_of(running, sampled))
        try:
            while not either.done():
                if not await self._boundary.wait_while_paused():
                    await self.cancel()
                    return
                if self._controls.stands_still:  # The pause came after the evaluation had begun, and then a request.
                    await self._commands.begin_evaluation()
                    continue
                await self._controls.wait_for_change_or(either)
        finally:
            sampled.cancel()
            either.cancel()
            self.blocked_s += self._controls.running_s() - began
            await self._commands.end_evaluation()
        if running.done():
            await running

    async def finish(self) -> None:
        """Waits until all answers are scored and reported; raises the error that prevented it."""
        if self._last_round is not None:
            await self._last_round

    async def cancel(self) -> None:
        """Cancels the unfinished evaluations; they have no result."""
        rounds, self._last_round = list(self._rounds), None
        for running in rounds:
            running.cancel()
        await asyncio.gather(*rounds, return_exceptions=True)

    async def _run(
        self,
        evaluation: "_Evaluation",
        requests: Sequence["asyncio.Future[EvaluationResult]"],
        after: "asyncio.Task[None] | None",
    ) -> None:
        """Completes one evaluation, reports it `after` the one before, and answers its requests."""
        error: BaseException = FailedPrecondition("the evaluation was canceled: the run is ending")
        try:
            async with self._report.shown_alive(
                f"evaluating the policy of step {evaluation.version.policy_version}",
                lambda: "" if self._controls.stands_still else evaluation.describe_progress(),
            ):
                result = await evaluation.result(self._prompts)
            if after is not None:
                await after
            self._report.evaluation(result)
            for request in requests:
                if not request.done():
                    request.set_result(result)
        except ShoalError as failure:
            error = failure
            raise
        finally:
            for request in requests:
                if not request.done():
                    request.set_exception(error)


@dataclass
class _Evaluation:
    """One evaluation: all questions, at one version."""

    config: RunConfig
    name: str
    version: WeightVersion
    controls: RunControls
    sampler: Sampler
    generators: GeneratorPool
    rewards: RewardPool
    all_sampled: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the generators are done; scoring may continue."""
    num_unsampled: int = 0
    num_scored: int = 0
    num_questions: int = 0

    def describe_progress(self) -> str:
        """Describes how many answers are sampled and scored."""
        num_sampled = self.num_questions - self.num_unsampled
        return f"{num_sampled} of {self.num_questions} questions sampled, {self.num_scored} scored"

    async def result(self, prompts: Sequence[Prompt]) -> EvaluationResult:
        """Samples and scores the answers to all questions."""
        began = self.controls.running_s()
        self.num_unsampled = self.num_questions = len(prompts)
        num_samples = self.config.evaluation.samples_per_prompt
        each = [[index] for index in range(len(prompts))]
        seats = seats_of(each, name=self.name, num_completions=num_samples, config=self.config)
        slots, sampled_s = self._slots(), 0.0

        async def answer(index: int, prompt: Prompt) -> AnsweredQuestion:
            nonlocal sampled_s
            name = f"{self.name}/{index}"
            losses = Losses(self.config.coordinator.max_group_losses)
            async with slots:
                completions = await self._sample(prompt, name, losses, seats.get(index))
            self.num_unsampled -= 1
            if not self.num_unsampled:
                sampled_s = self.controls.running_s() - began
                self.all_sampled.set()
            scores = await self._score(prompt, completions, name, losses)
            self.num_scored += 1
            return AnsweredQuestion(prompt, completions, scores)

        async with first_error(asyncio.TaskGroup()) as tasks:
            answers = [tasks.create_task(answer(index, prompt)) for index, prompt in enumerate(prompts)]
        return EvaluationResult(
            version=self.version,
            answered=tuple(task.result() for task in answers),
            num_samples=num_samples,
            sampling_s=sampled_s,
            ks=tuple(self.config.evaluation.pass_at_k),
        )

    def _slots(self) -> AbstractAsyncContextManager[None]:
        """Returns what a question needs to be sampled; all of a batch have to be there, and need nothing."""
        if self.config.run.deterministic:
            return contextlib.nullcontext()
        # As many as the generators decode at once: more would only delay training's groups in their queues.
        num_at_once = self.config.generator.max_num_seqs * max(1, self.generators.num_serving)
        return asyncio.Semaphore(max(1, num_at_once // self.config.evaluation.samples_per_prompt))

    async def _sample(self, prompt: Prompt, name: str, losses: Losses, seat: Seat | None) -> tuple[Completion, ...]:
        """Samples the answers to one question, all of the evaluated version; none after two timeouts, or too many
        losses."""
        seeds = [
            evaluation_seed(self.config.run.seed, prompt.prompt_id, index)
            for index in range(self.config.evaluation.samples_per_prompt)
        ]
        num_tries, num_timeouts = 0, 0
        while num_timeouts < MAX_TIMEOUTS and not losses.are_too_many:
            await losses.pause()
            await self.controls.moving()
            num_tries += 1
            num_pauses = self.controls.num_pauses
            try:
                return await self._sample_once(prompt, seeds, f"{name}/{num_tries}", seat)
            except WorkFailed as error:
                losses.count(error)
                _log.info("a question is sampled again", extra={"question": name, "reason": str(error)})
                continue
            except DeadlineExceeded:
                # A deadline that passed during a pause does not count.
                num_timeouts += num_pauses == self.controls.num_pauses
        if seat is not None:
            seat.leave()
        return ()

    async def _sample_once(
        self, prompt: Prompt, seeds: Sequence[int], request_id: str, seat: Seat | None
    ) -> tuple[Completion, ...]:
        completions = []
        async with self.generators.room(len(seeds), priority=_PRIORITY, version=self.version, seat=seat) as binding:
            async for completion in self.generators.sample(
                binding,
                prompt,
                GroupProgress(seeds),
                evaluation_sampling(self.config, self.sampler.sampling),
                request_id=request_id,
                timeout_s=self.config.coordinator.sampling_timeout_s,
                with_text=self.sampler.with_text,
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
                return await self.rewards.score(
                    name, prompt, group, {}, timeout_s=self.config.coordinator.sampling_timeout_s, losses=losses
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


async def _first_of(*work: "asyncio.Task[None] | asyncio.Task[bool]") -> None:
    await asyncio.wait(work, return_when=asyncio.FIRST_COMPLETED)
