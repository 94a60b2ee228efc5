from shoal.telemetry import metrics
from shoal.telemetry.names import LOOP_LAG


def test_an_instrument_is_created_once():
    assert metrics.histogram(LOOP_LAG) is metrics.histogram(LOOP_LAG)
