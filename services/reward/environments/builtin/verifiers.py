"""The environment `verifiers`."""

import contextlib
import functools
import importlib
import importlib.util
import itertools
import json
import os
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

from shoal.environment import Agent, Broken, InvalidTask, Policy


class Verifiers(Agent):
    """A task set of the package `verifiers` (v1, 0.4 or later), which runs in a separate Python (`interpreter`).

    The settings are those of the package's environments: `taskset`, such as {"id": "gsm8k"}, `agent` with its harness,
    runtime and limits, `timeout`, and so on. Its agent calls the policy.

    Task: {"index": 3}, a task's place in the task set; without it the seed draws one. The reward is the reward that the
    task set gives the agent (the mean of their rewards if several agents are trained). An error in the package fails
    the episode. Metrics are the task set's metrics and rewards, and `num_turns`.
    """

    def __init__(self, taskset: Mapping[str, Any] | None = None, **config: Any) -> None:
        self._config = json.dumps({"taskset": dict(taskset or {}), **config}, sort_keys=True)

    def unavailable(self) -> str:
        if importlib.util.find_spec("verifiers") is None:
            return (
                "the package `verifiers` is not installed in this Python: pip install verifiers, "
                "or name another `interpreter`"
            )
        return ""

    async def tools(self) -> list[Any]:
        """Returns no tools. Raises `ValueError` for settings that the package `verifiers` does not accept."""
        if not self.unavailable():
            _tasks(self._config).at(0)
        return []

    def reset(self, task: dict[str, Any], seed: int) -> None:
        """Chooses the task. Raises `InvalidTask`."""
        self._task = _tasks(self._config).chosen(task, seed)

    async def run(self, task: dict[str, Any], seed: int, policy: Policy) -> float | None:
        """Lets the package `verifiers` play one of its episodes. Raises `Broken`."""
        environment = _environment(self._config)
        with _key_in_environment(policy.api_key) as variable:
            context = _context(policy, variable)
            async with environment.serving():
                (slot,) = environment.slots(self._task)
                episode = await environment.run_slot(slot, context)
        return self._judged(episode)

    def _judged(self, episode: Any) -> float | None:
        """Returns the reward of an episode, and keeps its metrics. Raises `Broken` for an episode with an error."""
        if not episode.ok:
            errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
            why = f"{errors[0].type}: {errors[0].message}" if errors else "the episode was not completed"
            raise Broken(f"the package verifiers failed: {why}")
        traces = [trace for trace in episode.traces if trace.agent.trainable] or episode.traces
        for trace in traces:
            scores = {name: reward.score for name, reward in trace.rewards.items() if reward is not None}
            for name, value in {**trace.metrics, **scores, "num_turns": trace.num_turns}.items():
                if value is not None:
                    self.metrics[name] = self.metrics.get(name, 0.0) + float(value) / len(traces)
        self.detail = ", ".join(sorted({trace.stop_condition for trace in traces if trace.stop_condition}))
        paid = [trace.reward for trace in traces if any(reward is not None for reward in trace.rewards.values())]
        return sum(paid) / len(paid) if paid else None


class _Tasks:
    """The tasks of a task set. They are read on demand, since there may be infinitely many."""

    def __init__(self, taskset: Any) -> None:
        self._read: list[Any] = []
        self._left = iter(taskset)
        self._is_bounded: bool = taskset.bounded

    def at(self, index: int) -> Any:
        """Returns a task. Raises `InvalidTask` if there are fewer."""
        missing = index + 1 - len(self._read)
        if missing > 0:
            self._read += itertools.islice(self._left, missing)
        if index >= len(self._read):
            raise InvalidTask(f"the task set has {len(self._read)} tasks; there is none with the index {index}")
        return self._read[index]

    def chosen(self, task: Mapping[str, Any], seed: int) -> Any:
        """Returns the task that a row names, or that the seed draws. Raises `InvalidTask`."""
        index = task.get("index")
        if task.keys() - {"index"} or not (index is None or (type(index) is int and index >= 0)):
            raise InvalidTask('give {"index": number}, the place of a task from 0 on, or nothing')
        if index is not None:
            return self.at(index)
        if not self._is_bounded:
            raise InvalidTask('the task set is infinite, so none of its tasks can be drawn: give {"index": number}')
        self._read += self._left
        return self.at(seed % max(1, len(self._read)))


def _loaders() -> Any:
    return importlib.import_module("verifiers.v1.utils.loaders")


def _environment(config: str) -> Any:
    """Returns an environment of the package `verifiers` for one episode, with the servers of its agents."""
    return _loaders().load_environment(_loaders().resolve_env_config(json.loads(config)))


@functools.cache
def _tasks(config: str) -> _Tasks:
    """Returns the tasks, which all episodes of the process share. Raises the errors of the package `verifiers`."""
    return _Tasks(_environment(config).taskset)


def _context(policy: Policy, key_variable: str) -> Any:
    v1, pydantic = importlib.import_module("verifiers.v1"), importlib.import_module("pydantic")
    client = {"type": "eval", "base_url": policy.base_url, "api_key_var": key_variable}
    made = pydantic.TypeAdapter(v1.ClientConfig).validate_python(client)
    return v1.ModelContext(model=policy.model, client=made)


@contextlib.contextmanager
def _key_in_environment(key: str) -> Iterator[str]:
    """Puts an episode's key into an environment variable, since clients of the package `verifiers` read a key only
    there."""
    variable = f"SHOAL_POLICY_KEY_{uuid.uuid4().hex}"
    os.environ[variable] = key
    try:
        yield variable
    finally:
        del os.environ[variable]
