"""Metrics of episodes."""

from dataclasses import replace

import numpy as np
import pytest

from services.coordinator.rollout.episodes.metrics import episode_metrics, evaluation_metrics, played
from services.coordinator.rollout.groups import SettledGroup
from shoal.conversation import ChatMessage, ToolCall, ToolCallStatus
from shoal.rollout import EnvironmentTask, Episode, EpisodeSegment, EpisodeTurn, FinishReason, ToolOutcome
from shoal.scores import ScoreOutcome
from tests.support.groups import PROMPT, group_config, judged, settled_group

CONFIG = group_config()
MALFORMED = ToolCallStatus.MALFORMED


def turn(*calls: tuple[str, ToolCallStatus, bool, float], reward: float | None = None) -> EpisodeTurn:
    message = ChatMessage("assistant", "", tuple(ToolCall("c", name, "{}", status, "") for name, status, _, _ in calls))
    outcomes = tuple(ToolOutcome(name, ok, False, duration_s) for name, _, ok, duration_s in calls)
    return EpisodeTurn(0, 1, message, FinishReason.STOP, 0, (), reward, outcomes)


def group_of(order_number: int, *episodes: Episode) -> SettledGroup:
    group = settled_group(order_number, [1.0, 0.0][: len(episodes)])
    completions = tuple(
        replace(completion, loss_mask=np.array([True, False]), episode=episode)
        for completion, episode in zip(group.completions, episodes, strict=True)
    )
    return replace(group, prompt=replace(PROMPT, environment=EnvironmentTask("lab", {})), completions=completions)


def episode(*turns: EpisodeTurn, is_truncated: bool = False, outcome: ScoreOutcome = ScoreOutcome.SCORED) -> Episode:
    return Episode(turns, "done", is_truncated, outcome, metrics={"solved": float(not is_truncated)})


def test_calls_are_counted_by_tool_and_what_the_policy_invents_under_one_name() -> None:
    ok = ToolCallStatus.OK
    first = episode(turn(("search", ok, True, 1.0), ("search", ok, False, 3.0)), turn(("", MALFORMED, False, 0.0)))
    second = episode(turn(), is_truncated=True, outcome=ScoreOutcome.FAILED)
    group = group_of(0, first, second)
    metrics = episode_metrics(played([(group.prompt, group.completions)]))
    assert metrics["tools/search/avg_calls_per_rollout"] == 1 and metrics["tools/search/avg_runtime"] == 2
    assert metrics["tools/search/failure_rate"] == pytest.approx(1 / 2)
    assert metrics["tools/aggregate/avg_calls_per_rollout"] == metrics["episodes/tool_calls"] == 1.5
    assert metrics["tools/aggregate/failure_rate"] == pytest.approx(2 / 3)
    assert "tools/unknown/avg_calls_per_rollout" in metrics and metrics["episodes/malformed_call_rate"] == 1 / 3
    assert (metrics["episodes/turns"], metrics["episodes/turns_max"], metrics["time/tools"]) == (1.5, 2, 2.0)
    assert metrics["episodes/truncated_rate"] == metrics["episodes/failed_rate"] == metrics["env/lab/solved"] == 0.5
    assert metrics["episodes/policy_tokens"] == metrics["episodes/environment_tokens"] == 1


def test_tokens_are_counted_that_a_changed_context_has_computed_again() -> None:
    segments = tuple(EpisodeSegment(np.zeros(size, np.int32), 0, 1) for size in (5, 7, 11))
    group = group_of(0, replace(episode(turn()), segments=segments), episode(turn()))
    metrics = episode_metrics(played([(group.prompt, group.completions)]))
    assert (metrics["episodes/segments"], metrics["episodes/prompt_tokens_again"]) == (2, (7 + 11 + 0) / 2)


def test_a_tool_with_the_name_of_all_tools_is_counted_with_them() -> None:
    ok = ToolCallStatus.OK
    group = group_of(0, episode(turn(("aggregate", ok, True, 1.0), ("search", ok, True, 3.0))), episode(turn()))
    metrics = episode_metrics(played([(group.prompt, group.completions)]))
    assert metrics["tools/aggregate/avg_calls_per_rollout"] == 1 and metrics["tools/aggregate/avg_runtime"] == 2
    assert metrics["tools/search/avg_calls_per_rollout"] == 0.5


def test_names_of_tools_are_one_line_without_control_characters() -> None:
    group = group_of(0, episode(turn((f"a\nb\x1b[31m{'c' * 200}", ToolCallStatus.OK, True, 1.0))))
    names = [name for name in episode_metrics(played([(group.prompt, group.completions)])) if "tools/a b" in name]
    assert f"tools/{'a b<U+001B>[31m'.ljust(100, 'c')}/avg_runtime" in names, names


def test_prompts_of_one_turn_have_no_metrics_of_episodes() -> None:
    group = settled_group(0, [1.0, 0.0])
    assert episode_metrics(played([(group.prompt, group.completions)])) == {}


def test_an_evaluation_tells_of_its_episodes_and_leaves_single_tools_out() -> None:
    group = group_of(0, episode(turn(("search", ToolCallStatus.OK, True, 1.0))), episode(turn()))
    metrics = evaluation_metrics(played([(group.prompt, group.completions), (PROMPT, group.completions[:0])]))
    assert metrics["eval/episodes/turns"] == metrics["eval/env/lab/solved"] == 1
    assert not any("tools/" in name or "time/" in name for name in metrics), metrics


def test_truncated_episodes_are_masked_where_the_configuration_says_so() -> None:
    # The first completion of `settled_group` is cut off.
    group = group_of(0, episode(turn(), is_truncated=True), episode(turn()))
    (scored,) = judged(group_config(), [group])
    (masked,) = judged(group_config(episodes={"truncated": "mask"}), [group])
    assert scored.trained_indices == (0, 1) and masked.trained_indices == (1,)


def test_a_prompt_of_an_environment_alone_is_correct_from_a_reward_of_1_on() -> None:
    group = group_of(0, episode(turn()), episode(turn()))
    scores = tuple(replace(score, verifier_scores=()) for score in group.scores)
    (judgment,) = judged(CONFIG, [replace(group, scores=scores)])
    assert judgment.correct_share == 0.5 and judgment.max_reward == 1.0
