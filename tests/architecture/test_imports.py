"""Forbidden imports do not happen, and light modules stay light."""

import json
import subprocess
import sys

from tests.support.repository import ROOT

HEAVY = ("torch", "vllm", "deepspeed", "transformers", "datasets", "reasoning_gym", "math_verify")
SLOW_FOR_HELP = ("grpc", "pydantic", "rich", "numpy", "google.protobuf", "opentelemetry", "psutil", *HEAVY)
HELP_MODULES = 300
"""Bound on the modules that `shoal --help` imports, the standard library's included: 240 when it was set."""


def _modules_after(statement: str) -> set[str]:
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


def test_help_imports_few_modules() -> None:
    found = _modules_after(
        "import io, sys; sys.stdout = io.StringIO(); sys.argv[1:] = ['--help']\n"
        "from services.coordinator.cli import main\n"
        "try:\n    main()\nexcept SystemExit as ended:\n    assert not ended.code\n"
        "assert 'train' in sys.stdout.getvalue(); sys.stdout = sys.__stdout__"
    )
    assert not sorted(found & set(SLOW_FOR_HELP))
    assert len(found) < HELP_MODULES, f"{len(found)} modules"
