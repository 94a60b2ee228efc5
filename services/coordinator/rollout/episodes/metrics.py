"""Metrics of the episodes of a step or an evaluation, by metric name; docs/metrics.md gives the meaning of each."""

import statistics
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from services.coordinator.rollout.episodes.messages import metric_name
from services.coordinator.rollout.groups import counted_tokens
from shoal.conversation import ToolCallStatus
from shoal.rollout import Completion, Episode, Prompt
from shoal.scores import ScoreOutcome

UNKNOWN_TOOL = "unknown"
"""The name under which all calls of unknown tools are counted."""


class _Call(NamedTuple):
    tool: str
    is_ok: bool
    duration_s: float


Played = tuple[Prompt, Completion]
"""A prompt with an environment, and an episode of it."""


def played(judged: Iterable[tuple[Prompt, Iterable[Completion]]]) -> list[Played]:
    """Returns the completions that are episodes, each with its prompt."""
    return [
        (prompt, completion)
        for prompt, completions in judged
        for completion in completions
        if completion.episode is not None
    ]


def evaluation_metrics(episodes: Sequence[Played]) -> dict[str, float]:
    """Computes the metrics of an evaluation's episodes, without those of single tools."""
    metrics = episode_metrics(episodes)
    return {f"eval/{name}": value for name, value in metrics.items() if name.startswith(("episodes/", "env/"))}


def episode_metrics(played: Sequence[Played]) -> dict[str, float]:
    """Computes the metrics of episodes; returns an empty dict without episodes."""
    if not played:
        return {}
    episodes = [episode for _, completion in played if (episode := completion.episode) is not None]
    calls = [list(_calls(episode)) for episode in episodes]
    num_sampled = [int(counted_tokens(completion).sum()) for _, completion in played]
    return (
        {
            "episodes/turns": statistics.fmean(len(episode.turns) for episode in episodes),
            "episodes/turns_max": float(max(len(episode.turns) for episode in episodes)),
            "episodes/segments": statistics.fmean(max(1, len(episode.segments)) for episode in episodes),
            "episodes/prompt_tokens_again": statistics.fmean(map(_prompt_tokens_again, episodes)),
            "episodes/tool_calls": statistics.fmean(map(len, calls)),
            "episodes/malformed_call_rate": _malformed_rate(episodes),
            "time/tools": statistics.fmean(sum(call.duration_s for call in made) for made in calls),
            "episodes/policy_tokens": statistics.fmean(num_sampled),
            "episodes/environment_tokens": statistics.fmean(
                completion.num_tokens - count for (_, completion), count in zip(played, num_sampled, strict=True)
            ),
            "episodes/truncated_rate": statistics.fmean(episode.is_truncated for episode in episodes),
            "episodes/failed_rate": statistics.fmean(episode.outcome is ScoreOutcome.FAILED for episode in episodes),
        }
        | _tools(calls)
        | _environments(played)
    )


def _prompt_tokens_again(episode: Episode) -> int:
    """Counts the prompt tokens of segments after the first, which learner and engine compute again."""
    return sum(len(segment.prompt_token_ids) for segment in episode.segments[1:])


def _calls(episode: Episode) -> Iterator[_Call]:
    for turn in episode.turns:
        for call, outcome in zip(turn.message.tool_calls, turn.tool_outcomes, strict=False):
            is_known = call.status in (ToolCallStatus.OK, ToolCallStatus.BAD_ARGUMENTS)
            yield _Call(call.name if is_known else UNKNOWN_TOOL, outcome.ok, outcome.duration_s)


def _malformed_rate(episodes: Sequence[Episode]) -> float:
    statuses = [call.status for episode in episodes for turn in episode.turns for call in turn.message.tool_calls]
    return statistics.fmean(status is not ToolCallStatus.OK for status in statuses) if statuses else 0.0


def _tools(calls: Sequence[Sequence[_Call]]) -> dict[str, float]:
    """The metrics of each tool, and of all tools, under open-instruct's names."""
    of_all = [call for made in calls for call in made]
    by_tool: dict[str, list[_Call]] = {}
    for call in of_all:
        by_tool.setdefault(metric_name(call.tool), []).append(call)
    by_tool["aggregate"] = of_all  # Even if a tool has this name.
    metrics = {}
    for tool, made in sorted(by_tool.items()):
        metrics[f"tools/{tool}/avg_calls_per_rollout"] = len(made) / len(calls)
        metrics[f"tools/{tool}/failure_rate"] = statistics.fmean(not call.is_ok for call in made) if made else 0.0
        metrics[f"tools/{tool}/avg_runtime"] = statistics.fmean(call.duration_s for call in made) if made else 0.0
    return metrics


def _environments(played: Sequence[Played]) -> dict[str, float]:
    """The mean of each metric that an environment defines, over the episodes that have the metric."""
    values: dict[str, list[float]] = {}
    for prompt, completion in played:
        assert prompt.environment is not None and completion.episode is not None
        for name, value in completion.episode.metrics.items():
            values.setdefault(f"env/{prompt.environment.environment}/{name}", []).append(value)
    return {name: statistics.fmean(each) for name, each in sorted(values.items())}
