import pytest
from opentelemetry import trace as opentelemetry

from shoal.telemetry import names, trace


def test_a_traceparent_continues_the_trace(exported):
    with trace.span(names.GROUP_ISSUE, parent="", group_id="g7") as issue:
        traceparent, trace_id = trace.traceparent_of(issue), trace.trace_id_of(issue)
    with trace.span(names.GROUP_SAMPLE, parent=traceparent):
        pass
    first, second = exported.get_finished_spans()
    assert traceparent.startswith(f"00-{trace_id}-{first.context.span_id:016x}-")
    assert second.parent.span_id == first.context.span_id
    assert second.context.trace_id == first.context.trace_id == int(trace_id, 16)
    assert dict(first.attributes) == {names.GROUP_ID: "g7"}


def test_spans_nest_unless_another_parent_is_named(exported):
    with trace.span(names.TRAIN_STEP) as outer, trace.span(names.GROUP_SCORE), trace.span(names.GROUP_ISSUE, parent=""):
        pass
    root, nested, _ = exported.get_finished_spans()
    assert root.parent is None
    assert nested.parent.span_id == outer.get_span_context().span_id


@pytest.mark.parametrize("traceparent", ["", "nonsense", "00-00000000000000000000000000000000-0000000000000000-00"])
def test_an_invalid_traceparent_starts_a_new_trace(exported, traceparent):
    with trace.span(names.GROUP_SAMPLE, parent=traceparent):
        pass
    (span,) = exported.get_finished_spans()
    assert span.parent is None


def test_an_exception_marks_the_span_and_propagates(exported):
    with pytest.raises(LookupError), trace.span(names.GROUP_SCORE):
        raise LookupError("gone")
    (span,) = exported.get_finished_spans()
    assert span.status.status_code is opentelemetry.StatusCode.ERROR


def test_a_past_span_has_the_duration_of_the_work(exported):
    with trace.span(names.GROUP_ISSUE, parent="") as issue:
        traceparent = trace.traceparent_of(issue)
    step = trace.past_span(names.TRAIN_STEP, parent=traceparent, duration_s=2.5, group_id="g7")
    root, span = exported.get_finished_spans()
    assert span.parent.span_id == root.context.span_id
    assert span.end_time - span.start_time == 2_500_000_000
    assert dict(span.attributes) == {names.GROUP_ID: "g7"}
    assert step.split("-")[2] == f"{span.context.span_id:016x}"
