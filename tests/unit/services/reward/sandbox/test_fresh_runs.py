"""Tests that no run of a program finds anything of an earlier one, and that lost runs pass no test."""

import pytest

from services.reward.sandbox import run
from tests.unit.services.reward.sandbox.runs import passed

pytestmark = pytest.mark.usefixtures("sandbox")


@pytest.mark.parametrize(
    "count",
    [
        "import os\nn = len(os.listdir('/tmp'))\nopen('/tmp/%d' % n, 'w').close()",
        "import os\nn = len(os.listdir('.'))\nos.mkdir('%d' % n)\nos.chmod('0', 0)",
        "import os\nn = os.path.islink('/tmp/.x')\nos.symlink('/', '/tmp/.x')",
        "import os\nn = os.stat('/tmp').st_atime < 9\nos.utime('/tmp', (5, 5))",
        "import os\nn = os.stat('/tmp').st_mode & 0o777 != 0o700\nos.chmod('/tmp', 0o500)",
        "import os\nn = os.fstat(os.open('/tmp', os.O_TMPFILE | os.O_RDWR)).st_ino - 2",
        "import os\nn = os.getpid() - 1",
        "import os\nn = os.stat('/dev/null').st_mtime < 9\ntry: os.utime('/dev/null', (5, 5))\nexcept OSError: pass",
        "import os\nn = os.environ.get('N', 0)\nos.environ['N'] = '1'",
    ],
)
def test_a_program_cannot_count_its_runs(count: str) -> None:
    assert passed(f"{count}\ndef f(): return n", *["assert f() == 0"] * 3) == [True] * 3


def test_a_script_cannot_count_its_runs() -> None:
    program = "import os\nprint(len(os.listdir()), os.getpid())\nopen('x', 'w').write('x' * 10_000_000)"
    tests = [{"input": "", "output": "0 1"}] * 4
    results = run.run_tests(
        program, tests, kind=run.PROGRAM, limits=run.SandboxLimits(timeout_s=20.0), total_timeout_s=90.0
    )
    assert [result.passed for result in results] == [True] * 4, results


@pytest.mark.parametrize(
    ("program", "test"),
    [
        ("def f(path): open(path, 'w').write('hi')", "f('a.txt')\nassert open('a.txt').read() == 'hi'"),
        ("def f(path): return open(path).read()", "with open('/tmp/b', 'w') as file: file.write('5')\n"
         "assert f('b') == '5'"),
        ("import os\ndef f(path): os.mkdir(path)", "f('c')\nimport os\nassert os.listdir('/tmp') == ['c']"),
    ],
)  # fmt: skip
def test_a_test_and_its_program_see_the_same_files(program: str, test: str) -> None:
    assert passed(program, test, test) == [True, True]


def test_no_program_changes_the_machines_devices() -> None:
    program = "import os\ndef f():\n    os.chmod('/dev/null', 0o666)"
    test = "try:\n    f()\nexcept OSError:\n    pass\nelse:\n    raise AssertionError"
    writes = "def f():\n    with open('/dev/null', 'w') as file: return file.write('x')"
    assert passed(program, test) == [True]
    assert passed(writes, "assert f() == 1") == [True]


CATCHING = [
    "try:\n    f()\nexcept Exception:\n    pass\nelse:\n    raise AssertionError",
    "try:\n    f()\nexcept:\n    pass",
    "import contextlib\nwith contextlib.suppress(BaseException):\n    f()",
]


def test_a_process_that_ends_is_no_exception_that_a_test_asks_for() -> None:
    assert passed("import os\ndef f(): os._exit(0)", *CATCHING) == [False] * 3
    assert passed("def f(): raise ValueError", *CATCHING) == [True] * 3


def test_a_program_that_hangs_is_no_exception_that_a_test_asks_for() -> None:
    assert passed("def f():\n    while True: pass", CATCHING[0], CATCHING[1], timeout_s=0.5) == [False] * 2


def test_no_object_of_the_program_says_how_far_it_is_from_a_number() -> None:
    program = (
        "class E:\n"
        "    def __sub__(self, o): return E()\n"
        "    __rsub__ = __truediv__ = __add__ = __sub__\n"
        "    def __pow__(self, o): return 0\n"
        "    def __mul__(self, o): return 0\n"
        "    __rmul__ = __mul__\n"
        "    def __neg__(self): return 0\n"
        "    def __bool__(self): return False\n"
        "    def __len__(self): return 0\n"
        "def f(): return E()\n"
    )
    tests = [
        "assert (f() - 3) ** 2 < 1e-9",
        "assert (f() - 3) * (f() - 3) < 1e-9",
        "assert 2 * (f() - 3) < 1e-9",
        "assert abs((3 - f()) / 3) < 1e-9",
        "assert not (f() - 3)",
        "assert len(f() - 3) == 0",
        "assert -(f() - 3) == 0",
    ]
    assert passed(program, *tests) == [False] * len(tests)
    vector = (
        "class V:\n"
        "    def __init__(self, x): self.x = x\n"
        "    def __sub__(self, o): return V(self.x - (o.x if isinstance(o, V) else o))\n"
        "    def __mul__(self, o): return V(self.x * o)\n"
        "    def __eq__(self, o): return self.x == o.x\n"
        "    def __bool__(self): return self.x != 0\n"
        "    def __repr__(self): return f'V({self.x})'\n"
    )
    honest = ["assert (V(5) - 2) * 2 == V(6)", "assert repr(V(5) - 2) == 'V(3)'", "assert not V(5) - V(5)"]
    assert passed(vector, *honest) == [True] * 3
