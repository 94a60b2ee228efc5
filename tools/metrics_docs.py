"""Generates docs/metrics.md from the table of metrics in shoal/telemetry/run_metric_table.py.

python tools/metrics_docs.py            rewrites the page
python tools/metrics_docs.py --check    checks whether it is current, without writing
"""

import argparse
import textwrap
from pathlib import Path

from shoal.telemetry import learner_metric_table
from shoal.telemetry.run_metric_table import TABLE
from shoal.telemetry.run_metrics import MetricSection, RunMetric

PAGE = Path(__file__).resolve().parent.parent / "docs" / "metrics.md"

HEADER = """\
# Metrics of a run

<!-- Written by tools/metrics_docs.py from shoal/telemetry/run_metric_table.py; change the table there. -->

Each line of `metrics.jsonl` is one train step or one evaluation: `step`, and the metrics below. `WatchRun` sends the
same values in the attribute `metrics` of its `step` and `evaluation` events, `shoal run status` shows the values of the
last step, and `[tracking]` sends the metrics to TensorBoard, Weights & Biases and trackio under the same names. Names
known from open-instruct have the same meaning as in open-instruct. OpenTelemetry's metrics are separate:
[telemetry.md](telemetry.md).

A part in angle brackets stands for a name from the run. A metric that was not measured, or is not finite, is absent. A
metric whose meaning ends with a condition appears only under that condition. Every other metric is in each line of its
kind.
"""


def page() -> str:
    """Returns the text of docs/metrics.md."""
    return "\n".join([HEADER, *(_section(section) for section in TABLE), _formulas()])


def _section(section: MetricSection) -> str:
    lines = [f"## {section.title}", ""]
    if section.introduction:
        lines += [textwrap.fill(section.introduction, 120), ""]
    lines += ["| name | unit | meaning | formula |", "| --- | --- | --- | --- |"]
    lines += [_row(metric) for metric in section.metrics]
    return "\n".join(lines) + "\n"


def _row(metric: RunMetric) -> str:
    meaning = f"{metric.meaning} ({metric.presence.condition})" if metric.presence.condition else metric.meaning
    return f"| `{metric.name}` | {metric.unit} | {meaning} | {metric.formula} |"


def _formulas() -> str:
    """Returns the legend of the learner's formulas: the second paragraph of its table's docstring."""
    text = (learner_metric_table.__doc__ or "").split("\n\n", 1)[1]
    return "## The learner's formulas\n\n" + text.strip() + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare the page with the code, write nothing")
    if not parser.parse_args().check:
        PAGE.write_text(page())
    elif not PAGE.exists() or PAGE.read_text() != page():
        raise SystemExit("docs/metrics.md differs from shoal/telemetry/run_metric_table.py; run: make docs")


if __name__ == "__main__":
    main()
