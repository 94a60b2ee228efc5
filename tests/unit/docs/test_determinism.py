"""docs/determinism.md names the metrics that depend on the clock; comparisons of runs leave out no others."""

from shoal.telemetry.run_metric_table import TABLE
from tests.support.repository import ROOT
from tests.support.same_runs import TIMES_AND_RATES

PAGE = (ROOT / "docs" / "determinism.md").read_text()
SHARES_OF_TIME = {
    "time/effective_share",
    "waiting/learner",
    "waiting/generators",
    "waiting/rewards",
    "usage/generator_seats",
    "usage/kv_cache",
    "learner_mfu",
}


def test_metrics_that_are_not_compared_are_times_rates_and_shares_of_time() -> None:
    metrics = {metric.name: metric.unit for section in TABLE for metric in section.metrics}
    left_out = {name for name in metrics if TIMES_AND_RATES.fullmatch(name)}
    of_the_clock = {name for name, unit in metrics.items() if unit in ("s", "tokens/s")} | SHARES_OF_TIME
    assert left_out == of_the_clock, f"compared without reason, or left out: {left_out ^ of_the_clock}"
    for pattern in ("`time/*`", "`waiting/*`", "`usage/*`", "`*tokens_per_second*`", "`learner_mfu`"):
        assert pattern in PAGE, f"the page lacks {pattern}"
