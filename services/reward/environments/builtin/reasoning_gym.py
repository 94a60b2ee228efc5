"""The environment `reasoning_gym`."""

import importlib.util
from typing import Any

from services.reward.common.verdict import Unscorable as CannotScore
from shoal.environment import Environment, InvalidTask, Observation, Turn, Unscorable

_LABEL = {"task", "options", "entry"}


class ReasoningGym(Environment):
    """A question of reasoning-gym. After a wrong answer, the policy is told so and may try again.

    Task: {"task": name, "options": JSON text, "entry": JSON text}, as a source with `task` makes it; its prompt has the
    question. The task's own scorer judges each try, as the verifier `reasoning_gym` does: a score of at least
    `threshold` (1) ends the episode, and so does the try number `max_tries` (3). The reward is the score of the last
    try, times `discount` (0.8) for each earlier try. After a wrong try the policy reads the text `wrong`.

    Metrics: `tries`, `solved`, `first_try`.
    """

    is_deterministic = True

    def __init__(
        self,
        max_tries: int = 3,
        discount: float = 0.8,
        threshold: float = 1.0,
        wrong: str = "That is wrong. Try again.",
    ) -> None:
        if max_tries < 1 or not 0 <= discount <= 1 or not 0 < threshold <= 1:
            raise ValueError("max_tries must be at least 1, discount from 0 to 1, threshold above 0 and at most 1")
        self._max_tries, self._discount, self._threshold, self._wrong = max_tries, discount, threshold, wrong

    def unavailable(self) -> str:
        if importlib.util.find_spec("reasoning_gym") is None:
            return "reasoning-gym is not installed: pip install 'shoal[tasks]'"
        return ""

    def reset(self, task: dict[str, Any], seed: int) -> None:
        if task.keys() != _LABEL or not all(isinstance(value, str) for value in task.values()):
            raise InvalidTask('give {"task", "options", "entry"}, as a source of data with `task` makes them')
        self._label = task
        self.metrics |= {"tries": 0, "solved": 0, "first_try": 0}

    def step(self, turn: Turn) -> Observation:
        # Importing the package takes some seconds.
        from services.reward.verifiers.reasoning_gym import VERIFIER

        try:
            score = VERIFIER.judge(turn.opened_thought + turn.text, self._label, (), {}).value
        except CannotScore as error:
            raise Unscorable(str(error)) from None
        self.metrics["tries"] = turn.number
        is_solved = score >= self._threshold
        if not is_solved and turn.number < self._max_tries:
            return Observation(self._wrong)
        self.metrics["solved"] = is_solved
        self.metrics["first_try"] = is_solved and turn.number == 1
        return Observation(reward=score * self._discount ** (turn.number - 1), done=True)
