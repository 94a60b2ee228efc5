"""The environment `counter`."""

from typing import Any

from shoal.environment import Environment, InvalidTask, Observation, tool


class Counter(Environment):
    """A counter that the policy must move to a target with tools, and then submit.

    Task: {"target": 5}; without it the setting `target`. Rewards, as in open-instruct: -0.1 for each step of the
    counter; for submitting it, 1 at the target, else -0.5. Metrics: `step_count`, `final_value`, `reached_target`.
    """

    is_deterministic = True

    def __init__(self, target: int = 5) -> None:
        self._target = target

    def reset(self, task: dict[str, Any], seed: int) -> str:
        self._target = task.get("target", self._target)
        if type(self._target) is not int or task.keys() - {"target"}:
            raise InvalidTask('give a whole number, {"target": 5}')
        self._value = 0
        self.metrics |= {"step_count": 0, "final_value": 0, "reached_target": 0}
        ends_it = self.offered_tools is None or "submit" in self.offered_tools
        return f"The counter is at 0. Move it to {self._target}{', then submit it' if ends_it else ''}."

    @tool
    def increment(self) -> Observation:
        """Add 1 to the counter."""
        return self._moved(1)

    @tool
    def decrement(self) -> Observation:
        """Subtract 1 from the counter."""
        return self._moved(-1)

    @tool
    def submit(self) -> Observation:
        """Submit the counter as it is."""
        is_right = self._value == self._target
        self.metrics["step_count"] += 1
        self.metrics["reached_target"] = float(is_right)
        said = f"The counter is at {self._value}; the target is {self._target}."
        return Observation(said, reward=1.0 if is_right else -0.5, done=True)

    def _moved(self, by: int) -> Observation:
        self._value += by
        self.metrics["step_count"] += 1
        self.metrics["final_value"] = self._value
        return Observation(f"The counter is at {self._value}.", reward=-0.1)
