import json

import pytest

from services.coordinator.reporting.page.axes import SECONDS, SHARE, STEPS, Scale
from services.coordinator.reporting.page.chart import (
    BOTTOM,
    MAX_MARKS,
    TOP,
    Curve,
    Steps,
    Style,
    area_path,
    bars_path,
    draw,
    line_path,
    marks_path,
)
from tests.support.wordings import numbers_in


def steps(count: int, resumed: tuple[int, ...] = ()) -> Steps:
    numbers = range(1, count + 1)
    return Steps(numbers, [f"step {number}" for number in numbers], count, resumed)


def test_nothing_measured_is_no_chart() -> None:
    assert draw("t", SHARE, "", steps(2), [Curve("a", [None, None])]) is None
    assert draw("t", SHARE, "", steps(0), [Curve("a", [])]) is None


def test_layers_stand_on_each_other_and_a_line_stands_alone() -> None:
    layers = [Curve(name, [2.0, 3.0], Style.LAYER) for name in ("wait", "train")]
    chart = draw("t", SECONDS, "", steps(2), [*layers, Curve("all", [5.0, 10.0])])
    assert chart is not None
    wait, train, whole = json.loads(chart.points)["curves"]
    assert whole["y"] == [(TOP + BOTTOM) / 2, TOP], "10 is the top of the axis"
    assert wait["y"][0] - train["y"][0] == pytest.approx(BOTTOM - wait["y"][0]), (
        "the second layer is as thick as the first"
    )
    assert train["text"] == ["2.00", "3.00"], "the text is the layer's own value"


def test_values_texts_and_names_have_one_entry_for_each_point() -> None:
    chart = draw("t", SHARE, "", steps(3), [Curve("rate", [0.5, None, 0.25], intervals=[(0.4, 0.6), None, None])])
    assert chart is not None
    points = json.loads(chart.points)
    assert points["names"] == ["step 1", "step 2", "step 3"]
    assert points["curves"][0]["text"] == ["50.0% (40.0% to 60.0%)", "–", "25.0%"]
    assert points["curves"][0]["y"][1] is None
    assert numbers_in(chart.description) == ["50.0%", "40.0%", "60.0%", "1", "25.0%", "3"]
    assert (chart.latest, chart.entries[0].latest) == ("step 3", "25.0%")


def test_the_axes_have_0_whole_steps_and_room_for_the_largest_value() -> None:
    chart = draw("t", STEPS, "", steps(12), [Curve("age", [1.0] * 12)])
    assert chart is not None
    assert [row.text for row in chart.rows] == ["0", "1"], "staleness is a number of steps"
    assert [column.text for column in chart.columns] == ["0", "3", "6", "9", "12"]
    above = draw("t", SHARE, "", steps(1), [Curve("a", [1.3])], top=1.0)
    assert above is not None and above.rows[-1].position == TOP and above.rows[-1].text == "150%"


def test_a_run_whose_values_are_all_0_has_a_chart() -> None:
    chart = draw("t", SECONDS, "", steps(1), [Curve("a", [0.0])])
    assert chart is not None and chart.rows[0].text == "0"


def test_many_points_have_a_trend_and_no_marks() -> None:
    count = MAX_MARKS + 1
    chart = draw("t", SHARE, "", steps(count, (4,)), [Curve("a", [0.5] * count, trend=[0.5] * count)])
    assert chart is not None
    assert [kind for kind, _ in chart.shapes] == ["line c0 faint", "line c0"]
    assert len(chart.resumed) == 1


X = [10.0, 20.0, 30.0, 40.0]
Y = Scale(0, 1, 100, 0)


def test_a_line_has_gaps_where_nothing_was_measured() -> None:
    assert line_path(X, [0, 1, None, 0.5], Y) == "M10 100L20 0M36 50L44 50", "a lone value is a short dash"
    assert line_path(X, [None] * 4, Y) == ""


def test_an_area_is_drawn_where_both_of_its_edges_are_known() -> None:
    assert area_path(X, [0, 0, 0, None], [1, 1, None, 1], Y) == "M10 0L20 0L20 100L10 100Z"


def test_marks_and_bars_leave_out_what_is_unknown() -> None:
    assert marks_path(X, [0, None, 1, None], Y) == "M10 100h0M30 0h0"
    assert bars_path(X, [None, (0.25, 0.75), None, None], Y) == "M16 25h8m-4 0V75m-4 0h8"
