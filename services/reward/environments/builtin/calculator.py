"""The environment `calculator`."""

import random
import re
from typing import Any

from shoal.environment import Environment, InvalidTask, Observation, Turn

_CALL = re.compile(r"<calc>\s*(-?\d{1,30})\s*([*+-])\s*(-?\d{1,30})\s*</calc>")
_NUMBER = re.compile(r"-?\d+")


class Calculator(Environment):
    """A calculator that the policy calls by writing `<calc>12*34</calc>`; the answer is `Result: 408`.

    Task: {"a": 12, "b": 34}, after a prompt that asks for a times b. Without a task the seed draws two numbers of
    two digits for the question. Rewards: `call_reward` for a call with the right numbers in the first turn, and
    `1 - call_reward` for the result in the second turn, both outside of thoughts. A result without the right call gets
    no reward, so that the policy learns to call.

    Metrics: `called` (a call that can be read), `right_call`, `solved`.
    """

    is_deterministic = True

    def __init__(self, call_reward: float = 0.2) -> None:
        if not 0 <= call_reward <= 1:
            raise ValueError(f"call_reward must be from 0 to 1 (given: {call_reward})")
        self._call_reward = call_reward

    def reset(self, task: dict[str, Any], seed: int) -> str | None:
        self.metrics |= {"called": 0, "right_call": 0, "solved": 0}
        if not task:
            draw = random.Random(seed)
            self._a, self._b = draw.randint(10, 99), draw.randint(10, 99)
            return f"What is {self._a} times {self._b}?"
        a, b = task.get("a"), task.get("b")
        if not isinstance(a, int) or not isinstance(b, int) or task.keys() - {"a", "b"}:
            raise InvalidTask('give whole numbers, {"a": 12, "b": 34}')
        self._a, self._b = a, b
        return None

    def step(self, turn: Turn) -> Observation:
        if turn.number == 1:
            return self._call(turn.answer)
        solved = self.metrics["right_call"] and str(self._a * self._b) in _NUMBER.findall(turn.answer)
        self.metrics["solved"] = float(solved)
        return Observation(reward=1 - self._call_reward if solved else 0.0, done=True)

    def _call(self, text: str) -> Observation:
        match = _CALL.search(text)
        if match is None:
            return Observation(reward=0.0, done=True)
        a, operator, b = int(match[1]), match[2], int(match[3])
        is_right = operator == "*" and sorted((a, b)) == sorted((self._a, self._b))
        self.metrics |= {"called": 1, "right_call": float(is_right)}
        result = {"*": a * b, "+": a + b, "-": a - b}[operator]
        return Observation(f"Result: {result}", reward=self._call_reward if is_right else 0.0)
