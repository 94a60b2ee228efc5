"""The tables of docs/models.md have what the tests of the families show."""

import re

from services.generator.cpu_check import _REFUSED_KINDS as REFUSED_ON_CPU
from shoal.models.model_folder import _REFUSED_KINDS as REFUSED_KINDS
from tests.support.engine_families import BFLOAT16, NEW_IN_TRANSFORMERS_5, REFUSED, is_trained
from tests.support.pages import text_of
from tests.support.tiny_families import FAMILIES, READERS


def rows_below(heading: str) -> list[list[str]]:
    _, _, below = text_of("models.md").partition(f"## {heading}\n")
    table = re.findall(r"^\| (.*) \|$", below.partition("\n## ")[0], re.MULTILINE)
    return [row.split(" | ") for row in table[2:]]


def expected_row(family: str) -> list[str]:
    kind = (FAMILIES | READERS)[family]().model_type
    if not is_trained(family):
        return [f"`{kind}`", "refused", "refused", "-"]
    generator = "float32" if family in READERS else "float32, bfloat16"
    generator = "refused" if family in REFUSED else "bfloat16" if family in BFLOAT16 else generator
    programs = [] if family in NEW_IN_TRANSFORMERS_5 else ["transformers 4.57"]
    programs += ["transformers 5"] if family in REFUSED else ["transformers 5", "vLLM"]
    return [f"`{kind}`", "exact", generator, ", ".join(programs)]


def test_the_table_of_families_has_what_their_tests_show() -> None:
    found = [row[1:] for row in rows_below("Families")]
    expected = [expected_row(family) for family in [*FAMILIES, *READERS]]
    assert found == expected, "\n".join(f"| | {' | '.join(row)} |" for row in expected)


def test_every_refused_kind_is_listed_with_a_reason() -> None:
    rows = rows_below("Refused models")
    kinds = {kind for row in rows for kind in re.findall(r"`(\w+)`", row[0])}
    assert kinds == REFUSED_KINDS.keys() | REFUSED_ON_CPU.keys() | {"nemotron_h"}
    assert all(len(row[2]) > 20 for row in rows)


def test_the_page_counts_its_families() -> None:
    rows = rows_below("Families")
    trained, served = (sum(row[column] != "refused" for row in rows) for column in (2, 3))
    assert f"{len(rows)} families: {trained} train exactly, and {served} also sample" in text_of("models.md")
