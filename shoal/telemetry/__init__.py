"""Telemetry of the services: traces, metrics, and logs over OpenTelemetry, and the table of a run's step metrics.

* OpenTelemetry: a process calls `setup` once. `trace` and `metrics` are used everywhere and cost next to nothing
  before that. `names` has every span, attribute, and metric (docs/telemetry.md).
* The metrics of train steps and evaluations in `metrics.jsonl`: `run_metric_table` and `learner_metric_table` describe
  them, in the types of `run_metrics` (docs/metrics.md).
"""
