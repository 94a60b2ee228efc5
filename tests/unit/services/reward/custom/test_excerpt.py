"""Tests of the part of a script that one of its functions needs."""

import pytest

from services.reward.custom.excerpt import excerpt

START = "trainer.train()\n"


def lines_of(source: str, function: str = "score") -> list[str]:
    return [line for line in excerpt(source, function, "train.py").splitlines() if line]


@pytest.mark.parametrize(
    "needed",
    [
        "import re as search\ndef score(): return search.findall\n",
        "LIMIT: int = 3\nLIMIT += 1\ndef score(limit=LIMIT): return limit\n",
        "TABLE = {}\nTABLE.update(a=1)\nTABLE['b'] = 2\ndef score(): return inner()\ndef inner(): return TABLE\n",
        "try:\n    import json5 as json\nexcept ImportError:\n    import json\ndef score(): return json\n",
        "if True:\n    def score(): return 1\nelse:\n    score = None\n",
        "from functools import cache\n@cache\ndef score(): return 1\n",
        "from math import *\ndef score(): return sqrt(4)\n",
        "import sys\nsys.path.append('.')\nfrom mine import helper\ndef score(): return [helper() for _ in '1']\n",
        "class Judge:\n    def __call__(self): return OTHER\nOTHER = 1\nscore = Judge()\nscore.limit = 2\n",
        "from functools import partial\ndef base(x): return x\nscore = partial(base, 1)\n",
        "COUNT = 0\ndef score():\n    global COUNT\n    COUNT += 1\n",
    ],
)
def test_a_function_keeps_what_it_needs_and_loses_the_rest(needed: str) -> None:
    source = f"import trl\n{START}{needed}{START}if __name__ == '__main__':\n    LIMIT = score = 1\n    main()\n"
    assert lines_of(source) == needed.splitlines()


def test_local_names_and_postponed_annotations_need_nothing() -> None:
    kept = [
        "from __future__ import annotations",
        "def score(model: Model):",
        "    dataset = model",
        "    return dataset",
    ]
    source = f"{kept[0]}\nfrom trl import Model\ndataset = Model.load()\n" + "\n".join(kept[1:]) + f"\n{START}"
    assert lines_of(source) == kept


def test_lines_keep_their_numbers() -> None:
    assert excerpt(f"{START}{START}def score(): return 1\n", "score", "train.py").splitlines()[2].startswith("def")


def test_a_function_that_is_missing_names_the_others() -> None:
    with pytest.raises(LookupError, match="first, second"):
        excerpt("def first(): pass\nasync def second(): pass\n", "score", "train.py")
