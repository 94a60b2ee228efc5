"""The record of a run has one writer: its own methods."""

import ast
from dataclasses import fields

from services.coordinator.store.run_record import RunRecord
from tests.architecture.test_limits import modules

WRITER = "services/coordinator/store/run_record.py"
OTHER_RECORDS = "services/coordinator/workers/"
"""Where workers have records."""


def test_only_its_own_methods_change_the_record_of_a_run() -> None:
    names = {field.name for field in fields(RunRecord)}
    writers = [
        f"{path}:{node.lineno}"
        for path, tree in modules().items()
        if path.startswith("services/coordinator/") and not path.startswith((WRITER, OTHER_RECORDS))
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and node.attr in names
        if ast.unparse(node.value).endswith("record")
    ]
    assert not writers, f"call a method of RunRecord: {writers}"
