"""Fixtures of every test."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from shoal.telemetry import trace

TESTS = Path(__file__).parent
IMPORT_VLLM = (
    "tests/integration/test_completion_parts.py",
    "tests/integration/test_tool_parsers.py",
    "tests/integration/test_weight_transfer.py",
    "tests/unit/services/generator/test_deterministic_engine.py",
    "tests/unit/services/generator/test_vllm_engine.py",
)
"""Files whose process imports vLLM, which takes five seconds of a core."""

# Before torch is imported. Where tests share the cores, threads that spin while they wait for each other cost three
# times the work; the services set it for themselves.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Spreads the files of tests/integration, which compute, evenly among those of tests/contract, which mostly wait.

    `make test` runs three files at a time: where one waits, for a process or a deadline, two keep both cores busy.
    """
    place: dict[Path, float] = {}
    for folder, first in (("integration", 0.0), ("contract", 0.5)):
        files = list(dict.fromkeys(item.path for item in items if item.path.is_relative_to(TESTS / folder)))
        place.update({file: (first + number) / len(files) for number, file in enumerate(files)})
    items.sort(key=lambda item: place.get(item.path, 1.0))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Lets one process run all files of IMPORT_VLLM."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file: str = super()._split_scope(nodeid)
            return IMPORT_VLLM[0] if file in IMPORT_VLLM else file

    return Scheduling(config, log)


@pytest.fixture(autouse=True, scope="module")
def restored_environment() -> Iterator[None]:
    """Restores the environment after each module.

    A learner in the test's process writes RANK and WORLD_SIZE, as torch requires; a learner that a later test starts
    would take them for torchrun's.
    """
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "TRACER", provider.get_tracer("test"))
    return exporter
