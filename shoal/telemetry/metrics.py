"""OpenTelemetry instruments, by the names of `shoal.telemetry.names`.

An instrument that is made before `setup` counts from the call of `setup` on, so modules may keep instruments as
constants.
"""

from functools import cache

from opentelemetry import metrics
from opentelemetry.metrics import Counter, Histogram
from opentelemetry.metrics import _Gauge as Gauge

from shoal.telemetry.names import Instrument, MetricName

_meter = metrics.get_meter("shoal")


@cache
def counter(name: MetricName) -> Counter:
    """Returns a counter: `counter(names.X).add(3, {names.RUN_ID: run_id})`."""
    _check(name, Instrument.COUNTER)
    return _meter.create_counter(name.name, name.unit, name.meaning)


@cache
def gauge(name: MetricName) -> Gauge:
    """Returns a gauge, which keeps the last value: `gauge(names.X).set(3)`."""
    _check(name, Instrument.GAUGE)
    return _meter.create_gauge(name.name, name.unit, name.meaning)


@cache
def histogram(name: MetricName) -> Histogram:
    """Returns a histogram: `histogram(names.X).record(0.3)`."""
    _check(name, Instrument.HISTOGRAM)
    return _meter.create_histogram(
        name.name, name.unit, name.meaning, explicit_bucket_boundaries_advisory=name.boundaries or None
    )


def _check(name: MetricName, instrument: Instrument) -> None:
    if name.instrument is not instrument:
        raise ValueError(f"{name.name} is declared as a {name.instrument}, not a {instrument}")
