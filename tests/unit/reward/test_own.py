"""Functions of somebody else inside the process that calls them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from services.reward.own import held
from services.reward.own.code import read_code
from services.reward.own.held import HeldVerifiers
from services.reward.own.loading import _number
from services.reward.pool_worker import judge_by_own
from services.reward.verdict import Broken


def holding(tmp_path: Path, text: str) -> HeldVerifiers:
    path = tmp_path / "score.py"
    path.write_text(text)
    own = HeldVerifiers()
    own.hold(read_code("mine", str(path), "score"))
    own.load("mine")
    return own


class Tensor:
    """As torch's, of one element or more."""

    def __init__(self, *values: float) -> None:
        self.values = values

    def item(self) -> float:
        (value,) = self.values
        return value


@pytest.mark.parametrize(
    ("returned", "value"),
    [(True, 1.0), (0, 0.0), (np.float32(0.5), 0.5), (np.bool_(True), 1.0), (np.array(0.25), 0.25), (Tensor(2.0), 2.0)],
)
def test_numbers_and_bools_of_any_library_are_rewards(returned: Any, value: float) -> None:
    assert _number(returned, "score") == value


@pytest.mark.parametrize("returned", ["1", 1j, [1.0], np.zeros(2), Tensor(1.0, 2.0), -np.inf, np.nan, {}, object()])
def test_anything_else_is_no_reward(returned: Any) -> None:
    with pytest.raises(
        Broken, match=rf"score returned .*\({type(returned).__name__}\); it must return a finite number"
    ):
        _number(returned, "score")


def test_a_process_that_a_function_has_filled_is_not_used_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = holding(tmp_path, "def score(completion): return 1\n")
    assert judge_by_own(own, "mine", {"completion": "x"})["spent"] == ""
    monkeypatch.setattr(held, "_MOST_BYTES", 1 << 20)
    answer = judge_by_own(own, "mine", {"completion": "x"})
    assert answer["outcome"] == "scored" and answer["spent"].endswith("MiB after mine"), answer


def test_a_file_hides_no_module_and_imports_its_neighbors(tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("raise RuntimeError('not this one')\n")
    (tmp_path / "neighbor_of_score.py").write_text("HALF = 0.5\n")
    text = (
        "from __future__ import annotations\nimport json\nfrom dataclasses import dataclass\n"
        "from neighbor_of_score import HALF\n@dataclass\nclass Pair:\n    value: float\n"
        "def score(completion): return Pair(HALF).value * json.loads(completion)\n"
    )
    answer = judge_by_own(holding(tmp_path, text), "mine", {"completion": "3"})
    assert answer["value"] == 1.5, answer


def test_another_version_starts_afresh(tmp_path: Path) -> None:
    own = holding(tmp_path, "calls = []\ndef score(completion):\n    calls.append(1)\n    return len(calls)\n")
    assert [judge_by_own(own, "mine", {"completion": ""})["value"] for _ in range(2)] == [1.0, 2.0]
    first = own.digest("mine")
    (tmp_path / "score.py").write_text("# another\ncalls = []\ndef score(completion): return len(calls)\n")
    own.hold(read_code("mine", str(tmp_path / "score.py"), "score"))
    assert not own.is_loaded("mine")
    own.load("mine")
    answer = judge_by_own(own, "mine", {"completion": ""})
    assert (answer["value"], answer["code"] != first) == (0.0, True), answer
