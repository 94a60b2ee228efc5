import ast

import pytest

from shoal.telemetry import names
from tests.support.repository import ROOT


def test_the_page_is_current():
    page = (ROOT / "docs" / "telemetry.md").read_text()
    assert page == names.as_markdown(), "run `python -m shoal.telemetry.names > docs/telemetry.md`"


NOT_SENT = (None, "parent", "duration_s", "ended_s_ago")
"""Keywords of spans that are no attributes."""


@pytest.fixture(scope="module")
def sent():
    """The names that the code sends: constants as "names.X", attributes of spans by their names."""
    found = set()
    for folder in ("shoal", "services"):
        for path in (ROOT / folder).rglob("*.py"):
            if path.name != "names.py" and "v1" not in path.parts:
                found.update(_sent_by(ast.parse(path.read_text())))
    return found


def _sent_by(tree):
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="names"), attr=constant):
                yield f"names.{constant}"
            case ast.Call(func=ast.Attribute(attr="span" | "past_span"), keywords=keywords):
                yield from (f"shoal.{word.arg}" for word in keywords if word.arg not in NOT_SENT)
            case ast.Call(func=ast.Attribute(attr="set_attribute"), args=[ast.Constant(value=str(attribute)), *_]):
                yield attribute


def test_every_attribute_that_the_code_sends_is_declared(sent):
    declared = {str(value) for value in vars(names).values() if isinstance(value, names.AttributeName)}
    undeclared = {name for name in sent if not name.startswith("names.")} - declared
    assert not undeclared, f"add to shoal/telemetry/names.py: {undeclared}"


def test_every_declared_name_is_sent(sent):
    declared = {
        f"names.{constant}": str(value)
        for constant, value in vars(names).items()
        if isinstance(value, names.SpanName | names.AttributeName | names.MetricName)
    }
    unused = [constant for constant, name in declared.items() if not {constant, name} & sent]
    assert not unused, f"declared and documented, but never sent: {unused}"


def test_names_are_unique():
    declared = [
        value.name if isinstance(value, names.MetricName) else str(value)
        for value in vars(names).values()
        if isinstance(value, names.SpanName | names.AttributeName | names.MetricName)
    ]
    assert len(declared) == len(set(declared))
