"""Tests of custom verifiers inside a pool process."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from services.reward.common.verdict import Broken
from services.reward.custom import loading
from services.reward.custom.code import Code, Unusable
from services.reward.custom.custom_verifiers import read_code
from services.reward.custom.loading import LoadedVerifiers, _number, load
from services.reward.pool.worker import judge_custom
from shoal.config.tables.custom_verifiers import CustomVerifierConfig


def loaded(tmp_path: Path, text: str) -> LoadedVerifiers:
    path = tmp_path / "score.py"
    path.write_text(text)
    custom = LoadedVerifiers()
    custom.use(read_code("mine", CustomVerifierConfig(file=str(path))))
    custom.load("mine")
    return custom


class Tensor:
    """A tensor like torch's, of one element or more."""

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
def test_any_other_return_value_is_not_a_reward(returned: Any) -> None:
    with pytest.raises(Broken, match=rf"^score .*\({type(returned).__name__}\)"):
        _number(returned, "score")


def test_a_process_whose_memory_a_function_has_filled_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    custom = loaded(tmp_path, "def score(completion): return 1\n")
    assert judge_custom(custom, "mine", {"completion": "x"})["why_replace"] == ""
    monkeypatch.setattr(loading, "_MAX_RESIDENT_BYTES", 1 << 20)
    answer = judge_custom(custom, "mine", {"completion": "x"})
    assert answer["outcome"] == "scored" and answer["why_replace"].endswith(" mine"), answer


def test_a_file_shadows_no_module_and_imports_its_neighbors(tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("raise RuntimeError('not this one')\n")
    (tmp_path / "neighbor_of_score.py").write_text("HALF = 0.5\n")
    text = (
        "from __future__ import annotations\nimport json\nfrom dataclasses import dataclass\n"
        "from neighbor_of_score import HALF\n@dataclass\nclass Pair:\n    value: float\n"
        "def score(completion): return Pair(HALF).value * json.loads(completion)\n"
    )
    answer = judge_custom(loaded(tmp_path, text), "mine", {"completion": "3"})
    assert answer["value"] == 1.5, answer


def test_a_new_version_starts_without_the_state_of_the_old_one(tmp_path: Path) -> None:
    custom = loaded(tmp_path, "calls = []\ndef score(completion):\n    calls.append(1)\n    return len(calls)\n")
    assert [judge_custom(custom, "mine", {"completion": ""})["value"] for _ in range(2)] == [1.0, 2.0]
    first = custom.digest("mine")
    (tmp_path / "score.py").write_text("# another\ncalls = []\ndef score(completion): return len(calls)\n")
    custom.use(read_code("mine", CustomVerifierConfig(file=str(tmp_path / "score.py"))))
    assert not custom.is_loaded("mine")
    custom.load("mine")
    answer = judge_custom(custom, "mine", {"completion": ""})
    assert (answer["value"], answer["code"] != first) == (0.0, True), answer


def test_an_allowed_package_lends_no_function_that_it_only_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "ours_of_this_test"
    (package / "inner").mkdir(parents=True)
    (package / "inner" / "__init__.py").write_text("def score(completion): return 1\n")
    (package / "__init__.py").write_text(
        "import functools, os\nfrom os import system\nfrom ours_of_this_test.inner import score\n"
        "class Judge:\n    def __call__(self, completion): return 1\njudge = Judge()\n"
        "run = functools.partial(os.system)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))

    def why_not(function: str, *packages: str, module: str = "ours_of_this_test") -> str:
        try:
            load(Code("mine", function, module=module, defined_in=packages))
        except Unusable as error:
            return str(error)
        return ""

    assert [why_not(name, "ours_of_this_test") for name in ("score", "judge")] == ["", ""]
    assert "posix" in why_not("system", "ours_of_this_test")
    assert "functools" in why_not("run", "ours_of_this_test")
    assert "ours_of_this_test.inner defines" in why_not("score", "ours_of_this_test.other")
    assert not why_not("score", "ours_of_this_test.inner")
