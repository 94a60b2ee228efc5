from services.coordinator.reporting.page import paths
from services.coordinator.reporting.page.axes import Scale

X = [10.0, 20.0, 30.0, 40.0]
Y = Scale(0, 1, 100, 0)


def test_a_line_has_gaps_where_nothing_was_measured() -> None:
    assert paths.line(X, [0, 1, None, 0.5], Y) == "M10 100L20 0M36 50L44 50", "a lone value is a short dash"
    assert paths.line(X, [None] * 4, Y) == ""


def test_an_area_is_drawn_where_both_of_its_edges_are_known() -> None:
    assert paths.area(X, [0, 0, 0, None], [1, 1, None, 1], Y) == "M10 0L20 0L20 100L10 100Z"


def test_marks_and_bars_leave_out_what_is_unknown() -> None:
    assert paths.marks(X, [0, None, 1, None], Y) == "M10 100h0M30 0h0"
    assert paths.bars(X, [None, (0.25, 0.75), None, None], Y) == "M16 25h8m-4 0V75m-4 0h8"
