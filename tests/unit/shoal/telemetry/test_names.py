import re
from pathlib import Path

from shoal.telemetry import names

ROOT = Path(__file__).parents[4]


def test_the_page_is_the_one_that_the_names_make():
    page = (ROOT / "docs" / "telemetry.md").read_text()
    assert page == names.as_markdown(), "run `python -m shoal.telemetry.names > docs/telemetry.md`"


def test_every_name_that_is_declared_goes_out():
    source = "\n".join(
        path.read_text()
        for folder in ("shoal", "services")
        for path in (ROOT / folder).rglob("*.py")
        if path.name != "names.py" and "v1" not in path.parts
    )
    unused = [
        constant
        for constant, value in vars(names).items()
        if isinstance(value, names.SpanName | names.MetricName) and not re.search(rf"names\.{constant}\b", source)
    ]
    assert not unused, f"declared and documented, but never sent: {unused}"


def test_names_are_told_apart():
    declared = [
        value.name if isinstance(value, names.MetricName) else str(value)
        for value in vars(names).values()
        if isinstance(value, names.SpanName | names.AttributeName | names.MetricName)
    ]
    assert len(declared) == len(set(declared))


def test_boundaries_rise():
    for value in vars(names).values():
        if isinstance(value, names.MetricName):
            assert list(value.boundaries) == sorted(set(value.boundaries)), value.name
