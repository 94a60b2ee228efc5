import json

import pytest

from services.coordinator.reporting.page.chart import Chart
from services.coordinator.reporting.page.curves import MAX_POINTS, PANELS, draw_evaluations, draw_panels, how_to_read
from shoal.telemetry.run_metric_table import TABLE
from shoal.telemetry.run_metrics import undocumented
from tests.support.wordings import numbers_in

LENGTHS = ("val/sequence_lengths", "val/sequence_lengths_min", "val/sequence_lengths_max")


def panels(rows: list[dict[str, float]]) -> dict[str, Chart | None]:
    last_step = int(rows[-1]["step"]) if rows else 0
    return {panel.title: chart for panel, chart in draw_panels(rows, last_step, {})}


def texts(chart: Chart | None) -> list[list[str]]:
    assert chart is not None
    return [curve["text"] for curve in json.loads(chart.points)["curves"]]


def test_every_metric_in_a_chart_is_documented() -> None:
    names = [metric.name for panel in PANELS for metric in panel.metrics]
    assert not undocumented(names, TABLE)


def test_a_metric_that_no_step_has_leaves_its_chart_out_and_the_others_in() -> None:
    charts = panels([{"step": 1, "objective/scores": 0.5}, {"step": 2, "objective/scores": 0.7}])
    assert [title for title, chart in charts.items() if chart] == ["Reward"]
    assert texts(charts["Reward"]) == [["0.5", "0.7"]]


def test_a_step_without_a_metric_is_a_gap() -> None:
    charts = panels([{"step": step, **({} if step == 2 else {"val/logprob_gap_mean": 0.01})} for step in (1, 2, 3)])
    assert texts(charts["Log-probability gap"]) == [["0.01", "–", "0.01"]]


def test_no_steps_are_no_charts() -> None:
    assert not any(panels([]).values())


def test_a_point_of_a_long_run_is_the_mean_of_its_steps_with_the_shortest_and_the_longest() -> None:
    rows = [
        {"step": step, **dict(zip(LENGTHS, (4.0 + step % 2, 3.0 - step % 2, 8.0 + step % 2), strict=True))}
        for step in range(1, 2 * MAX_POINTS + 1)
    ]
    chart = panels(rows)["Completion length"]
    assert chart is not None
    points = json.loads(chart.points)
    assert len(points["x"]) == MAX_POINTS and chart.latest == f"steps {2 * MAX_POINTS - 1:,}–{2 * MAX_POINTS:,}"
    assert [curve["text"][0] for curve in points["curves"]] == ["4.5", "2", "9"]
    assert numbers_in(how_to_read(len(rows), {}))[0] == "2"


def test_a_trend_does_not_bridge_a_gap() -> None:
    rows = [{"step": step, **({} if 20 <= step < 30 else {"objective/scores": 0.5})} for step in range(1, 61)]
    chart = panels(rows)["Reward"]
    assert chart is not None
    for kind, path in chart.shapes:
        assert path.count("M") == 2, f"{kind} has {path.count('M')} pieces"


def test_a_resumed_run_says_where() -> None:
    assert "step 2 (attempt 1)" in how_to_read(5, {2: "attempt 1"})
    assert how_to_read(5, {}) == ""


@pytest.mark.parametrize("has_interval", [True, False])
def test_evaluations_have_intervals_where_the_run_measured_them(has_interval: bool) -> None:
    rate = "eval/verifiable_correct_rate"
    ends = {f"{rate}_low": 0.2, f"{rate}_high": 0.4} if has_interval else {}
    (chart,) = draw_evaluations([{"step": 0, "eval/num_prompts": 10, rate: 0.3, **ends}], 4, {})
    assert texts(chart) == [["30.0% (20.0% to 40.0%)" if has_interval else "30.0%"]]
    assert bool(chart.note) is has_interval


def test_no_line_leads_to_an_evaluation_of_other_questions() -> None:
    rate = "eval/verifiable_correct_rate"
    rows = [{"step": step, "eval/num_prompts": 10, rate: step / 10} for step in range(5)]
    (whole,), (broken,) = draw_evaluations(rows, 4, {}), draw_evaluations(rows, 4, {}, [3])
    lines = [dict(chart.shapes)["line c0"] for chart in (whole, broken)]
    assert [line.count("M") for line in lines] == [1, 2], lines
    before, after = lines[1].split("M")[1:]
    assert (before.count("L"), after.count("L")) == (2, 1), lines
    assert dict(whole.shapes)["marks c0"] == dict(broken.shapes)["marks c0"]
    assert "step 3" in broken.note and not whole.note, broken.note


def test_an_evaluation_without_a_scored_answer_is_no_chart() -> None:
    assert draw_evaluations([{"step": 0, "eval/num_prompts": 10}], 0, {}) == []


def test_the_mean_reward_of_an_evaluation_is_a_chart_with_its_interval_and_parts() -> None:
    row = {"step": 0, "eval/num_prompts": 10, "eval/verifiable_correct_rate": 0.3, "eval/scores": 0.4}
    row |= {"eval/scores_low": 0.2, "eval/scores_high": 0.6, "eval/reward/verifiable": 0.4}
    row |= {"eval/verifier/gsm8k/reward": 0.3, "eval/verifier/brevity/reward": 0.5}
    correct, reward = draw_evaluations([row], 4, {})
    assert [entry.label for entry in correct.entries] == ["correct"]
    assert texts(reward) == [["0.4 (0.2 to 0.6)"], ["0.5"], ["0.3"]]
    assert [entry.label for entry in reward.entries] == ["mean", "brevity", "gsm8k"]


def test_the_parts_of_a_combined_reward_are_curves_beside_its_mean() -> None:
    alone = {"step": 1, "objective/scores": 0.5, "objective/gsm8k_reward": 0.5, "objective/gsm8k_correct_rate": 0.5}
    chart = panels([alone | {"objective/non_score_reward": 0.0, "reward/verifiable": 0.5}])["Reward"]
    assert chart is not None and [entry.label for entry in chart.entries] == ["mean"]
    chart = panels([alone | {"reward/verifiable": 0.6, "reward/overlong": -0.1}])["Reward"]
    assert chart is not None and [entry.label for entry in chart.entries] == ["mean", "gsm8k", "overlong"]
