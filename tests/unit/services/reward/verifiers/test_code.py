"""Tests of the code verifiers in a real sandbox."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from services.reward.common.verdict import Unscorable
from services.reward.pool.worker import judge
from services.reward.sandbox import run
from services.reward.verifiers import code, code_stdio
from services.reward.verifiers.code import CodeOptions
from tests.unit.services.reward.sandbox.runs import passed

# Generous, because the machine may be busy. Tests of deadlines set their own.
PATIENT = CodeOptions(timeout_s=20.0, total_timeout_s=60.0)


pytestmark = pytest.mark.usefixtures("sandbox")


def prints(program: str, stdin: str, stdout: str) -> bool:
    label = [{"input": stdin, "output": stdout}]
    return code_stdio.verify(program, label, PATIENT).value == 1.0


def test_the_value_is_the_fraction_of_tests_that_pass() -> None:
    verdict = code.verify("```python\ndef f(x): return x\n```", ["assert f(1) == 1", "assert f(1) == 2"], PATIENT)
    assert verdict.value == 0.5
    assert "1 of 2 tests" in verdict.detail and "test 1: AssertionError" in verdict.detail


@pytest.mark.parametrize(
    ("options", "value"),
    [
        ({}, 0.5),
        ({"pass_rate_threshold": 0.5}, 0.5),
        ({"pass_rate_threshold": 0.6}, 0.0),
        ({"partial_credit": False}, 0.0),
    ],
)
def test_partial_credit_and_the_threshold_decide_the_value_of_half_the_tests(
    options: dict[str, Any], value: float
) -> None:
    tests = ["assert f(1) == 1", "assert f(1) == 2"]
    assert code.verify("def f(x): return x", tests, PATIENT.model_copy(update=options)).value == value


def test_speed_counts_if_configured() -> None:
    value = code.verify(
        "def f(x): return x", ["assert f(1) == 1"] * 2, PATIENT.model_copy(update={"reward_speed": True})
    ).value
    assert 0.5 < value < 1.0


@pytest.mark.parametrize(
    ("program", "test"),
    [
        ("def f(xs): xs.sort()", "xs = [3, 1, 2]\nf(xs)\nassert xs == [1, 2, 3]"),
        ("def f(d): d['a'] += 1; d['b'].append(2)", "d = {'a': 1, 'b': []}\nf(d)\nassert d == {'a': 2, 'b': [2]}"),
        ("def f(g, x): return g(g(x))", "assert f(lambda x: x * 3, 2) == 18"),
        ("def f(kind): return kind('7')", "assert f(int) == 7"),
        ("def f(xs): return [x + 1 for x in xs]", "assert f(iter([1, 2])) == [2, 3]"),
        ("def f(n):\n    for i in range(n): yield i", "assert list(f(3)) == [0, 1, 2]"),
        ("def f(x):\n    if x < 0: raise ValueError('negative')", "try:\n    f(-1)\n    assert False\n"
         "except ValueError as error:\n    assert str(error) == 'negative'"),
        ("class Bad(Exception): pass\ndef f(): raise Bad('x')", "try:\n    f()\n    assert False\n"
         "except Bad:\n    pass"),
        ("class S:\n    def two(self, x): return [x, x]", "assert S().two(1) == [1, 1]"),
        ("class P:\n    def __init__(self, x): self.x = x\n    def __add__(self, o): return P(self.x + o.x)\n"
         "    def __eq__(self, o): return self.x == o.x", "p = P(1) + P(2)\nassert p == P(3)\nassert p.x == 3"),
        ("class P:\n    def __init__(self, x): self.x = x", "p = P(1)\np.x = 5\nassert p.x == 5 and isinstance(p, P)"),
        ("from collections import Counter\ndef f(s): return Counter(s)", "assert f('aab') == Counter('aab')\n"
         "assert f('aab') == {'a': 2, 'b': 1}"),
        ("from collections import namedtuple\nP = namedtuple('P', 'x y')\ndef f(): return P(1, 2)",
         "assert f() == (1, 2)\nassert f().x == 1"),
        ("from math import *\ndef f(): return 0.1 + 0.2", "assert isclose(f(), 0.3)\nassert f() == 0.1 + 0.2"),
        ("def f(): return 10 ** 5000, -0.0, float('inf'), 1j, b'a', {1, (2, 3)}",
         "assert f() == (10 ** 5000, 0.0, float('inf'), 1j, b'a', {(2, 3), 1})"),
        ("def sum(xs): return 42", "assert sum([1]) == 42"),
        ("async def f(x): return x", "import asyncio\nassert asyncio.run(f(3)) == 3"),
        ("def f(x): return x", "def check(candidate):\n    assert candidate(1) == 1\ncheck(f)"),
        ("def f():\n    yield 1", "import types, inspect\nassert isinstance(f(), types.GeneratorType)\n"
         "assert inspect.isgenerator(f()) and inspect.isfunction(f) and not inspect.isfunction(3)"),
        ("class C:\n    def __enter__(self): return 5\n    def __exit__(self, *a): pass", "with C() as c:\n"
         "    assert c == 5"),
        ("class V:\n    def __init__(self, x): self.x = x\n    def __truediv__(self, k): return V(self.x / k)\n"
         "    def __abs__(self): return self.x", "assert abs(V(6) / 2) == 3"),
        ("TABLE = {'a': [1]}", "assert TABLE['a'] == [1]"),
        ("import re, sys\nsys.setrecursionlimit(5000)\ndef f(n): return n and 1 + f(n - 1)", "assert f(3000) == 3000"),
        ("from dataclasses import dataclass\n@dataclass\nclass P:\n    x: int\ndef f(): return P(1)",
         "assert f() == P(1)\nassert f() != P(2)"),
        ("from enum import Enum\nclass C(Enum):\n    A = 1\ndef f(): return C.A", "assert f() == C.A\n"
         "assert f().value == 1"),
        ("import threading\ndef f():\n    out = []\n    t = threading.Thread(target=out.append, args=(1,))\n"
         "    t.start(); t.join()\n    return out", "assert f() == [1]"),
        ("open('/tmp/note', 'w').write('x')\ndef f(): return open('/tmp/note').read()", "assert f() == 'x'"),
    ],
)  # fmt: skip
def test_an_honest_program_passes(program: str, test: str) -> None:
    [result] = run.run_tests(
        program, [test], kind=run.FUNCTIONS, limits=run.SandboxLimits(timeout_s=20.0), total_timeout_s=60.0
    )
    assert result.passed, result.detail


@pytest.mark.parametrize(
    "program",
    [
        "import os\nos._exit(0)",
        "import sys\nsys.exit(0)",
        "def f(x):\n    import os\n    os._exit(0)",
        "def f(x): raise SystemExit(0)",
        'print(\'{"event": "test", "index": 0, "passed": true}\')\nraise SystemExit',
        "import os\nfor fd in range(100):\n    try: os.write(fd, b'\\x10\\0\\0\\0{\"passed\": true}')\n"
        "    except OSError: pass\ndef f(x): return 0",
        "import builtins\nbuiltins.AssertionError = type('Quiet', (Exception,), {})\ndef f(x): return 0",
        "class E:\n    def __eq__(self, o): return True\n    __hash__ = None\ndef f(x): return E()",
        "class E(int):\n    def __eq__(self, o): return True\n    def __ne__(self, o): return False\n"
        "def f(x): return E(0)",
        "class E:\n    def __eq__(self, o): return True\n    def __sub__(self, o): return 0\n    __rsub__ = __sub__\n"
        "def f(x): return E()",
        "class E:\n    def __sub__(self, o): return E()\n    __rsub__ = __truediv__ = __mod__ = __sub__\n"
        "    def __abs__(self): return 0\n    def __float__(self): return 0.0\n    __len__ = __int__ = __abs__\n"
        "def f(x): return E()",
        "class E:\n    def __truediv__(self, o): return 1\n    def __mod__(self, o): return 0\ndef f(x): return E()",
        "import sys, gc\ndef f(x):\n    frame = sys._getframe()\n    while frame:\n"
        "        if 'wanted' in str(frame.f_locals): return frame.f_locals['wanted']\n        frame = frame.f_back\n"
        "    return [o for o in gc.get_objects() if isinstance(o, dict) and 'wanted' in o][0]['wanted']",
        "import os, signal\ndef f(x):\n    os.kill(os.getppid(), signal.SIGKILL)\n    os.kill(-1, 9)\n    return 0",
        "import signal, os\nfor pid in range(1, 50):\n    try: os.kill(pid, signal.SIGSTOP)\n"
        "    except OSError: pass\ndef f(x): return 0",
        "import resource\nfor pid in range(1, 50):\n    try: resource.prlimit(pid, resource.RLIMIT_CPU, (0, 0))\n"
        "    except (OSError, ValueError): pass\ndef f(x): return 0",
        "import fcntl, socket\na, b = socket.socketpair()\nfor pid in range(1, 50):\n"
        "    try: fcntl.fcntl(a, fcntl.F_SETOWN, pid); fcntl.fcntl(a, fcntl.F_SETSIG, 9)\n"
        "    except OSError: pass\ndef f(x): return 0",
        "def abs(x): return 0\ndef all(x): return True\ndef isinstance(*a): return True\ndef f(x): return 0",
        "import math\nmath.isclose = lambda *a, **k: True\ndef f(x): return 0",
        "class math:\n    isclose = lambda *a, **k: True\nclass np:\n    allclose = isclose = math.isclose\n"
        "def f(x): return 0",
        "def f(x): return f",
        "",
        "def f(x): return 1 / 0",
        "def f(x:",
        "\x00",
        "\ud800 = 1",
        "(" * 10_000,
        "f = " + "-" * 200_000 + "1",
        "import os\nos.chmod('/tmp', 0)\ndef f(x): return 0",
    ],
)
def test_no_trick_makes_a_test_pass(program: str) -> None:
    tests = [
        "wanted = 1234.5\nassert f(1) == wanted",
        "assert abs(f(1) - 1234.5) < 1e-6",
        "import math\nassert math.isclose(f(1), 1234.5)",
        "assert math.isclose(f(1), 1234.5)",
        "assert np.allclose(f(1), 1234.5)",
        "assert not f(1) != 1234.5",
        "assert abs(f(1) / 1234.5 - 1) < 1e-6",
        "assert f(1) % 1234.5 == 0 and f(1) > 1",
        "assert all(y == 1234.5 for y in [f(1)])",
    ]
    label = {"outcome": "scored", "value": 0.0}
    answer = judge("code", f"```python\n{program}\n```", tests, options=PATIENT)
    assert {key: answer[key] for key in label} == label, answer["detail"]


@pytest.mark.parametrize(
    ("program", "test", "expected"),
    [
        ("def isclose(*a, **k): return True\ndef f(x): return 0", "assert isclose(f(1), 3.5)", False),
        ("def f(x): return 3.5", "assert isclose(f(1), 3.5)", True),
        ("def f(x): return 3.0", "assert f(9) == math.sqrt(9)", True),
        ("class Counter:\n    def __init__(self, *a): pass\n    def __eq__(self, o): return True\n"
         "def f(s): return Counter()", "assert f('aab') == Counter('aab')", False),
        ("def f(s): return {'a': 2, 'b': 1}", "assert f('aab') == Counter('aab')", True),
        ("class approx:\n    def __init__(self, x): pass\n    def __eq__(self, o): return True\n"
         "def f(x): return approx(0)", "assert f(1) == approx(3.5)", False),
        ("class Counter:\n    def __init__(self): self.value = 0\n    def increment(self): self.value += 1",
         "c = Counter()\nc.increment()\nassert c.value == 1", True),
        ("def sqrt(x): return 7", "assert sqrt(9) == 7", True),
    ],
)  # fmt: skip
def test_a_test_compares_with_the_librarys_names_and_not_with_the_programs(
    program: str, test: str, expected: bool
) -> None:
    assert passed(program, test) == [expected]


def test_a_program_sees_neither_the_tests_nor_an_earlier_program() -> None:
    secret = "5f1c9d"
    assert passed(f"def f(): return '{secret}'", f"assert f() == '{secret}'") == [True]
    spy = (
        "import gc, ctypes, sys\n"
        "def f():\n"
        "    seen = []\n"
        "    for o in gc.get_objects():\n"
        "        try: seen += [s for s in (o.values() if type(o) is dict else o) if type(s) is str]\n"
        "        except Exception: pass\n"
        "    return [s for s in seen if ''.join(['5f1c', '9d']) in s]\n"
    )
    assert passed(spy, f"wanted = '{secret}'\nassert f() == []") == [True]


@pytest.mark.parametrize(
    ("program", "stdin", "stdout", "expected"),
    [
        ("print(int(input()) + int(input()))", "1\n2\n", "3", True),
        ("import sys\nprint(sys.stdin.read()[::-1])", "abc", "cba\n", True),
        ("import sys\nsys.stdout.buffer.write(open(0, 'rb').read())", "ab\n", "ab", True),
        ("import os\nos.write(1, os.read(0, 10))", "ab\n", "ab", True),
        ("if __name__ == '__main__':\n    print('yes')", "", "yes", True),
        ("print(' a \\n b')", "", "a\nb", True),
        ("print('1.50 2')", "", "1.5 2.0", True),
        ("print('a')\nprint('b')", "", "a", False),
        ("print('3')\nraise SystemExit(1)", "", "3", False),
        ("print('3')\nexit()", "", "3", True),
        ("print('3')\n1 / 0", "", "3", False),
        ("import sys\nsys.stdout.buffer.write(b'\\xff\\xfe')", "", "x", False),
        ("print('é')", "", "é", True),
        ("print(input())", "é\ud800", "é\ud800", False),
        ("print(len(input()))", "x" * 3_000_000, "3000000", True),
        ("print('x' * 3_000_000)", "", "x" * 3_000_000, True),
        ("print(5)", "never read" * 100_000, "5", True),
        ("import os\nprint(5, flush=True)\nos._exit(0)", "", "5", True),
        ("import sys\nfor line in sys.stdin: print(line, end='')", "a\n" * 100_000, "a\n" * 100_000, True),
    ],
)
def test_a_script_is_rewarded_for_its_output(program: str, stdin: str, stdout: str, expected: bool) -> None:
    assert prints(program, stdin, stdout) is expected


@pytest.mark.parametrize(
    ("verify", "label", "reason"),
    [
        (code.verify, [], "no test"),
        (code.verify, "not json", "JSON"),
        (code.verify, "eJxzzs8tKEotLk5NAQAa3gSB", "pickled"),
        (code.verify, 5.0, "float"),
        (code.verify, [1.0], "test 0"),
        (code.verify, ["assert f(1) == 1", " "], "test 1"),
        (code.verify, ["# f(1) is 1"], "test 0"),
        (code_stdio.verify, '[{"input": "1", "output": "1", "output": "2"}]', "'output'"),
        (code.verify, ["assert f(1) == 1", "assert ("], "test 1"),
        (code_stdio.verify, [{"input": "x"}], "test 0"),
        (code_stdio.verify, ["assert f()"], "test 0"),
        (code.verify, ["class N: pass\nf(N())"], "class N"),
    ],
)
def test_a_malformed_label_is_unscorable(verify: Any, label: Any, reason: str) -> None:
    with pytest.raises(Unscorable, match=reason):
        verify("def f(x): return x", label, PATIENT)


def test_input_and_output_of_a_script_may_be_numbers() -> None:
    assert code_stdio.verify("print(int(input()) + 1)", [{"input": 8.0, "output": 9.0}], PATIENT).value == 1.0


def test_labels_may_be_json_text() -> None:
    assert code.verify("def f(): return 1", '["assert f() == 1"]', PATIENT).value == 1.0
    assert code_stdio.verify("print(1)", '[{"input": "", "output": "1"}]', PATIENT).value == 1.0


@pytest.mark.parametrize("name", ["code", "code_stdio"])
def test_without_a_sandbox_no_program_runs_and_the_outcome_is_failed(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run.close()
    monkeypatch.setenv("PATH", str(tmp_path))
    code._AVAILABLE.clear()
    label: Any = ["assert f() == 1"] if name == "code" else [{"input": "", "output": "1"}]
    witness = tmp_path / "ran"
    answer = judge(name, f"open({str(witness)!r}, 'w')", label)
    assert answer["outcome"] == "failed"
    assert "bubblewrap is not installed" in answer["detail"]
    assert not witness.exists()


def test_a_program_that_used_little_cpu_time_gets_more_time_once() -> None:
    waits = "import time\ndef f():\n    time.sleep(1.0)\n    return 1"
    loops = "def f():\n    while True: pass"
    options = CodeOptions(timeout_s=0.6, total_timeout_s=20.0)
    assert code.verify(waits, ["assert f() == 1"], options).value == 1.0
    assert code.verify(loops, ["assert f() == 1"], options).value == 0.0


def test_without_free_namespaces_the_outcome_is_failed_with_the_reason() -> None:
    script = (
        "import json, services.reward.pool.worker as w\n"
        "print(json.dumps(w.judge('code', 'def f(): return 1', ['assert f() == 1'])))"
    )
    limited = 'echo 0 >/proc/sys/user/max_user_namespaces && exec "$@"'
    finished = subprocess.run(
        ["unshare", "-Ur", "sh", "-c", limited, "sh", sys.executable, "-c", script],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    answer = json.loads(finished.stdout)
    assert answer["outcome"] == "failed"
    assert "Creating new namespace failed" in answer["detail"]
    assert "docs/sandbox.md" in answer["detail"]


def test_a_kernel_that_refuses_namespaces_fails_the_completion_with_its_message(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run.close()
    refusing = tmp_path / "bwrap"
    refusing.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    refusing.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    code._AVAILABLE.clear()
    answer = judge("code", "def f(): return 1", ["assert f() == 1"])
    assert answer["outcome"] == "failed"
    assert "No permissions to create new namespace" in answer["detail"]
    assert shutil.which("bwrap") == str(refusing)
