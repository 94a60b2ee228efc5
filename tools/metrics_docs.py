"""Writes docs/metrics.md from the table of metrics in shoal/telemetry/run_metric_table.py.

python tools/metrics_docs.py            rewrites the page
python tools/metrics_docs.py --check    says whether it is current, and changes nothing
"""

import argparse
from pathlib import Path

from shoal.telemetry import learner_metric_table
from shoal.telemetry.run_metric_table import TABLE
from shoal.telemetry.run_metrics import MetricSection, RunMetric

PAGE = Path(__file__).resolve().parent.parent / "docs" / "metrics.md"

HEADER = """\
# Metrics of a run

<!-- Written by tools/metrics_docs.py from shoal/telemetry/run_metric_table.py; change the table there. -->

Each line of `metrics.jsonl` is one train step, or one evaluation: `step`, and the metrics below. `WatchRun` sends the
same as the attribute `metrics` of its `step` and `evaluation` events, `shoal run status` shows those of the last step,
and `[tracking]` sends them to TensorBoard and Weights & Biases under the same names. Names that users of open-instruct
know mean here what they mean there. OpenTelemetry's metrics are another thing: [telemetry.md](telemetry.md).

A part in angle brackets stands for names of the run's own. What was not measured is absent, and so is a figure that is
not finite; else a metric is in every line of its kind unless its meaning ends with a condition.
"""


def page() -> str:
    """The whole page."""
    return "\n".join([HEADER, *(_section(section) for section in TABLE), _formulas()])


def _section(section: MetricSection) -> str:
    lines = [f"## {section.title}", ""]
    if section.words:
        lines += [section.words, ""]
    lines += ["| name | unit | meaning | formula |", "| --- | --- | --- | --- |"]
    lines += [_row(metric) for metric in section.metrics]
    return "\n".join(lines) + "\n"


def _row(metric: RunMetric) -> str:
    meaning = f"{metric.meaning} ({metric.presence.words})" if metric.presence.words else metric.meaning
    return f"| `{metric.name}` | {metric.unit} | {meaning} | {metric.formula} |"


def _formulas() -> str:
    """What the letters of the learner's formulas are: the second paragraph of its table's docstring."""
    text = (learner_metric_table.__doc__ or "").split("\n\n", 1)[1]
    return "## The learner's formulas\n\n" + text.strip() + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare the page with the code, write nothing")
    if not parser.parse_args().check:
        PAGE.write_text(page())
    elif not PAGE.exists() or PAGE.read_text() != page():
        raise SystemExit("docs/metrics.md is not what shoal/telemetry/run_metric_table.py says; run: make docs")


if __name__ == "__main__":
    main()
