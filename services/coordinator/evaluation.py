"""Held-out questions in the loop: asked at one version of the weights, through the same path as training.

    step boundary -> all questions sampled at the version that the generators hold -> the next step
                          \\-> scored -> reported, beside the next step

The training loop stands still while answers are sampled, so that no publish changes the weights under them, and goes
on as soon as the last one is. Groups for training are sampled all the while. Seeds are the evaluation's own, and the
ledger knows nothing of it: what is trained on is the same with and without.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import replace

from services.coordinator.controls import RunControls
from services.coordinator.evaluation_result import Answered, EvaluationResult
from services.coordinator.generators import GeneratorLost, Generators
from services.coordinator.report import Report
from services.coordinator.rewards import GrowingGroup, Rewards
from services.coordinator.sampling import NUM_TIMED_ISSUES, Sampler
from services.coordinator.tasks import first_error
from shoal.config import RunConfig
from shoal.errors import DeadlineExceeded, FailedPrecondition, ShoalError
from shoal.grpo.seeds import evaluation_seed
from shoal.rollout import Completion, FinishReason, Prompt, SamplingParams, Score, ScoreOutcome, WeightVersion

_log = logging.getLogger(__name__)


class Evaluations:
    """The evaluations of a run: when they are due, one at a time, each reported once."""

    def __init__(
        self,
        config: RunConfig,
        prompts: Sequence[Prompt],
        name: str,
        *,
        sampler: Sampler,
        generators: Generators,
        rewards: Rewards,
        report: Report,
        controls: RunControls,
    ) -> None:
        """`name` tells the requests of this run and attempt from others."""
        self._config = config
        self._prompts = prompts
        self._name = name
        self._sampler = sampler
        self._generators = generators
        self._rewards = rewards
        self._report = report
        self._controls = controls
        self._last_round: asyncio.Task[None] | None = None
        self._rounds: set[asyncio.Task[None]] = set()
        """Those that are not through: one that is sampled at most, the others are still being scored."""
        self._num_rounds = 0
        self._begun: set[int] = set()
        """Steps whose policy is evaluated already, or being scored: a skipped step comes back to the same policy."""
        self.held_s = 0.0
        """Time that the training loop has stood still for evaluations, in all."""

    def leave_out(self, prompt_ids: Collection[str]) -> None:
        """Takes questions out for good, before the first evaluation."""
        self._prompts = [prompt for prompt in self._prompts if prompt.prompt_id not in prompt_ids]

    async def ask(self) -> EvaluationResult:
        """Has the policy evaluated at the next step boundary, and waits for the result.

        Raises `FailedPrecondition` when the run has no questions, or ends first.
        """
        if not self._prompts:
            raise FailedPrecondition(
                "the run has no held-out questions: it was started without evaluation.sources", reason="NO_QUESTIONS"
            )
        return await self._controls.ask_for_evaluation()

    async def hold_if_due(self, version: WeightVersion, goes_on: Callable[[], Awaitable[bool]]) -> None:
        """Evaluates a policy that the configuration wants evaluated and that has not been yet; see `hold`."""
        step = version.policy_version
        is_due = self._config.evaluation.is_due(step, self._config.run.num_steps)
        is_done = step in self._begun or self._report.has_evaluated(step)
        if is_due and not is_done and self._controls.stop is None:
            await self.hold(version, goes_on)

    async def hold(self, version: WeightVersion, goes_on: Callable[[], Awaitable[bool]]) -> None:
        """Evaluates the weights that the generators hold; returns once every answer is sampled.

        `goes_on` returns at once, or when the run is no longer paused; False gives the evaluation up.
        """
        began = time.monotonic()
        self._num_rounds += 1
        self._begun.add(version.policy_version)
        name = f"{self._name}/evaluation-{version.policy_version}-{self._num_rounds}"
        questions = _Questions(self._config, name, version, self._sampler, self._generators, self._rewards)
        requests = self._controls.take_evaluation_requests()
        running = asyncio.create_task(self._run(questions, requests, after=self._last_round))
        self._last_round = running
        self._rounds.add(running)
        running.add_done_callback(self._rounds.discard)
        sampled = asyncio.create_task(questions.all_sampled.wait())
        either = asyncio.create_task(_first_of(running, sampled))
        try:
            while not either.done():
                if not await goes_on():
                    await self.give_up()
                    return
                await self._controls.wait_for_change_or(either)
        finally:
            sampled.cancel()
            either.cancel()
            self.held_s += time.monotonic() - began
        if running.done():
            await running

    async def finish(self) -> None:
        """Waits until what was sampled is scored and reported; raises what kept it from that."""
        if self._last_round is not None:
            await self._last_round

    async def give_up(self) -> None:
        """Ends the evaluations that are under way without a result."""
        rounds, self._last_round = list(self._rounds), None
        for running in rounds:
            running.cancel()
        await asyncio.gather(*rounds, return_exceptions=True)

    async def _run(
        self,
        questions: "_Questions",
        requests: Sequence["asyncio.Future[EvaluationResult]"],
        after: "asyncio.Task[None] | None",
    ) -> None:
        """One evaluation to its end, reported `after` the one before; whoever asked for it hears what became of it."""
        error: BaseException = FailedPrecondition("the evaluation was given up: the run is ending")
        try:
            result = await questions.answers(self._prompts)
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


class _Questions:
    """One evaluation: all questions, at one version."""

    def __init__(
        self,
        config: RunConfig,
        name: str,
        version: WeightVersion,
        sampler: Sampler,
        generators: Generators,
        rewards: Rewards,
    ) -> None:
        self._config = config
        self._name = name
        self._version = version
        self._sampler = sampler
        self._generators = generators
        self._rewards = rewards
        self._sampling = evaluation_sampling(config, sampler.sampling)
        self._num_unsampled = 0
        self.all_sampled = asyncio.Event()
        """Set when the generators are done with it; scoring may go on."""

    async def answers(self, prompts: Sequence[Prompt]) -> EvaluationResult:
        """Has every question answered and scored."""
        began = time.monotonic()
        self._num_unsampled = len(prompts)
        # As many as the generators decode at once: more would only keep training's groups waiting in their queues.
        num_at_once = self._config.generator.max_num_seqs * max(1, self._generators.num_serving)
        places = asyncio.Semaphore(max(1, num_at_once // self._config.evaluation.samples_per_prompt))
        sampled_s = 0.0

        async def ask(prompt: Prompt, name: str) -> Answered:
            nonlocal sampled_s
            async with places:
                completions = await self._sample(prompt, name)
            self._num_unsampled -= 1
            if not self._num_unsampled:
                sampled_s = time.monotonic() - began
                self.all_sampled.set()
            return Answered(prompt, completions, await self._score(prompt, completions, name))

        async with first_error(asyncio.TaskGroup()) as tasks:
            asked = [tasks.create_task(ask(prompt, f"{self._name}/{index}")) for index, prompt in enumerate(prompts)]
        return EvaluationResult(
            version=self._version,
            answered=tuple(task.result() for task in asked),
            num_samples=self._config.evaluation.samples_per_prompt,
            sampling_s=sampled_s,
        )

    async def _sample(self, prompt: Prompt, name: str) -> tuple[Completion, ...]:
        """The answers to one question, all of the pinned version; none when it ran into its deadline twice."""
        seeds = [
            evaluation_seed(self._config.run.seed, prompt.prompt_id, index)
            for index in range(self._config.evaluation.samples_per_prompt)
        ]
        num_tries, num_timed_out = 0, 0
        while num_timed_out < NUM_TIMED_ISSUES:
            await self._sampler.unpaused()
            num_tries += 1
            num_pauses = self._sampler.num_pauses
            try:
                completions = await self._sample_once(prompt, seeds, f"{name}/{num_tries}")
            except GeneratorLost as error:
                _log.info("a question is asked again", extra={"question": name, "reason": str(error)})
                continue
            except DeadlineExceeded:
                # Time in a pause does not count.
                num_timed_out += num_pauses == self._sampler.num_pauses
                continue
            if all(self._is_pinned(completion) for completion in completions):
                return tuple(sorted(completions, key=lambda completion: completion.sample_index))
            _log.warning("an answer is not of the version that is evaluated", extra={"question": name})
        return ()

    async def _sample_once(self, prompt: Prompt, seeds: Sequence[int], request_id: str) -> list[Completion]:
        member = await self._generators.choose(len(seeds), version=self._version)
        completions = []
        async for completion in self._generators.sample(
            member,
            prompt,
            seeds,
            self._sampling,
            request_id=request_id,
            timeout_s=self._config.coordinator.sampling_timeout_s,
        ):
            if completion.finish_reason is FinishReason.ABORT:
                raise GeneratorLost(member, "it aborted the completion")
            completions.append(await self._sampler.with_text(completion))
        return completions

    def _is_pinned(self, completion: Completion) -> bool:
        return all(span.version == self._version for span in completion.version_spans)

    async def _score(self, prompt: Prompt, completions: Sequence[Completion], name: str) -> Sequence[Score]:
        """One score an answer; FAILED when they run into the deadline twice."""
        for _ in range(NUM_TIMED_ISSUES if completions else 0):
            group = GrowingGroup()
            for completion in completions:
                group.add(completion)
            group.complete()
            with contextlib.suppress(DeadlineExceeded):
                return await self._rewards.score(
                    name, prompt, group, timeout_s=self._config.coordinator.sampling_timeout_s
                )
        return tuple(Score(completion.sample_index, ScoreOutcome.FAILED, 0.0) for completion in completions)


def evaluation_sampling(config: RunConfig, training: SamplingParams) -> SamplingParams:
    """How held-out questions are answered: the evaluation's settings, with training's stop tokens and strings."""
    own = config.evaluation
    return replace(
        training,
        temperature=own.temperature,
        max_completion_tokens=own.max_completion_tokens or config.sampling.max_completion_tokens,
        top_p=own.top_p,
        top_k=own.top_k,
        min_p=own.min_p,
    )


async def _first_of(*work: "asyncio.Task[None] | asyncio.Task[bool]") -> None:
    await asyncio.wait(work, return_when=asyncio.FIRST_COMPLETED)
