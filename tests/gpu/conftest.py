"""Tests that need a GPU: `make test-gpu`. Without one each is skipped, and says so."""

import importlib.metadata
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.gpu)
            if not torch.cuda.is_available():
                item.add_marker(pytest.mark.skip("torch sees no GPU"))


def pytest_report_header() -> list[str]:
    """Names what the results are true of."""
    gpus = [torch.cuda.get_device_properties(number) for number in range(torch.cuda.device_count())]
    lines = [
        f"GPU {number}: {gpu.name}, {gpu.total_memory / 2**30:.0f} GiB, compute capability {gpu.major}.{gpu.minor}"
        for number, gpu in enumerate(gpus)
    ]
    versions = []
    for name in ("torch", "deepspeed", "vllm", "liger-kernel", "transformers"):
        try:
            versions.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            versions.append(f"no {name}")
    return [*(lines or ["no GPU"]), f"CUDA {torch.version.cuda}; {', '.join(versions)}"]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Lists the claims by outcome: the names of tests are sentences."""
    for outcome, title in (("passed", "holds here"), ("failed", "does not hold here"), ("skipped", "was not tried")):
        reports = [report for report in terminalreporter.getreports(outcome) if "tests/gpu" in report.nodeid]
        if reports:
            terminalreporter.section(title)
        for report in reports:
            claim = report.nodeid.partition("::test_")[2].replace("_", " ")
            reason = f" ({report.longrepr[2]})" if isinstance(report.longrepr, tuple) else ""
            terminalreporter.line(f"{claim}{reason}")
