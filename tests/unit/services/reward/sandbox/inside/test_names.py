"""Tests of where the names of a test come from, in a real sandbox."""

import pytest

from services.reward.sandbox.inside.names import _HOME
from tests.support.repository import ROOT
from tests.unit.services.reward.sandbox.runs import passed

pytestmark = pytest.mark.usefixtures("sandbox")


@pytest.mark.parametrize(
    ("program", "test"),
    [
        ("from operator import truth as set", "assert set(f()) == set([3])"),
        ("from operator import not_ as abs", "assert abs(f() - 3) < 1e-6"),
        ("from math import hypot as isclose", "assert isclose(f(), 3)"),
        ("from unittest.mock import MagicMock as isclose", "assert isclose(f(), 3)"),
        ("from typing import Hashable as str", "assert isinstance(f(), str)"),
        ("from operator import eq as gcd", "assert gcd(f(), 6) == gcd(12, 6)"),
        ("from operator import ne as product", "assert product(f(), 3)"),
        ("import operator\nisclose = operator.ne", "assert isclose(f(), 3)"),
        ("globals()['abs'] = lambda x: 0", "assert abs(f() - 3) < 1e-6"),
        ("round = lambda *a: 3", "assert round(f()) == 3"),
        ("class statistics:\n    mean = lambda xs: 3", "assert statistics.mean([f()]) == 3"),
        ("import statistics\nstatistics.mean = lambda xs: 3", "assert statistics.mean([f()]) == 3"),
        ("import operator as math\nmath.isclose = math.ne", "assert math.isclose(f(), 3)"),
        ("def reduce(*a): return 3\nclass operator:\n    mul = 0", "assert reduce(operator.mul, [f()]) == 3"),
        ("def deepcopy(x): return [9]", "assert [f()] == deepcopy([3])"),
        ("def namedtuple(*a): return lambda *a: 9", "assert f() == namedtuple('P', 'x')(3)"),
        ("class os:\n    class path:\n        basename = lambda p: '9'", "assert str(f()) == os.path.basename('a/3')"),
        ("def raises(x): return open('/dev/null')", "with raises(ValueError):\n    f()"),
    ],
)
@pytest.mark.parametrize("tested", ["def f(): return 9", "from random import getrandbits\nf = lambda: 9"])
def test_a_program_gains_nothing_by_binding_what_tests_compare_with(program: str, test: str, tested: str) -> None:
    assert passed(f"{program}\n{tested}", test) == [False]


@pytest.mark.parametrize("module", ["operator", "statistics", "math", "functools", "cmath"])
def test_a_star_import_replaces_no_builtin(module: str) -> None:
    assert passed(f"from {module} import *\ndef f(): return 9", "assert abs(f() - 3) < 1e-6") == [False]


@pytest.mark.parametrize(
    ("program", "wrong", "right"),
    [
        ("from operator import floordiv as f\ndef abs(x): return 0", "assert abs(f(9, 2) - 3) < 1e-6",
         "assert abs(f(9, 2) - 4) < 1e-6"),
        ("from math import sqrt\ndef abs(x): return 0", "assert abs(sqrt(9) - 4) < 1e-6",
         "assert abs(sqrt(9) - 3) < 1e-6"),
        ("def sum(xs): return 9\ndef abs(x): return 0", "assert abs(sum([1]) - 3) < 1e-6",
         "assert abs(sum([1]) - 9) < 1e-6"),
        ("def sorted(x): return 0\ndef list(x): return 0", "assert sorted([1]) == list([1])",
         "assert sorted([1]) == 0"),
        ("from operator import floordiv as sqrt", "assert sqrt(9) == 3", "assert sqrt(9, 4) == 2"),
        ("from operator import not_ as abs", "assert abs(-3) == 3", "assert abs(-3) is False"),
    ],
)  # fmt: skip
def test_only_what_is_tested_comes_from_the_program(program: str, wrong: str, right: str) -> None:
    assert passed(program, wrong, right) == [False, True]


@pytest.mark.parametrize(
    ("program", "test"),
    [
        ("def f(): return [1, 2, 3]", "assert reduce(operator.mul, f()) == 6 and statistics.mean(f()) == 2"),
        ("from math import isclose, sqrt\ndef f(x): return sqrt(x)", "assert isclose(f(2), 1.41421356, rel_tol=1e-6)"),
        ("import datetime as dt\ndef f(): return dt.date(2024, 1, 2)", "assert f() == dt.date(2024, 1, 2)"),
        ("from datetime import datetime\ndef f(): return datetime(2024, 1, 2)",
         "assert f() == datetime.strptime('2024-01-02', '%Y-%m-%d')"),
        ("import cmath as math\ndef f(): return 1", "assert math.phase(f()) == 0"),
        ("from collections import *\ndef f(): return Counter('aab')", "assert f() == Counter('aab')"),
        ("from math import prod as product", "assert product([2, 3]) == 6"),
        ("from math import prod as product", "assert abs(product([2, 3]) - 6.0) < 1e-6"),
        ("import asyncio\nasync def f(x): return x", "assert asyncio.run(f(3)) == 3"),
        ("def search(xs, x): return x in xs\ndef insert(xs, x): return [*xs, x]", "assert search(insert([1], 2), 2)"),
        ("def compress(s): return s + '!'\ndef decompress(s): return s[:-1]",
         "assert decompress(compress('ab')) == 'ab'"),
        ("def mean(xs): return sum(xs) / len(xs)\ndef variance(xs): return mean([(x - mean(xs)) ** 2 for x in xs])",
         "assert variance([1, 2]) == 0.25 and mean([1, 2]) == 1.5"),
        ("class queue:\n    def __init__(self): self.size = 0\n    def push(self): self.size += 1\n"
         "def f(q): return q.size", "q = queue()\nq.push()\nassert f(q) == 1"),
        ("x = 1\ndef sum(xs): return 42", "x = 5\nassert sum([x]) == 42"),
        ("def f(x): return x + 1", "def check(f):\n    assert f(1) == 2\ncheck(f)"),
        ("def f(x): return x", "if __name__ == 'test':\n    assert all(f(x) == x for x in [1, 2])"),
    ],
)  # fmt: skip
def test_an_honest_programs_names_are_found(program: str, test: str) -> None:
    assert passed(program, test) == [True]


def test_the_documentation_has_every_name_with_which_tests_compare() -> None:
    text = (ROOT / "docs/sandbox.md").read_text(encoding="utf-8")
    missing = [name for name in _HOME if f"`{name}`" not in text]
    assert not missing, missing
