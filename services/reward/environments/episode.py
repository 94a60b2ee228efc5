"""An episode of an environment that runs here."""

import asyncio
import contextlib
import hashlib
import json
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from services.reward.environments.environment_process import CallFailed, EnvironmentProcess, ProcessLost
from services.reward.environments.pool import EnvironmentPool
from shoal.errors import Aborted, InvalidArgument
from shoal.quantities import counted
from shoal.scores import ScoreOutcome
from shoal.telemetry import metrics, names

_REPLAYS = metrics.counter(names.ENVIRONMENT_REPLAYS)
_MAX_DEATHS = 3
"""Maximum number of deaths of a process in one turn of an episode. The first may have come from outside or from another
episode of the process; the last is in a process that the episode does not share."""
_MAX_DEATHS_IN_ALL = 20
"""Maximum number of deaths of a process in an episode, in or between calls, before another service must play it."""
_RUN_TIMEOUT_S = 7 * 86400.0
_STOP_TIMEOUT_S = 5.0

Message = dict[str, Any]
_Call = Callable[[EnvironmentProcess], Awaitable[Message]]


class EpisodeFailed(Exception):
    """The episode is over without a reward. The message says why."""

    def __init__(self, detail: str, outcome: ScoreOutcome = ScoreOutcome.FAILED, traceback: str = "") -> None:
        super().__init__(detail)
        self.outcome, self.traceback = outcome, traceback


class CallerLeft(Exception):
    """The caller has left, and needs no result."""


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
    """Plays one episode. Make one call at a time, and `close` at the end.

    Every method raises `EpisodeFailed` if the environment breaks, and `Aborted` if the episode must begin again: the
    process died and the environment is not deterministic, or no process can live. After either error only `close` may
    be called.
    """

    def __init__(self, pool: EnvironmentPool, start: Start, *, is_deterministic: bool) -> None:
        self._pool, self._start, self._is_deterministic = pool, start, is_deterministic
        pool.begin_episode()
        self._process: EnvironmentProcess | None = None
        self._turns: list[Message] = []
        self._digests: list[str] = []
        """The digests of the observations, beginning with the first observation."""
        self._deaths: Counter[int] = Counter()
        """Calls in which a process died, by turn; 0 is the start."""
        self._num_deaths = 0
        self._turn = 0
        """The current turn, whether it is played for the first time or again."""
        self._is_running = False
        """Whether a process runs an agent, as far as this process knows."""
        self._key = uuid.uuid4().hex
        """The episode's name in processes. An episode may begin again under its id before the old stream has ended."""

    async def begin(self, replay: Sequence[Message] = ()) -> Message:
        """Returns the first observation, or, with turns to replay, the last. Raises `InvalidArgument` for an invalid
        task."""
        observation = await self._answered(self._reset)
        for turn in replay:
            observation = await self.step(turn)
        return observation

    async def step(self, turn: Message) -> Message:
        """Returns the observation of a turn of the policy."""
        self._turns.append(turn)
        return await self._answered(lambda process: self._step(process, len(self._turns)))

    async def run(self, policy: Message) -> None:
        """Runs an agent, after `reset`, to its end. Its exceptions are not logged: when its calls are refused, most
        agents can only raise."""
        start = self._start
        given = {"episode": self._key, "task": start.task, "seed": start.seed, "policy": policy}
        self._is_running = True
        await self._survived(lambda process: process.call("run", timeout_s=_RUN_TIMEOUT_S, logs_error=False, **given))
        self._is_running = False

    async def stop(self) -> None:
        """Ends a running agent, and if necessary its process."""
        process, self._is_running = self._process, False
        if process is None:
            return
        try:
            async with asyncio.timeout(_STOP_TIMEOUT_S):
                await self._call(process, "stop")
        except TimeoutError:
            process.kill("an agent of another episode hung")
            raise EpisodeFailed(f"the agent did not end within {_STOP_TIMEOUT_S:g} s; its process was killed") from None
        except (CallFailed, ProcessLost) as error:
            raise EpisodeFailed(f"the agent could not be ended: {error}") from None

    async def result(self) -> Message:
        """Returns reward, metrics and detail."""
        return await self._survived(lambda process: self._call(process, "result"))

    async def close(self) -> None:
        """Frees the environment's resources, and waits for that. Ends a process that does not free them."""
        try:
            if self._is_running:  # The caller is gone. A call has no deadline before it begins, and it may never begin.
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

    async def _answered(self, carry_out: _Call) -> Message:
        """Carries out `reset` or the last turn, and returns the observation."""
        observation = await self._survived(carry_out)
        self._digests.append(digest_of(observation))
        return observation

    async def _survived(self, carry_out: _Call) -> Message:
        """Carries out a call, in another process if this process dies."""
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
        return Aborted(f"episode {self._start.episode_id}: {why}; begin the episode again")

    async def _replay(self, process: EnvironmentProcess) -> None:
        """Brings a new process to the state of the lost process."""
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
            return InvalidArgument(f"start.task: the environment {self._pool.code.name} rejects the task: {error}")
        if error.kind == "cannot_load":  # The code has worked before, so something else ends its processes.
            return self._lost(str(error))
        if error.kind == "unscorable":
            return EpisodeFailed(str(error), ScoreOutcome.UNSCORABLE)
        return EpisodeFailed(str(error), traceback=error.traceback)


def digest_of(observation: Message) -> str:
    """Returns the digest of an observation, without the durations of its calls."""
    outcomes = [outcome | {"duration_s": 0.0} for outcome in observation["tool_outcomes"]]
    return hashlib.sha256(json.dumps(observation | {"tool_outcomes": outcomes}, sort_keys=True).encode()).hexdigest()
