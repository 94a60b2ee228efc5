"""RewardService over gRPC."""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc

from services.reward.compose import Composer, Output
from services.reward.panel import Listed, Panel, token_ids
from shoal.config.load import config_digest, parse_config
from shoal.config.run import RunConfig
from shoal.config.services import RewardConfig
from shoal.errors import FailedPrecondition, ResourceExhausted, ShoalError
from shoal.rollout import MOST_WEIGHT, Prompt, Score, ScoreOutcome, VerifierScore
from shoal.telemetry import metrics, names
from shoal.v1 import reward_pb2, rollout_pb2, worker_pb2
from shoal.v1.reward_pb2_grpc import RewardServiceServicer, add_RewardServiceServicer_to_server
from shoal.wire import finish_reason_from_wire, ground_truth_from_wire, invalid, prompt_from_wire, score_to_wire

_log = logging.getLogger(__name__)

_READY, _LOADING, _FAILED, _IDLE = (
    worker_pb2.WORKER_STATE_READY,
    worker_pb2.WORKER_STATE_LOADING,
    worker_pb2.WORKER_STATE_FAILED,
    worker_pb2.WORKER_STATE_IDLE,
)
_MIN_RETRY_S, _MAX_RETRY_S = 0.1, 10.0
_OPEN, _VERDICTS = metrics.gauge(names.REWARD_OPEN), metrics.counter(names.REWARD_VERDICTS)
_DURATION = metrics.histogram(names.REWARD_DURATION)
# Weight of the newest completion in the running mean of how long one takes.
_SMOOTHING = 0.05


class RewardService(RewardServiceServicer):
    """Scores completions with a pool of verifier processes. All methods belong to one event loop."""

    kind: worker_pb2.WorkerKind.ValueType = worker_pb2.WORKER_KIND_REWARD
    full_name = "shoal.v1.RewardService"
    num_weight_ranks = 0

    def __init__(self) -> None:
        self.add_to_server: Callable[[Any, grpc.aio.Server], None] = add_RewardServiceServicer_to_server
        self._config = RewardConfig()
        self._composer = Composer(self._config, length_limit_tokens=1)
        self._panel = Panel(self._config)
        self._run_id = ""
        self._digest = ""
        self._state: worker_pb2.WorkerState.ValueType = _IDLE
        self._message = ""
        self._starting: asyncio.Task[None] | None = None
        self._num_open = 0
        self._nothing_open = asyncio.Event()
        self._nothing_open.set()
        self._num_scored: Counter[str] = Counter()
        self._num_restarts_before = 0
        self._mean_duration_s = 0.01

    def status(self) -> worker_pb2.WorkerStatus:
        """State and load, counted in completions."""
        num_running = min(self._num_open, self._panel.pool.num_running)
        return worker_pb2.WorkerStatus(
            state=self._state,
            message=self._message or self._panel.notice,
            run_id=self._run_id,
            config_digest=self._digest,
            load=worker_pb2.WorkerLoad(
                num_running=num_running,
                num_waiting=self._num_open - num_running,
                capacity=self._config.num_processes,
            ),
        )

    async def close(self) -> None:
        """Ends all that judge."""
        await _end(self._starting)
        await self._panel.close()

    async def Configure(
        self, request: reward_pb2.RewardServiceConfigureRequest, context: Any
    ) -> reward_pb2.RewardServiceConfigureResponse:
        config = parse_config(request.config)
        if not request.run_id:
            raise invalid("run_id", "is required")
        digest = config_digest(config)
        same = (request.run_id, digest) == (self._run_id, self._digest) and self._state in (_LOADING, _READY)
        if not same:
            if self._num_open and request.run_id != self._run_id:
                raise FailedPrecondition(
                    f"{self._num_open} completions of {self._run_id} are being scored",
                    reason="OTHER_RUN_ACTIVE",
                    metadata={"run_id": self._run_id},
                )
            self._run_id, self._digest, self._config = request.run_id, digest, config.reward
            self._state, self._message = _LOADING, "starting verifier processes"
            self._starting = asyncio.create_task(self._replace_panel(config, self._starting))
        return reward_pb2.RewardServiceConfigureResponse(status=self.status())

    async def _replace_panel(self, config: RunConfig, replaced_before: asyncio.Task[None] | None) -> None:
        await _end(replaced_before)
        await self._nothing_open.wait()
        await self._panel.close()
        self._num_restarts_before += self._panel.pool.num_restarts
        self._composer = Composer.of(config)
        self._panel = Panel(config.reward)
        try:
            await self._panel.find()
            await self._panel.start()
        except ShoalError as error:
            self._state, self._message = _FAILED, error.message
            _log.error("verifiers not started", extra={"error": error.message})
        except Exception:
            # Nobody awaits this task, and LOADING would last for ever.
            self._state, self._message = _FAILED, "a defect kept the verifiers from starting; this service's log has it"
            _log.exception("verifiers not started")
        else:
            self._state, self._message = _READY, ""
            _log.info("verifiers started", extra={"pids": self._panel.pool.pids})

    async def ScoreGroup(
        self, request_iterator: AsyncIterator[reward_pb2.ScoreGroupRequest], context: Any
    ) -> AsyncIterator[reward_pb2.ScoreGroupResponse]:
        requests = aiter(request_iterator)
        first = await anext(requests, None)
        if first is None or first.WhichOneof("part") != "prompt":
            raise invalid("prompt", "the first message of the stream must hold the prompt")
        prompt = prompt_from_wire(first.prompt)
        panel = self._ready_panel()
        _check_verifiers(prompt, panel)
        scores: asyncio.Queue[Score | None] = asyncio.Queue()
        reader = asyncio.create_task(self._score_each(requests, prompt, (panel, self._composer), scores))

        def say_the_end(ended: asyncio.Task[None]) -> None:
            if not ended.cancelled():
                ended.exception()  # Seen, even if the client is gone and nobody awaits the reader any more.
            scores.put_nowait(None)

        reader.add_done_callback(say_the_end)
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
        judges: tuple[Panel, Composer],
        scores: asyncio.Queue[Score | None],
    ) -> None:
        """Reads completions and has each scored beside the others; ends when all are."""
        scoring: set[asyncio.Task[None]] = set()
        try:
            async for request in requests:
                if request.WhichOneof("part") != "completion":
                    raise invalid("completion", "every message after the first must hold a completion")
                if self._is_full:
                    # What was taken in is scored all the same, so that whoever repeats the rest gets on.
                    await asyncio.gather(*scoring)
                    raise self._full()
                self._open_one()
                task = asyncio.create_task(self._score(request.completion, prompt, judges, scores))
                task.add_done_callback(self._close_one)
                scoring.add(task)
            await asyncio.gather(*scoring)
        finally:
            for task in scoring:
                task.cancel()

    async def _score(
        self,
        completion: rollout_pb2.Completion,
        prompt: Prompt,
        judges: tuple[Panel, Composer],
        scores: asyncio.Queue[Score | None],
    ) -> None:
        panel, composer = judges
        parts = await asyncio.gather(*(panel.verify(truth, prompt, completion) for truth in prompt.ground_truths))
        output = Output(
            completion.text,
            finish_reason_from_wire(completion.finish_reason),
            token_ids(completion) if composer.reads_tokens else (),
        )
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
            f"more completions were being scored or waiting than fit (reward.max_queued: {config.max_queued})",
            reason="QUEUE_FULL",
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

    def _ready_panel(self) -> Panel:
        if self._state != _READY:
            state = worker_pb2.WorkerState.Name(self._state).removeprefix("WORKER_STATE_")
            raise FailedPrecondition(
                f"the reward service is {state}, not READY{': ' if self._message else ''}{self._message}",
                reason="NOT_READY",
            )
        return self._panel

    async def CheckLabels(self, request: reward_pb2.CheckLabelsRequest, context: Any) -> reward_pb2.CheckLabelsResponse:
        panel = self._ready_panel()
        truths = map(ground_truth_from_wire, request.ground_truths)
        # What is open keeps another configuration from closing the panel under it.
        self._num_open += 1
        self._nothing_open.clear()
        try:
            problems = await asyncio.gather(*map(panel.label_problem, truths))
        finally:
            self._num_open -= 1
            if self._num_open == 0:
                self._nothing_open.set()
        return reward_pb2.CheckLabelsResponse(
            problems=[
                reward_pb2.LabelProblem(index=index, reason=reason) for index, reason in enumerate(problems) if reason
            ]
        )

    async def ListVerifiers(
        self, request: reward_pb2.ListVerifiersRequest, context: Any
    ) -> reward_pb2.ListVerifiersResponse:
        return reward_pb2.ListVerifiersResponse(verifiers=[_to_wire(one) for one in await self._panel.describe()])

    async def GetStatus(
        self, request: reward_pb2.RewardServiceGetStatusRequest, context: Any
    ) -> reward_pb2.RewardServiceGetStatusResponse:
        return reward_pb2.RewardServiceGetStatusResponse(
            status=self.status(),
            pool_pids=self._panel.pool.pids,
            num_scored={outcome.value: self._num_scored[outcome.value] for outcome in ScoreOutcome},
            num_pool_restarts=self._num_restarts_before + self._panel.pool.num_restarts,
        )


def _measure(part: VerifierScore) -> None:
    judged: dict[str, str] = {names.VERIFIER: part.verifier, names.OUTCOME: part.outcome.value}
    _DURATION.record(part.duration_s, judged)
    _VERDICTS.add(1, judged)


async def _end(task: asyncio.Task[None] | None) -> None:
    """Cancels a task, if it still runs, and waits until it has cleaned up."""
    if task is not None:
        task.cancel()
        await asyncio.wait([task])


def _to_wire(one: Listed) -> reward_pb2.VerifierInfo:
    why = f"UNAVAILABLE HERE: {one.unavailable}\n\n" if one.unavailable else ""
    return reward_pb2.VerifierInfo(name=one.name, description=why + one.description, code_digest=one.code_digest)


def _check_verifiers(prompt: Prompt, panel: Panel) -> None:
    if not prompt.ground_truths:
        raise invalid("prompt.ground_truths", "the prompt names no verifier; at least one is needed")
    for position, truth in enumerate(prompt.ground_truths):
        if why := panel.why_not(truth.verifier):
            raise invalid(f"prompt.ground_truths[{position}].verifier", why)
        if not abs(truth.weight) <= MOST_WEIGHT:
            raise invalid(
                f"prompt.ground_truths[{position}].weight",
                f"must be at most {MOST_WEIGHT:g} either way (given: {truth.weight:g})",
            )
