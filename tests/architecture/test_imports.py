"""Forbidden imports do not happen, and light modules stay light."""

import json
import resource
import subprocess
import sys

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


def test_coordinator_command_line_and_library_import_nothing_heavy() -> None:
    statement = (
        "import shoal, services.coordinator.cli\n"
        "import services.coordinator.cli.train_session, services.coordinator.cli.config_check\n"
        "import services.coordinator.service, services.coordinator.run.checks.preflight\n"
        "import shoal.config.load, shoal.data, shoal.rpc.server, shoal.telemetry.setup, shoal.weights.manifest\n"
        "import shoal.models.reward_model, services.reward.service, services.reward.offline"
    )
    assert not sorted(_modules_after(statement) & set(HEAVY))


def test_a_process_of_the_verifier_pool_which_starts_often_imports_little_before_its_first_job() -> None:
    found = _modules_after("import services.reward.pool.worker")
    assert not sorted(found & {"numpy", "google.protobuf", "grpc", "shoal.config.run", *HEAVY})


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
