"""Tests of how the program is found in a completion."""

import pytest

from services.reward.common.code_text import program_text

GOOD = "```python\ngood\n```\n"
DOCUMENTED = 'def f():\n    """\n    ```python\n    >>> f()\n    ```\n    """\n    return 1'


@pytest.mark.parametrize(
    ("completion", "program"),
    [
        ("```python\na=1\n```\nand\n```\nb=2\n```", "b=2"),
        ("no block", "no block"),
        ("", ""),
        ("```py\nc=3\n```", "py\nc=3"),
        ("```python\r\ngood\r\n```\r\n", "good"),
        ("```python\ngood```", "good"),
        ("```good```", "good"),
        ("Code:```python\ngood\n```", "good"),
        ("Code: ```x = 1\ny = 2\n```", "x = 1\ny = 2"),
        ("```python\ngood\n``` That's it.", "good"),
        ("1. Do:\n   ```python\n   import math\n   x = 1\n   ```", "import math\nx = 1"),
        ("- ```python\n  import math\n  x = 1\n  ```", "import math\nx = 1"),
        ("```python\nbad\n\nBetter:\n" + GOOD, "good"),
    ],
)
def test_the_program_is_the_last_block_or_the_whole_completion(completion: str, program: str) -> None:
    assert program_text(completion) == program


@pytest.mark.parametrize(
    ("completion", "program"),
    [("```py\nc=3\n```", "c=3"), ("``` python3 \nc=3\n```", "c=3"), ("```c=3\n```", "c=3"), ("c=3", "c=3")],
)
def test_any_tag_is_dropped_where_it_is_asked_for(completion: str, program: str) -> None:
    assert program_text(completion, any_tag=True) == program


@pytest.mark.parametrize(
    "rest",
    [
        "```python\ndef add(a",
        "Better:\n```python\ndef add(a, b):\n    return a + b\n",
        "Better: ```python\ndef add(a",
        "Better:\n```pyth",
        "Better:\n```",
        "```python\ndef add(a):\n    '''\n    ```\n    add(1)\n    ```\n    more",
    ],
)
def test_no_block_is_paid_in_place_of_a_last_one_that_is_cut_off(rest: str) -> None:
    assert "good" not in program_text(GOOD + rest)
    assert "```python\n" not in program_text(rest)


@pytest.mark.parametrize(
    "program",
    [
        DOCUMENTED,
        '"""\n```\nf()\n```\n"""\nx = 1',
        "# Use ``` here:\n# ```\nx = 1",
        "s = '```'\nt = \"```\"\nu = f'{s}```'",
        "x = r'\\'\ny = '```'",
        "x = '''a\\'''b```'''",
        "x = 'a' \\\n    '```'",
    ],
)
def test_backticks_in_strings_and_comments_of_a_program_do_not_end_it(program: str) -> None:
    assert program_text(f"Here:\n```python\n{program}\n```\nIt's done.") == program
    assert program_text(f"````python\n{program}\n````") == program
    assert program_text(program) == program


@pytest.mark.parametrize(
    "completion",
    [
        "The marker ``` starts a block.\n" + GOOD,
        "``` starts a block.\n" + GOOD,
        "Use ```python to start.\n" + GOOD,
        'Use """ for docs.\n' + GOOD,
        "```bash\necho 'it\n```\n" + GOOD,
        "```text\nit's\n```\n" + GOOD,
        "```python\ndef f():\n    '''broken\n```\nNow:\n```python\ndef f():\n    '''It's one.'''\n    good\n```",
        GOOD + "```",
        GOOD + "Note that ``` marks a block.\nAlways close it with ```",
        GOOD + "It runs with ```python main.py```.",
        GOOD + "That's it, isn't it?",
    ],
)
def test_backticks_around_the_program_do_not_break_it(completion: str) -> None:
    program = program_text(completion)
    assert program.endswith("good") and "```" not in program, program


@pytest.mark.parametrize(
    "completion",
    ["`" * 60_000, "```\n\\'''\n```\n" * 5_000, "\\'" * 30_000 + "```\nx\n```", "```py\n" * 10_000, '```\n"""' * 8_000],
)
def test_a_hostile_completion_is_read_to_its_end(completion: str) -> None:
    assert len(program_text(completion)) <= len(completion)
