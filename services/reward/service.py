"""RewardService over gRPC."""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import Any

import grpc

from services.reward.allowed import Allowed
from services.reward.common.departure import Departure, leaving
from services.reward.common.scorer import token_ids
from services.reward.compose import Composer, Output
from services.reward.environments.environment_service import EnvironmentService
from services.reward.environments.environments import Environments
from services.reward.router import Router
from shoal.config.load import parse_config
from shoal.config.run import RunConfig
from shoal.config.tables.environments import EnvironmentConfig
from shoal.config.tables.reward import RewardConfig
from shoal.error_reasons import ErrorReason
from shoal.errors import Aborted, FailedPrecondition, ResourceExhausted, ShoalError
from shoal.rollout import MAX_WEIGHT, Prompt
from shoal.scores import Score, ScoreOutcome, VerifierScore
from shoal.telemetry import metrics, names
from shoal.v1 import reward_pb2, rollout_pb2, worker_pb2
from shoal.v1.reward_pb2_grpc import RewardServiceServicer, add_RewardServiceServicer_to_server
from shoal.wire import finish_reason_from_wire, ground_truth_from_wire, invalid, prompt_from_wire, score_to_wire
from shoal.wire.scores import outcome_from_wire
from shoal.worker.lifecycle import Lifecycle

_log = logging.getLogger(__name__)

_MIN_RETRY_S, _MAX_RETRY_S = 0.1, 10.0
_OPEN, _VERDICTS = metrics.gauge(names.REWARD_OPEN), metrics.counter(names.REWARD_VERDICTS)
_DURATION = metrics.histogram(names.REWARD_DURATION)
# Weight of the newest completion in the running mean of durations.
_SMOOTHING = 0.05


class RewardService(RewardServiceServicer):
    """Scores completions with a pool of verifier processes. All methods belong to one event loop."""

    kind: worker_pb2.WorkerKind.ValueType = worker_pb2.WORKER_KIND_REWARD
    full_name = "shoal.v1.RewardService"
    num_weight_ranks = 0

    def __init__(self, allowed: Allowed) -> None:
        self._allowed = allowed
        self.add_to_server: Callable[[Any, grpc.aio.Server], None] = add_RewardServiceServicer_to_server
        self._config = RewardConfig()
        self._environments_config: Sequence[EnvironmentConfig] = ()
        self._composer = Composer(self._config, length_limit_tokens=1)
        self._router = Router(self._config)
        self._lifecycle = Lifecycle("the reward service")
        self._departure = Departure()
        self.environments = EnvironmentService(self._lifecycle)
        """The service that plays episodes, on the same server and with the same configuration."""
        self._num_open = 0
        self._nothing_open = asyncio.Event()
        self._nothing_open.set()
        self._num_scored: Counter[str] = Counter()
        self._num_restarts_before = 0
        self._mean_duration_s = 0.01

    def status(self) -> worker_pb2.WorkerStatus:
        num_running = min(self._num_open, self._router.pool.num_running)
        load = worker_pb2.WorkerLoad(
            num_running=num_running, num_waiting=self._num_open - num_running, capacity=self._config.num_processes
        )
        notice = "; ".join(filter(None, (self._router.notice, self.environments.notice)))
        return self._lifecycle.status(load, loaded=(worker_pb2.WORKER_STATE_READY, notice))

    async def drain(self, grace_s: float) -> None:
        """Takes no more work. Waits until received completions are scored and episodes are over, at most `grace_s`, and
        then ends all streams. Called when the process was told to end."""
        if self._lifecycle.leave():
            self._departure.begin()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(grace_s):
                    await self._nothing_open.wait()
                    await self.environments.wait_until_none_is_open()
            self._departure.end()
            self.environments.give_up()

    async def close(self) -> None:
        await self._lifecycle.close()
        await self._router.close()
        await self.environments.close()

    async def Configure(
        self, request: reward_pb2.RewardServiceConfigureRequest, context: Any
    ) -> reward_pb2.RewardServiceConfigureResponse:
        config = parse_config(request.config)
        if not request.run_id:
            raise invalid("run_id", "is required")
        self._allowed.check(config.reward, config.environments)
        if not self._lifecycle.is_configured(request.run_id, config):
            if (self._num_open or self.environments.num_open) and request.run_id != self._lifecycle.run_id:
                raise FailedPrecondition(
                    f"the reward service still scores {self._num_open} completions and plays "
                    f"{self.environments.num_open} episodes of the run {self._lifecycle.run_id}",
                    reason=ErrorReason.OTHER_RUN_ACTIVE,
                    metadata={"run_id": self._lifecycle.run_id},
                )
            self._config, self._environments_config = config.reward, config.environments
            self._lifecycle.load(
                request.run_id, config, lambda: self._replace_router(config), message="starting verifier processes"
            )
        return reward_pb2.RewardServiceConfigureResponse(status=self.status())

    async def _replace_router(self, config: RunConfig) -> None:
        await self._nothing_open.wait()
        await self._router.close()
        self._num_restarts_before += self._router.pool.num_restarts
        self._composer = Composer.of(config)
        self._router = Router(
            config.reward, packages=self._allowed.verifier_packages, token_servers=self._allowed.reward_servers
        )
        await self._router.find()
        await self._router.start()
        await self.environments.use(
            Environments(
                config.environments,
                packages=self._allowed.verifier_packages,
                token_servers=self._allowed.reward_servers,
            )
        )
        _log.info("verifiers started", extra={"pids": self._router.pool.pids})

    async def ScoreGroup(
        self, request_iterator: AsyncIterator[reward_pb2.ScoreGroupRequest], context: Any
    ) -> AsyncIterator[reward_pb2.ScoreGroupResponse]:
        requests = self._departure.reading(request_iterator)
        first = await anext(requests, None)
        if first is None or first.WhichOneof("part") != "prompt":
            raise invalid("prompt", "the first message of the stream must hold the prompt")
        prompt = prompt_from_wire(first.prompt)
        router = self._ready_router()
        _check_verifiers(prompt, router)
        scores: asyncio.Queue[Score | None] = asyncio.Queue()
        reader = asyncio.create_task(self._score_each(requests, prompt, (router, self._composer), scores))

        def end(ended: asyncio.Task[None]) -> None:
            if not ended.cancelled():
                ended.exception()  # Retrieve the error, even if nothing awaits the reader any more.
            scores.put_nowait(None)

        reader.add_done_callback(end)
        try:
            while (score := await scores.get()) is not None:
                yield reward_pb2.ScoreGroupResponse(score=score_to_wire(score))
            await reader
        finally:
            reader.cancel()

    async def _score_each(
        self,
        requests: AsyncIterator[reward_pb2.ScoreGroupRequest],
        prompt: Prompt,
        scorer: tuple[Router, Composer],
        scores: asyncio.Queue[Score | None],
    ) -> None:
        """Reads completions and scores them concurrently. Ends when all received completions are scored."""
        scoring: set[asyncio.Task[None]] = set()
        refusal: Callable[[], ShoalError] | None = None
        try:
            try:
                async for request in requests:
                    if request.WhichOneof("part") != "completion":
                        raise invalid("completion", "every message after the first must hold a completion")
                    if self._is_full:
                        refusal = self._full
                        break
                    self._open_one()
                    task = asyncio.create_task(self._score(request.completion, prompt, scorer, scores))
                    task.add_done_callback(self._close_one)
                    scoring.add(task)
            except Aborted:
                refusal = leaving
            # First score the received completions, so that a client that repeats the rest makes progress.
            await self._departure.finished(scoring)
            if refusal is not None:
                raise refusal()
        finally:
            for task in scoring:
                task.cancel()

    async def _score(
        self,
        completion: rollout_pb2.Completion,
        prompt: Prompt,
        scorer: tuple[Router, Composer],
        scores: asyncio.Queue[Score | None],
    ) -> None:
        router, composer = scorer
        output = _output(completion, with_tokens=composer.reads_tokens)
        parts: Sequence[VerifierScore]
        if output.outcome is ScoreOutcome.SCORED:
            parts = await asyncio.gather(*(router.verify(truth, prompt, completion) for truth in prompt.ground_truths))
        else:  # There is no answer to verify.
            detail = f"the environment's outcome is {output.outcome}: {completion.episode.detail}"
            parts = [
                VerifierScore(truth.verifier, ScoreOutcome.UNSCORABLE, detail=detail) for truth in prompt.ground_truths
            ]
        score = composer.score(completion.sample_index, prompt.ground_truths, parts, output)
        self._num_scored[score.outcome.value] += 1
        for part in parts:
            _measure(part)
        self._mean_duration_s += _SMOOTHING * (sum(part.duration_s for part in parts) - self._mean_duration_s)
        scores.put_nowait(score)

    @property
    def _is_full(self) -> bool:
        return self._num_open >= self._config.num_processes + self._config.max_queued

    def _full(self) -> ResourceExhausted:
        config = self._config
        wait_s = self._num_open * self._mean_duration_s / config.num_processes
        return ResourceExhausted(
            f"the queue for completions is full (reward.max_queued: {config.max_queued})",
            reason=ErrorReason.QUEUE_FULL,
            retry_after_s=min(max(wait_s, _MIN_RETRY_S), _MAX_RETRY_S),
        )

    def _open_one(self) -> None:
        self._num_open += 1
        self._nothing_open.clear()
        _OPEN.set(self._num_open)

    def _close_one(self, _: asyncio.Task[None]) -> None:
        self._num_open -= 1
        _OPEN.set(self._num_open)
        if self._num_open == 0:
            self._nothing_open.set()

    def _ready_router(self) -> Router:
        if self._lifecycle.state == worker_pb2.WORKER_STATE_LEAVING:
            raise leaving()
        if self._lifecycle.state != worker_pb2.WORKER_STATE_READY:
            raise self._lifecycle.not_ready()
        return self._router

    async def CheckLabels(self, request: reward_pb2.CheckLabelsRequest, context: Any) -> reward_pb2.CheckLabelsResponse:
        router = self._ready_router()
        truths = map(ground_truth_from_wire, request.ground_truths)
        # While this is open, another configuration does not close the router.
        self._num_open += 1
        self._nothing_open.clear()
        try:
            problems = await asyncio.gather(*map(router.label_problem, truths))
        finally:
            self._num_open -= 1
            if self._num_open == 0:
                self._nothing_open.set()
        return reward_pb2.CheckLabelsResponse(
            problems=[
                reward_pb2.LabelProblem(index=index, reason=reason) for index, reason in enumerate(problems) if reason
            ]
        )

    async def ReloadVerifiers(
        self, request: reward_pb2.ReloadVerifiersRequest, context: Any
    ) -> reward_pb2.ReloadVerifiersResponse:
        router = self._ready_router()
        self._allowed.check(self._config, self._environments_config)  # A link may have changed.
        await router.reload_custom()
        await self.environments.reload(keeps_tools=request.keeps_tools)
        return reward_pb2.ReloadVerifiersResponse()

    async def ListVerifiers(
        self, request: reward_pb2.ListVerifiersRequest, context: Any
    ) -> reward_pb2.ListVerifiersResponse:
        return reward_pb2.ListVerifiersResponse(
            verifiers=[
                reward_pb2.VerifierInfo(
                    name=one.name, description=one.description, code_digest=one.code_digest, unavailable=one.unavailable
                )
                for one in await self._router.describe()
            ]
        )

    async def GetStatus(
        self, request: reward_pb2.RewardServiceGetStatusRequest, context: Any
    ) -> reward_pb2.RewardServiceGetStatusResponse:
        return reward_pb2.RewardServiceGetStatusResponse(
            status=self.status(),
            pool_pids=self._router.pool.pids,
            num_scored={outcome.value: self._num_scored[outcome.value] for outcome in ScoreOutcome},
            num_pool_restarts=self._num_restarts_before + self._router.pool.num_restarts,
        )


def _measure(part: VerifierScore) -> None:
    attributes: dict[str, str] = {names.VERIFIER: part.verifier, names.OUTCOME: part.outcome.value}
    _DURATION.record(part.duration_s, attributes)
    _VERDICTS.add(1, attributes)


def _output(completion: rollout_pb2.Completion, *, with_tokens: bool) -> Output:
    """Reads the parts of a completion that its reward depends on. Raises `InvalidArgument`."""
    finish_reason = finish_reason_from_wire(completion.finish_reason)
    output = Output(completion.text, finish_reason, token_ids(completion) if with_tokens else ())
    if not completion.HasField("episode"):
        return output
    episode = completion.episode
    in_time = sorted(episode.turns, key=lambda turn: turn.number)
    return replace(
        output,
        turn_rewards=tuple(turn.reward for turn in in_time if turn.HasField("reward")),
        episode_reward=episode.reward if episode.HasField("reward") else None,
        outcome=outcome_from_wire(episode.outcome, "completion.episode.outcome"),
    )


def _check_verifiers(prompt: Prompt, router: Router) -> None:
    if not prompt.ground_truths and prompt.environment is None:
        raise invalid("prompt.ground_truths", "the prompt names no verifier and no environment, and needs at least one")
    for position, truth in enumerate(prompt.ground_truths):
        if why := router.why_not(truth.verifier):
            raise invalid(f"prompt.ground_truths[{position}].verifier", why)
        if not abs(truth.weight) <= MAX_WEIGHT:
            raise invalid(
                f"prompt.ground_truths[{position}].weight",
                f"must be from -{MAX_WEIGHT:g} to {MAX_WEIGHT:g} (given: {truth.weight:g})",
            )
