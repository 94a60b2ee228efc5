"""Tests of references between the settings of a file."""

from typing import Any

import pytest

from shoal.translate.sources.interpolation import References

_VALUES: dict[str, Any] = {
    "size": 8,
    "name": "run",
    "folder": "/out/${name}",
    "train": {"batch": "${size}", "paths": ["${folder}/a", "${folder}/b"]},
    "table": "${train}",
    "a": "${b}",
    "b": "${a}",
}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("${size}", 8),
        ("${train.batch}", 8),
        ("${name}-${size}", "run-8"),
        ("${train.paths}", ["/out/run/a", "/out/run/b"]),
        ("${table}", {"batch": 8, "paths": ["/out/run/a", "/out/run/b"]}),
        ("${oc.env:NO_SUCH_NAME,16}", 16),
        ("${oc.env:NO_SUCH_NAME, out/x}", "out/x"),
        ("${oc.env:NO_SUCH_NAME}", "${oc.env:NO_SUCH_NAME}"),
        ("${oc.select:name}", "run"),
        ("${oc.select:missing,false}", False),
        ("${oc.select:missing}", None),
        ("${missing}/${name}", "${missing}/run"),
        ("${deepspeed_zero3}", "${deepspeed_zero3}"),
        ("plain", "plain"),
        (None, None),
    ],
)
def test_a_reference_becomes_what_it_refers_to_and_an_unknown_one_stays(value: Any, expected: Any) -> None:
    assert References(_VALUES).resolved(value) == expected


def test_references_in_a_circle_stay_as_they_are() -> None:
    assert References(_VALUES).resolved("${a}") in ("${a}", "${b}")


def test_the_names_that_references_use_are_collected() -> None:
    references = References(_VALUES)
    references.resolved({"x": "${folder}", "y": ["${train.batch}"]})
    assert references.names == {"folder", "name", "train.batch", "size"}
