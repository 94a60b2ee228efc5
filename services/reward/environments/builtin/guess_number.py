"""The environment `guess_number`."""

import random
from typing import Any

from shoal.conversation import ToolCallStatus
from shoal.environment import Environment, InvalidTask, Observation, Turn, tool

_NO_INTEGER = -0.1


class GuessNumber(Environment):
    """A number that the policy must guess with a tool, which answers whether the number is higher or lower.

    Task: {"number": 42}; without it the number is drawn from the seed, between the settings `min_val` and `max_val`.
    Rewards, as in open-instruct: 1 - distance / (max_val - min_val) for each guess, at least 0; -0.1 for a guess that
    is not a whole number. Without `partial_credit` a wrong guess gets 0. The right guess gets 1 and ends the episode.
    `max_guesses` guesses also end it.

    Metrics: `guesses`, `solved`.
    """

    is_deterministic = True

    def __init__(
        self, min_val: int = 1, max_val: int = 100, max_guesses: int | None = None, partial_credit: bool = True
    ) -> None:
        if min_val >= max_val:
            raise ValueError(f"min_val must be below max_val (given: {min_val}, {max_val})")
        if max_guesses is not None and max_guesses < 1:
            raise ValueError(f"max_guesses must be at least 1 (given: {max_guesses})")
        if type(partial_credit) is not bool:
            raise ValueError(f"partial_credit must be true or false (given: {partial_credit!r})")
        self._min, self._max, self._max_guesses = min_val, max_val, max_guesses
        self._partial_credit = partial_credit

    def reset(self, task: dict[str, Any], seed: int) -> str:
        self._number = task.get("number", random.Random(seed).randint(self._min, self._max))
        if type(self._number) is not int or not self._min <= self._number <= self._max or task.keys() - {"number"}:
            raise InvalidTask(f'give a whole number from {self._min} to {self._max}, {{"number": {self._min}}}')
        self.metrics |= {"guesses": 0, "solved": 0}
        limit = f" You have {self._max_guesses} guesses." if self._max_guesses else ""
        return f"I think of a whole number from {self._min} to {self._max}. Guess it.{limit}"

    async def step(self, turn: Turn) -> Observation:
        answer = await self.call_tools(turn)
        bad = sum(call.status is ToolCallStatus.BAD_ARGUMENTS for call in turn.tool_calls)
        reward = (answer.reward or 0.0) + bad * _NO_INTEGER if bad else answer.reward
        return Observation(answer.messages, reward, answer.done, answer.tool_outcomes)

    @tool
    def guess(self, number: int) -> Observation:
        """Guess the number.

        Args:
            number: a whole number
        """
        self.metrics["guesses"] += 1
        is_last = self._max_guesses is not None and self.metrics["guesses"] >= self._max_guesses
        if type(number) is not int:
            return Observation("A guess must be a whole number.", reward=_NO_INTEGER, done=is_last)
        distance = abs(number - self._number)
        if distance == 0:
            self.metrics["solved"] = 1
            return Observation(f"Yes, it is {number}.", reward=1.0, done=True)
        hint = "higher" if self._number > number else "lower"
        reward = max(0.0, 1.0 - distance / (self._max - self._min)) if self._partial_credit else 0.0
        return Observation(f"It is {hint} than {number}.", reward=reward, done=is_last)
