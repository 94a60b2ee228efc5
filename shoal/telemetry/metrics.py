"""OpenTelemetry instruments, by the names of `shoal.telemetry.names`.

An instrument that is made before `setup` counts from `setup` on, so modules may keep instruments as constants.
"""

from collections.abc import Callable
from functools import cache
from typing import TypeVar

from opentelemetry import metrics
from opentelemetry.metrics import Counter, Histogram
from opentelemetry.metrics import _Gauge as Gauge

from shoal.telemetry.names import CounterName, GaugeName, HistogramName

_SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
"""Upper bounds of the buckets of every histogram."""

_meter = metrics.get_meter("shoal")
_NameT = TypeVar("_NameT", CounterName, GaugeName, HistogramName)
_InstrumentT = TypeVar("_InstrumentT")


def _once(make: Callable[[_NameT], _InstrumentT]) -> Callable[[_NameT], _InstrumentT]:
    """Makes each instrument once.

    Unlike `cache` alone, this function keeps the types, so that mypy checks the kind of a name.
    """
    return cache(make)


@_once
def counter(name: CounterName) -> Counter:
    """Returns a counter: `counter(names.X).add(3, {names.RUN_ID: run_id})`."""
    return _meter.create_counter(name.name, name.unit, name.meaning)


@_once
def gauge(name: GaugeName) -> Gauge:
    """Returns a gauge, which keeps the last value: `gauge(names.X).set(3)`."""
    return _meter.create_gauge(name.name, name.unit, name.meaning)


@_once
def histogram(name: HistogramName) -> Histogram:
    """Returns a histogram: `histogram(names.X).record(0.3)`."""
    return _meter.create_histogram(name.name, name.unit, name.meaning, explicit_bucket_boundaries_advisory=_SECONDS)
