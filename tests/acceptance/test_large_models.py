"""A model of half a billion parameters at ZeRO 3: a rank loads its shards alone, and scores as the whole model does."""

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.support.processes import ONE_THREAD
from tests.support.repository import ROOT

pytestmark = pytest.mark.timeout(1800)

BENCHMARK = ROOT / "benchmarks" / "learner_memory.py"


@pytest.fixture(scope="module", params=[2, 4])
def measured(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Sizes and peaks of ranks with a tiny and with a large model, in bytes."""
    folder = tmp_path_factory.mktemp("large")
    output = folder / "memory.json"
    options = ["--num-ranks", str(request.param), "--until", "score", "--folder", str(folder), "--json", str(output)]
    subprocess.run([sys.executable, str(BENCHMARK), *options], env=ONE_THREAD, check=True, timeout=1700)
    return json.loads(output.read_text())


def test_no_rank_holds_more_than_its_shard_and_the_largest_module_while_it_loads(measured: dict[str, Any]) -> None:
    large, small = measured["large"], measured["small"]
    shard = large["float32_bytes"] / measured["num_ranks"]
    bound = 1.1 * (shard + large["largest_bytes"] + max(small["peaks"]["load"]))
    peaks = large["peaks"]["load"]
    assert max(peaks) <= bound, f"ranks of {measured['num_ranks']} held {peaks} bytes; bound {bound:.0f}"


def test_sharded_ranks_compute_the_log_probabilities_of_the_whole_model(measured: dict[str, Any]) -> None:
    error = measured["large"]["logprob_error"]
    assert error <= 1e-4, f"log-probabilities differ by {error:.1e}"
