"""The process of a reward model, as its parent sees it."""

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from services.reward.common.verdict import Unscorable
from services.reward.model.answer import Answer, ModelFailed
from services.reward.model.question import Question
from services.reward.process.child_process import PoolProcess
from services.reward.process.frames import Message
from shoal.config.tables.reward_model import RewardModelConfig
from shoal.errors import InvalidArgument, ShoalError, Unavailable
from shoal.scores import ScoreOutcome

_log = logging.getLogger(__name__)

_RUNNER = "services.reward.model.runner"
# The first start includes the download from the hub.
_LOAD_TIMEOUT_S = 3600.0
_MAX_ATTEMPTS = 2
_MIN_BACKOFF_S, _MAX_BACKOFF_S = 0.5, 30.0


@dataclass(eq=False)
class _Item:
    """One question that waits for its answer."""

    question: Question
    done: asyncio.Future[Answer]
    attempts: int = 0


class ModelProcess:
    """Answers waiting questions in batches. Belongs to one event loop.

    Every call of `answer` ends. If the process dies, its questions get a second try, each alone, so that only a
    question that kills the process fails. A process without output for `reward.model.timeout_s` is killed, and its
    questions fail. In both cases a new process is started. If its start fails twice, or if it refuses its settings,
    waiting questions fail until a process starts.
    """

    def __init__(self, config: RewardModelConfig) -> None:
        self._config = config
        self._process: PoolProcess | None = None
        self._is_ready = False
        self._first_start: asyncio.Future[int] | None = None
        """The outcome of the first start, until it is known. If the first start fails, there is no second start."""
        self._waiting: deque[_Item] = deque()
        self._in_flight: dict[int, _Item] = {}
        """The questions in flight, by position in the batch."""
        self._deadline: asyncio.TimerHandle | None = None
        self._why = ""
        """The reason why the process was killed or ended by itself; empty if it died."""
        self._failed_starts = 0
        self._restarting: asyncio.Task[None] | None = None
        self._closing = False
        self._gone = asyncio.Event()
        self._gone.set()
        self.num_restarts = 0
        """Processes replaced because they died or hung."""

    @property
    def pid(self) -> int:
        """Process id of the current or last process; 0 before the first."""
        return self._process.pid if self._process else 0

    async def start(self) -> int:
        """Starts the process, and waits for the model. Returns the index of the label that is the reward.

        Raises `InvalidArgument` if the process refuses settings or model, else `Unavailable`.
        """
        first: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._first_start = first
        await self._spawn()
        return await first

    async def answer(self, question: Question) -> Answer:
        """Waits for the model. Raises `ModelFailed`, and `Unscorable` if the model cannot take this question.

        If the call is canceled while its question waits, the question is not sent.
        """
        if self._closing:
            # The stream began before the model was replaced, so no process would ever take the question.
            raise ModelFailed("the reward model was closed")
        item = _Item(question, asyncio.get_running_loop().create_future())
        self._waiting.append(item)
        self._dispatch()
        return await item.done

    async def close(self) -> None:
        """Ends the process and waits until it is gone. Waiting questions fail."""
        self._closing = True
        if self._restarting is not None:
            self._restarting.cancel()
            await asyncio.wait([self._restarting])
        self._fail_waiting("the reward model was closed")
        self._kill("the reward model was closed")
        await self._gone.wait()

    async def _spawn(self) -> None:
        threads = self._config.num_threads
        process = PoolProcess(
            self._on_message,
            self._on_exit,
            module=_RUNNER,
            environment={"OMP_NUM_THREADS": str(threads)} if threads else {},
        )
        self._process, self._is_ready, self._why = process, False, ""
        self._gone.clear()
        try:
            await process.start()
        except BaseException as error:
            if not process.pid:
                self._gone.set()
            if isinstance(error, OSError):
                raise Unavailable(f"no process for the reward model can be started: {error}") from error
            raise
        self._set_deadline(_LOAD_TIMEOUT_S, f"the reward model did not load within {_LOAD_TIMEOUT_S:.0f} s")
        process.send({"config": self._config.model_dump(mode="json")})

    def _dispatch(self) -> None:
        if not self._is_ready or self._in_flight:
            return
        batch = self._take()
        if not batch:
            return
        self._in_flight = dict(enumerate(batch))
        for item in batch:
            item.attempts += 1
        self._start_clock()
        assert self._process is not None
        self._process.send({"questions": [item.question for item in batch]})

    def _take(self) -> Sequence[_Item]:
        """Returns the next batch: as many questions as may go together, or a single question for its retry."""
        batch: list[_Item] = []
        while self._waiting and len(batch) < self._config.batch_size:
            item = self._waiting[0]
            if item.done.done():
                self._waiting.popleft()
                continue
            if item.attempts and batch:
                break
            batch.append(self._waiting.popleft())
            if item.attempts:
                break
        return batch

    def _start_clock(self) -> None:
        timeout_s = self._config.timeout_s
        self._set_deadline(timeout_s, f"the reward model gave no answer for reward.model.timeout_s ({timeout_s:g} s)")

    def _set_deadline(self, seconds: float, why: str) -> None:
        self._stop_clock()
        self._deadline = asyncio.get_running_loop().call_later(seconds, self._kill, why)

    def _stop_clock(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()

    def _kill(self, why: str) -> None:
        """Ends the process. Fails its questions now, not after the end of the process."""
        self._why = why
        self._is_ready = False
        for item in self._in_flight.values():
            _fail(item, why)
        if self._process is not None:
            self._process.kill()

    def _on_message(self, process: PoolProcess, message: Message) -> None:
        match message["event"]:
            case "ready":
                self._stop_clock()
                self._is_ready = not self._why
                self._failed_starts = 0
                if self._first_start is not None and not self._first_start.done():
                    self._first_start.set_result(message["label"])
                self._first_start = None
                self._dispatch()
            case "refused":
                self._why = message["why"]
                if self._first_start is not None and not self._first_start.done():
                    self._first_start.set_exception(InvalidArgument(self._why))
            case "answered":
                for answer in message["answers"]:
                    _answer(self._in_flight.pop(answer["index"]), answer)
                if self._why:
                    return
                if self._in_flight:
                    self._start_clock()
                else:
                    self._stop_clock()
                    self._dispatch()

    def _on_exit(self, process: PoolProcess, how: str) -> None:
        self._stop_clock()
        was_ready, self._is_ready = self._is_ready or bool(self._in_flight), False
        why = self._why or f"the reward model's process died ({how})"
        unanswered = [item for item in self._in_flight.values() if not item.done.done()]
        self._in_flight = {}
        for item in reversed(unanswered):
            if item.attempts < _MAX_ATTEMPTS and not self._closing:
                self._waiting.appendleft(item)
            else:
                _fail(item, why)
        self._gone.set()
        if self._closing:
            return
        if self._first_start is not None:
            if not self._first_start.done():
                self._first_start.set_exception(Unavailable(why))
            return
        if not was_ready:
            self._failed_starts += 1
            if self._why or self._failed_starts >= _MAX_ATTEMPTS:
                self._fail_waiting(why)
        _log.warning("reward model's process replaced", extra={"pid": process.pid, "why": why})
        self.num_restarts += 1
        self._restarting = asyncio.get_running_loop().create_task(self._restart())

    async def _restart(self) -> None:
        """Starts a process. Retries with growing pauses while starts fail."""
        while True:
            if self._failed_starts:
                await asyncio.sleep(min(_MIN_BACKOFF_S * 2**self._failed_starts, _MAX_BACKOFF_S))
            try:
                await self._spawn()
                return
            except ShoalError as error:
                self._failed_starts += 1
                self._fail_waiting(error.message)
                _log.error("reward model's process not replaced", extra={"error": error.message})

    def _fail_waiting(self, why: str) -> None:
        while self._waiting:
            _fail(self._waiting.popleft(), why)


def _fail(item: _Item, why: str) -> None:
    if not item.done.done():
        item.done.set_exception(ModelFailed(why))


def _answer(item: _Item, answer: dict[str, Any]) -> None:
    if item.done.done():
        return
    if answer["outcome"] == ScoreOutcome.SCORED:
        item.done.set_result(Answer(tuple(answer["logits"]), answer["num_tokens"]))
    elif answer["outcome"] == ScoreOutcome.UNSCORABLE:
        item.done.set_exception(Unscorable(answer["detail"]))
    else:
        item.done.set_exception(ModelFailed(answer["detail"]))
