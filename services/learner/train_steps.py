"""Train steps by id: a step that is sent again is not applied again."""

from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future

from services.learner.learner import StepResult

MAX_RESULTS = 4
"""Number of the newest steps whose result a repeat still gets."""


class TrainSteps:
    """The newest train steps: those that run, and the results of those that ended."""

    def __init__(self) -> None:
        self._steps: OrderedDict[str, Future[StepResult]] = OrderedDict()

    def begin_once(self, step_id: str, begin: Callable[[], "Future[StepResult]"]) -> "Future[StepResult]":
        """Returns the step of that id. Begins it if it is unknown, or if it failed and so changed nothing."""
        step = self._steps.get(step_id)
        if step is None or (step.done() and step.exception() is not None):
            step = self._steps[step_id] = begin()
            while len(self._steps) > MAX_RESULTS:
                self._steps.popitem(last=False)
        return step

    def clear(self) -> None:
        """Forgets all steps."""
        self._steps.clear()
