"""The enum contains every error reason, and every member is used."""

import re

from shoal.error_reasons import ErrorReason
from tests.support.repository import ROOT

SOURCES = {
    path: path.read_text()
    for folder in ("services", "shoal")
    for path in (ROOT / folder).rglob("*.py")
    if "v1" not in path.parts and path.name != "error_reasons.py"
}


def test_no_reason_is_a_literal() -> None:
    literals = {
        f"{path.relative_to(ROOT)}: {found}"
        for path, text in SOURCES.items()
        for found in re.findall(r'\breason ?(?:==|!=|=) ?"[A-Z_]+"', text)
    }
    assert not literals, sorted(literals)


def test_every_reason_is_used() -> None:
    used = {name for text in SOURCES.values() for name in re.findall(r"ErrorReason\.([A-Z_]+)", text)}
    assert set(ErrorReason.__members__) == used, sorted(set(ErrorReason.__members__) ^ used)


def test_every_reason_keeps_its_name_on_the_wire() -> None:
    assert not [member for member in ErrorReason if member.name != member.value]
