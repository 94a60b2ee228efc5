import pytest

from shoal.telemetry import metrics
from shoal.telemetry.names import LOOP_LAG, Instrument, MetricName


def test_an_instrument_is_created_once():
    assert metrics.histogram(LOOP_LAG) is metrics.histogram(LOOP_LAG)


def test_a_metric_is_used_as_the_kind_that_it_is_declared_as():
    for kind, make in (
        (Instrument.COUNTER, metrics.counter),
        (Instrument.GAUGE, metrics.gauge),
        (Instrument.HISTOGRAM, metrics.histogram),
    ):
        make(MetricName(f"test.{kind}", kind, "1", "A test."))
        for other in set(Instrument) - {kind}:
            with pytest.raises(ValueError, match=f"declared as a {other}, not a {kind}"):
                make(MetricName(f"test.{other}.as.{kind}", other, "1", "A test."))
