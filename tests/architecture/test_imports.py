"""Forbidden imports do not happen, and light modules stay light."""

import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.repository import ROOT

HEAVY = ("torch", "vllm", "deepspeed", "transformers", "datasets", "reasoning_gym", "math_verify")
SLOW_FOR_HELP = ("grpc", "pydantic", "rich", "numpy", "google.protobuf", "opentelemetry", "psutil", *HEAVY)
HELP_BOUND_S = 0.3


def _modules_after(statement: str) -> set[str]:
    """What is imported after a statement in a new interpreter."""
    code = f"{statement}\nimport json, sys; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout))


@pytest.mark.parametrize(
    "statement",
    [
        "import shoal, services.coordinator.cli",
        "import services.coordinator.cli.train_session, services.coordinator.cli.config_check",
        "import services.coordinator.service, services.coordinator.run.preflight",
        "import shoal.config, shoal.data, shoal.rpc.server, shoal.telemetry.setup, shoal.weights.manifest",
        "import shoal.models.reward_model, services.reward.service, services.reward.offline",
    ],
)
def test_coordinator_command_line_and_library_import_nothing_heavy(statement: str) -> None:
    assert not sorted(_modules_after(statement) & set(HEAVY))


def test_the_command_line_imports_next_to_nothing_before_it_knows_the_command() -> None:
    assert not sorted(_modules_after("import services.coordinator.cli") & set(SLOW_FOR_HELP))


def test_help_costs_next_to_no_work() -> None:
    """By processor time, which other processes do not lengthen as they do the wait."""
    code = "import sys; from services.coordinator.cli import main; sys.argv[1:] = ['--help']; main()"
    times_s = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times_s.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        assert done.returncode == 0 and "train" in done.stdout, done.stderr
    assert min(times_s) < HELP_BOUND_S, f"--help took {sorted(times_s)} s of processor time"


def test_the_import_contracts_hold() -> None:
    done = subprocess.run(
        [str(Path(sys.executable).parent / "lint-imports"), "--no-cache"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:]
