"""Golden vectors: values of other systems, which our functions must reproduce.

The vectors stand beside the checkout, in `shared/golden` (its README says what each variant computes), or where the
environment variable SHOAL_GOLDEN points. Tests that need them are skipped, with the reason, where they are not.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.support.repository import ROOT


@dataclass(frozen=True)
class GoldenCase:
    name: str
    variant: str
    config: Mapping[str, Any]
    inputs: Mapping[str, Any]
    expected: Mapping[str, Any]
    tolerance: float

    def check(self, key: str, got: Any) -> None:
        """Fails, with the numbers, when `got` is not `expected[key]`, element by element.

        Passes where |got - want| <= tolerance x max(1, |want|). A null means no value: NaN.
        """
        want, found = as_array(self.expected[key]), np.asarray(got, dtype=np.float64)
        assert found.shape == want.shape, f"{self.name}: {key} has shape {found.shape}, wanted {want.shape}"
        off = np.abs(found - want) - self.tolerance * np.maximum(1.0, np.abs(want))
        wrong = ~((off <= 0) | (np.isnan(found) & np.isnan(want)))
        if wrong.any():
            at = tuple(int(index) for index in np.argwhere(wrong)[0])
            raise AssertionError(
                f"{self.name}: {key} differs in {int(wrong.sum())} of {wrong.size} places, first at {at}: "
                f"got {found[at]!r}, wanted {want[at]!r} within {self.tolerance:g}"
            )


def as_array(values: Any) -> npt.NDArray[np.float64]:
    """Converts nested lists to float64; null becomes NaN."""
    return np.array(values, dtype=np.float64)


def golden_folder() -> Path | None:
    given = os.environ.get("SHOAL_GOLDEN")
    if given:
        return Path(given)
    folders = (parent / "shared" / "golden" for parent in ROOT.parents)
    return next((folder for folder in folders if folder.is_dir()), None)


def document(pattern: str) -> str:
    """Returns the text of a document beside the folder of the vectors; skips the test where there is none."""
    folder = golden_folder()
    found = sorted(folder.parent.glob(pattern)) if folder is not None else []
    if not found:
        pytest.skip(f"no document {pattern} stands beside the golden vectors")
    return found[0].read_text(encoding="utf-8")


@cache
def _read(category: str) -> tuple[GoldenCase, ...]:
    folder = golden_folder()
    if folder is None or not (folder / f"{category}.json").is_file():
        return ()
    document = json.loads((folder / f"{category}.json").read_text())
    assert document["schema"] == "golden/1", f"{category}.json: unknown schema {document['schema']!r}"
    return tuple(
        GoldenCase(
            name=case["name"],
            variant=case["variant"],
            config=case.get("config", {}),
            inputs=case["inputs"],
            expected=case["expected"],
            tolerance=float(case["tolerance"]),
        )
        for case in document["cases"]
    )


def golden_cases(category: str, *, only: tuple[str, ...] = ("",), but: tuple[str, ...] = ()) -> Any:
    """Marks a test to run once for each case of `category`.json, as its argument `case`.

    `only` takes and `but` leaves out variants by the beginning of their names. Without the folder the test is skipped
    once.
    """
    cases = [
        case
        for case in _read(category)
        if case.variant.startswith(only) and not case.variant.startswith(but or ("\0",))
    ]
    if not cases:
        reason = f"no {category}.json: set SHOAL_GOLDEN, or put shared/golden beside the checkout"
        return pytest.mark.parametrize("case", [pytest.param(None, marks=pytest.mark.skip(reason=reason))])
    return pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in cases])
