"""One episode of an environment that runs here."""

import asyncio
import contextlib
import hashlib
import json
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from services.reward.environments.pool import EnvironmentPool
from services.reward.environments.process import CallFailed, EnvironmentProcess, ProcessLost
from shoal.errors import Aborted, InvalidArgument
from shoal.quantities import counted
from shoal.scores import ScoreOutcome
from shoal.telemetry import metrics, names

_REPLAYS = metrics.counter(names.ENVIRONMENT_REPLAYS)
_MAX_DEATHS = 3
"""Times that a process may die in one turn of an episode. The first may have come from outside or from another episode
of the process; the last is that of a process which the episode has for itself."""
_MAX_DEATHS_IN_ALL = 20
"""Times that a process may die in an episode, in a call or between two, before another service has to play it."""
_RUN_TIMEOUT_S = 7 * 86400.0
_STOP_TIMEOUT_S = 5.0

Message = dict[str, Any]


class EpisodeFailed(Exception):
    """The episode is over without a reward. The message says why."""

    def __init__(self, detail: str, outcome: ScoreOutcome = ScoreOutcome.FAILED, traceback: str = "") -> None:
        super().__init__(detail)
        self.outcome, self.traceback = outcome, traceback


class CallerLeft(Exception):
    """The caller has gone, and wants no result."""


@dataclass(frozen=True)
class Start:
    """The start of an episode."""

    episode_id: str
    task: Message
    seed: int
    messages: Sequence[Message]
    call_timeout_s: float
    tools: tuple[str, ...] | None = None
    """Names of the tools that the policy is offered; None for all."""


class EpisodeHere:
    """Plays one episode. One call at a time, and `close` at the end.

    Every method raises `EpisodeFailed` if the environment breaks, and `Aborted` if the episode has to begin again: the
    process died and the environment is not deterministic, or no process lives. After either the episode is over, and
    only `close` remains.
    """

    def __init__(self, pool: EnvironmentPool, start: Start, *, is_deterministic: bool) -> None:
        self._pool, self._start, self._is_deterministic = pool, start, is_deterministic
        pool.begin_episode()
        self._process: EnvironmentProcess | None = None
        self._turns: list[Message] = []
        self._digests: list[str] = []
        """Of the observations, that of the start first."""
        self._deaths: Counter[int] = Counter()
        """Calls in which a process died, by turn; 0 is the start."""
        self._num_deaths = 0
        self._turn = 0
        """The turn that is carried out now, for the first time or again."""
        self._is_running = False
        """Whether a process runs an agent, as far as is known here."""
        self._key = uuid.uuid4().hex
        """Its name in processes: an episode may begin again under its id while the old stream still ends."""

    async def begin(self, replay: Sequence[Message] = ()) -> Message:
        """Returns the first observation; with turns to replay, that of the last of them. Raises `InvalidArgument` for a
        task that is none."""
        observation = await self._answered("reset")
        for turn in replay:
            observation = await self.step(turn)
        return observation

    async def step(self, turn: Message) -> Message:
        """Returns the observation of a turn of the policy."""
        self._turns.append(turn)
        return await self._answered("step")

    async def run(self, policy: Message) -> None:
        """Runs an agent, which has been reset, to its end. It has no limit of time here.

        What it raises is not logged: once its calls are refused, most agents can do nothing but raise.
        """
        start = self._start
        given = {"episode": self._key, "task": start.task, "seed": start.seed, "policy": policy}

        async def carry_out(process: EnvironmentProcess) -> Message:
            answer: Message = await process.call("run", timeout_s=_RUN_TIMEOUT_S, logs_error=False, **given)
            return answer

        self._is_running = True
        await self._survived(carry_out)
        self._is_running = False

    async def stop(self) -> None:
        """Ends an agent that runs. The process of one that cannot be ended is."""
        process, self._is_running = self._process, False
        if process is None:
            return
        try:
            async with asyncio.timeout(_STOP_TIMEOUT_S):
                await self._call(process, "stop")
        except TimeoutError:
            process.kill("an agent of another episode hung")
            raise EpisodeFailed(f"the agent did not end within {_STOP_TIMEOUT_S:g} s: it keeps its process") from None
        except (CallFailed, ProcessLost) as error:
            raise EpisodeFailed(f"the agent could not be ended: {error}") from None

    async def result(self) -> Message:
        """Returns reward, metrics and detail."""
        return await self._survived(lambda process: self._call(process, "result"))

    async def close(self) -> None:
        """Frees what the environment holds. Returns when it has; a process that does not free it is ended."""
        try:
            if self._is_running:  # Its caller has gone. A call has no deadline before it begins, which it may not do.
                with contextlib.suppress(EpisodeFailed):
                    await self.stop()
            if self._process is not None:
                await self._call(self._process, "close")
        except CallFailed as error:
            if error.kind == "late" and self._process is not None:
                self._process.kill("close of another episode hung")
        except ProcessLost:
            pass
        finally:
            if self._process is not None:
                self._pool.leave(self._process)
            self._pool.end_episode()

    async def _answered(self, call: str) -> Message:
        """Carries out `reset`, or the last turn, and returns the observation."""

        async def carry_out(process: EnvironmentProcess) -> Message:
            if call == "reset":
                return await self._reset(process)
            return await self._step(process, len(self._turns))

        observation = await self._survived(carry_out)
        self._digests.append(digest_of(observation))
        return observation

    async def _survived(self, carry_out: Callable[[EnvironmentProcess], Awaitable[Message]]) -> Message:
        """Carries something out, in another process if this one dies."""
        while True:
            try:
                process = self._process
                if process is None:
                    is_suspect = max(self._deaths.values(), default=0) >= _MAX_DEATHS - 1
                    process = self._process = await self._pool.place(alone=is_suspect)
                    if self._digests:
                        await self._replay(process)
                return await carry_out(process)
            except ProcessLost as lost:
                self._lose_process(lost)
            except CallFailed as error:
                raise self._failure(error) from None

    def _lose_process(self, lost: ProcessLost) -> None:
        was_alone = self._process is not None and self._process.is_private
        if self._process is not None:
            self._pool.leave(self._process)
            self._process = None
        if self._digests and not self._is_deterministic:
            raise self._lost(str(lost)) from None
        self._deaths[self._turn] += lost.in_call
        self._num_deaths += 1
        if was_alone and self._deaths[self._turn] >= _MAX_DEATHS:
            what = f"turn {self._turn}" if self._turn else "the start"
            raise EpisodeFailed(
                f"its process died {counted(self._deaths[self._turn], 'time')} in {what}: {lost}"
            ) from None
        if self._num_deaths >= _MAX_DEATHS_IN_ALL:
            raise self._lost(f"its process died {_MAX_DEATHS_IN_ALL} times in this episode: {lost}") from None

    def _lost(self, why: str) -> Aborted:
        return Aborted(f"episode {self._start.episode_id}: {why}; begin it again")

    async def _replay(self, process: EnvironmentProcess) -> None:
        """Brings a new process to where the lost one was."""
        _REPLAYS.add(1, {names.ENVIRONMENT: self._pool.code.name})
        self._compare(0, await self._reset(process))
        for number in range(1, len(self._digests)):
            self._compare(number, await self._step(process, number))

    def _compare(self, number: int, observation: Message) -> None:
        if digest_of(observation) != self._digests[number]:
            raise EpisodeFailed(
                f"its process died, and turn {number} had another observation when it was played again, although "
                "is_deterministic is true"
            )

    async def _step(self, process: EnvironmentProcess, number: int) -> Message:
        self._turn = number
        return await self._call(process, "step", turn=self._turns[number - 1])

    async def _reset(self, process: EnvironmentProcess) -> Message:
        start, self._turn = self._start, 0
        return await self._call(
            process, "reset", task=start.task, seed=start.seed, messages=list(start.messages), tools=start.tools
        )

    async def _call(self, process: EnvironmentProcess, name: str, **arguments: Any) -> Message:
        start = self._start
        answer: Message = await process.call(name, timeout_s=start.call_timeout_s, episode=self._key, **arguments)
        return answer

    def _failure(self, error: CallFailed) -> Exception:
        if error.kind == "invalid_task":
            return InvalidArgument(f"start.task: the environment {self._pool.code.name} does not take it: {error}")
        if error.kind == "cannot_load":  # The code has worked before: something else ends its processes.
            return self._lost(str(error))
        if error.kind == "unscorable":
            return EpisodeFailed(str(error), ScoreOutcome.UNSCORABLE)
        return EpisodeFailed(str(error), traceback=error.traceback)


def digest_of(observation: Message) -> str:
    """Returns the digest of an observation, without the times that its calls took."""
    outcomes = [outcome | {"duration_s": 0.0} for outcome in observation["tool_outcomes"]]
    return hashlib.sha256(json.dumps(observation | {"tool_outcomes": outcomes}, sort_keys=True).encode()).hexdigest()
