"""The process of a reward model, as its parent sees it."""

import asyncio
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from services.reward.common.verdict import Unscorable
from services.reward.model.question import Answer, ModelFailed, Question
from services.reward.process.child_process import ChildProcess
from services.reward.process.frames import Message
from services.reward.process.supervisor import Supervisor
from shoal.config.tables.reward_model import RewardModelConfig
from shoal.errors import InvalidArgument, ResourceExhausted, ShoalError, Unavailable
from shoal.scores import ScoreOutcome

_RUNNER = "services.reward.model.runner"
# The first start includes the download from the hub.
_LOAD_TIMEOUT_S = 3600.0
_MAX_ATTEMPTS = 2
_BACKOFF_S = 0.5, 30.0
_CLOSED = "the reward model was closed"


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
    questions fail. Then a new process starts. If this fails twice, or the process refuses its settings, waiting
    questions fail until a process starts.
    """

    def __init__(self, config: RewardModelConfig) -> None:
        self._config = config
        self._processes = Supervisor(
            "reward model process",
            self._new_process,
            self._begin,
            backoff_s=_BACKOFF_S,
            on_failed_start=self._fail_waiting,
        )
        self._process: ChildProcess | None = None
        """The current process, or the last one."""
        self._label: int | None = None
        """The index of the label that is the reward, once the model is loaded. A failed first start is not repeated."""
        self._start_error: type[ShoalError] = Unavailable
        self._waiting: deque[_Item] = deque()
        self._in_flight: dict[int, _Item] = {}
        """The questions in flight, by position in the batch."""

    @property
    def num_restarts(self) -> int:
        """The number of processes that were replaced because they died or hung."""
        return self._processes.num_replaced

    @property
    def pid(self) -> int:
        return self._process.pid if self._process else 0

    async def start(self) -> int:
        """Starts the process, and waits for the model. Returns the index of the label that is the reward.

        Raises `InvalidArgument` if the process refuses settings or model, `ResourceExhausted` if the model does not fit
        memory, else `Unavailable`.
        """
        process = await self._processes.add()
        await process.settled.wait()
        if self._label is not None:
            return self._label
        raise self._start_error(process.why_ended)

    async def answer(self, question: Question) -> Answer:
        """Waits for the model's answer. Raises `ModelFailed`, and `Unscorable` if the model cannot take this question.
        If the call is canceled while its question waits, the question is not sent."""
        if self._processes.is_closing:
            # The stream began before the model was replaced, so no process would ever take the question.
            raise ModelFailed(_CLOSED)
        item = _Item(question, asyncio.get_running_loop().create_future())
        self._waiting.append(item)
        self._dispatch()
        return await item.done

    async def close(self) -> None:
        """Ends the process and waits until it is gone. Waiting questions fail."""
        self._fail_waiting(_CLOSED)
        self._fail_in_flight(_CLOSED)
        self._processes.kill(_CLOSED)
        await self._processes.all_gone.wait()

    def _new_process(self) -> ChildProcess:
        threads = self._config.num_threads
        self._process = ChildProcess(
            self._on_message,
            self._on_exit,
            name="the reward model's process",
            on_deadline=self._give_up,
            command=(sys.executable, "-m", _RUNNER),
            environment={"OMP_NUM_THREADS": str(threads)} if threads else {},
        )
        return self._process

    def _begin(self, process: ChildProcess) -> None:
        process.set_deadline(_LOAD_TIMEOUT_S, f"the reward model did not load within {_LOAD_TIMEOUT_S:.0f} s")
        process.send({"config": self._config.model_dump(mode="json")})

    def _dispatch(self) -> None:
        process = self._process
        if process is None or not process.takes_work or self._in_flight or not (batch := self._take()):
            return
        self._in_flight = dict(enumerate(batch))
        for item in batch:
            item.attempts += 1
        self._start_clock(process)
        process.send({"questions": [item.question for item in batch]})

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

    def _start_clock(self, process: ChildProcess) -> None:
        timeout_s = self._config.timeout_s
        process.set_deadline(timeout_s, f"the reward model gave no answer in reward.model.timeout_s ({timeout_s:g} s)")

    def _give_up(self, why: str) -> None:
        """Kills a process that hangs. Fails its questions now, not after the end of the process."""
        self._fail_in_flight(why)
        assert self._process is not None
        self._process.kill(why)

    def _on_message(self, message: Message) -> None:
        process = self._process
        assert process is not None
        match message["event"]:
            case "ready":
                process.end_deadline()
                self._processes.failed_starts = 0
                self._label = message["label"]
                self._dispatch()
            case "refused":
                self._start_error = ResourceExhausted if message["is_full"] else InvalidArgument
                process.kill(message["why"])
            case "answered":
                for answer in message["answers"]:
                    _answer(self._in_flight.pop(answer["index"]), answer)
                if process.is_lost:
                    return
                if self._in_flight:
                    self._start_clock(process)
                else:
                    process.end_deadline()
                    self._dispatch()

    def _on_exit(self) -> None:
        process = self._process
        assert process is not None
        unanswered = [item for item in self._in_flight.values() if not item.done.done()]
        self._in_flight = {}
        for item in reversed(unanswered):
            if item.attempts < _MAX_ATTEMPTS and not self._processes.is_closing:
                self._waiting.appendleft(item)
            else:
                _fail(item, process.why_ended)
        if self._label is None:
            self._processes.remove(process)
            return
        self._processes.replace(process)
        if not process.is_ready and (process.why_killed or self._processes.failed_starts >= _MAX_ATTEMPTS):
            self._fail_waiting(process.why_ended)

    def _fail_in_flight(self, why: str) -> None:
        for item in self._in_flight.values():
            _fail(item, why)

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
