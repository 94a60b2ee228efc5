"""Completions and programs that attack verifiers. Data for tests/contract/reward/test_hostile_completions.py."""

import json
import os
from pathlib import Path
from typing import Any

LONG = 300_000
"""Characters. What takes time by their square takes hours."""
TEXTS = {
    "empty": "",
    "many letters": "x" * LONG,
    "many digits": "1" * LONG,
    "many spaces": " " * LONG,
    "many dollars": "$" * LONG,
    "many characters of four bytes": "\N{GRINNING FACE}" * LONG,
    "many characters of words": "word " * (LONG // 5),
    "tags without end": "<answer>" * (LONG // 8),
    "ends of tags": "</think> </answer>" * (LONG // 18),
    "open boxes": r"\boxed{" * (LONG // 7),
    "parentheses": "(A " * (LONG // 3),
    "nested fractions": r"\frac{" * 20_000 + "1" + "}{2}" * 20_000,
    "nested roots in a box": r"$\boxed{" + r"\sqrt{" * 500 + "2" + "}" * 500 + "}$",
    "nested lists": "[" * LONG,
    "bytes that were no UTF-8": b"\xff\xfe\xed\xa0\x80".decode("utf-8", "replace") * 1000,
    "nul bytes": "\0" * 1000,
    "dots and commas": "1,.-" * (LONG // 4),
    "a tower of powers": r"\boxed{9^{9^{9^{9}}}}",
    "an endless product": r"\boxed{\prod_{k=1}^{10^8} k}",
}
"""By name of the attack."""

_REASONING_GYM = {
    "task": "basic_arithmetic",
    "options": "{}",
    "entry": json.dumps({"question": "2 + 3 =", "answer": "5", "metadata": {}}),
}
LABELS: dict[str, Any] = {
    "code": ["assert f() == 5"],
    "code_stdio": [{"input": "", "output": "5"}],
    "exact_string": "5",
    "flan": "5",
    "gsm8k": "5",
    "ifeval": {"instruction_id": ["detectable_content:postscript"], "kwargs": [{"postscript_marker": "P.S."}]},
    "ifeval_old": {"func_name": "verify_postscript", "postscript_marker": "P.S."},
    "json_schema": {"type": "integer"},
    "language": "de",
    "math": "5",
    "max_length": "4",
    "multiple_choice": "B",
    "passthrough": "",
    "puzzle": "5",
    "r1_format": "",
    "re_search": "5",
    "re_search_f1": "5",
    "reasoning_gym": _REASONING_GYM,
    "reasoning_steps": "",
    "regex": "[2-9]{7}",
    "repetition_penalty": "",
    "soft_overlong": "",
    "strict_math": "5",
    "string_f1": "5",
    "string_matcher": "5",
    "think_answer_format": "",
    "think_answer_tags": "",
    "think_format": "",
    "up_to_max_length": "4",
}
"""A label for each verifier by which none of the texts is right."""

SECRET = "shoal-secret-3f29"
"""In the environment of the service, where programs must not find it."""
PLACES = ("/tmp", "/var/tmp", "/dev/shm", "/", "/usr", "/etc", "/root", "/home", str(Path(__file__).parent))
MARK = f"shoal-mark-{os.getpid()}"
"""Name of the files that programs try to leave in those places."""

PROGRAMS: dict[str, tuple[str, str]] = {
    "an infinite loop": ("def f():\n    while True: pass", "f()"),
    "an infinite loop as it is loaded": ("while True: pass", "f()"),
    "a loop that catches everything": (
        "def f():\n    while True:\n        try:\n            while True: pass\n        except BaseException: pass",
        "f()",
    ),
    "a fork bomb": ("import os\ndef f():\n    while True: os.fork()", "f()"),
    "a daemon": ("import os\ndef f():\n    if os.fork() == 0:\n        os.setsid()\n        while True: pass", "f()"),
    "a subprocess": ("import subprocess\ndef f(): subprocess.run(['/bin/sleep', '60'])", "f()"),
    "threads without end": (
        "import threading, time\ndef f():\n    while True: threading.Thread(target=time.sleep, args=(60,)).start()",
        "f()",
    ),
    "ten gigabytes": ("def f(): return len(bytearray(10 << 30))", "f()"),
    "memory bit by bit": ("def f():\n    x = []\n    while True: x.append(bytearray(1 << 20))", "f()"),
    "files that fill memory": (
        "def f():\n    for n in range(10 ** 6):\n        open(f'/tmp/{n}', 'wb').write(bytes(1 << 20))",
        "f()",
    ),
    "memory by file descriptor": ("import os\ndef f():\n    os.write(os.memfd_create('x'), bytes(1 << 20))", "f()"),
    "a call over the network": (
        "import urllib.request\ndef f(): urllib.request.urlopen('http://127.0.0.1:80', timeout=60)",
        "f()",
    ),
    "a raw socket": ("import socket\ndef f(): socket.create_connection(('1.1.1.1', 53))", "f()"),
    "writing outside": (
        f"def f():\n    n = 0\n    for place in {PLACES[1:]!r}:\n"
        f"        try: open(place + '/{MARK}', 'w'); n += 1\n        except OSError: pass\n    return n",
        "assert f() > 0",
    ),
    "writing to the one writable place": (f"def f(): open('/tmp/{MARK}', 'w')", "f()\nassert False"),
    "reading the environment": (
        f"import os\ndef f(): return {SECRET!r} in str(dict(os.environ)) or len(os.environ) > 10",
        "assert f()",
    ),
    "reading what others do": ("import os\ndef f(): return os.listdir('/proc')", "f()"),
    "reading files of the service": (f"def f(): return open({__file__!r}).read()", "f()"),
    "a gigabyte of output": ("def f():\n    for _ in range(1024): print('x' * (1 << 20))\n    raise OSError", "f()"),
    "a catastrophic regular expression": (
        "import re\ndef f(): return re.match('(a+)+$', 'a' * 40 + 'b')",
        "f()",
    ),
    "a catastrophic regular expression in the test": (
        "def f(): return 'a' * 40 + 'b'",
        "import re\nassert re.match('(a+)+$', f())",
    ),
    "a value without end": ("import itertools\ndef f(): return itertools.count()", "list(f())"),
    "a huge value": ("def f(): return 'x' * (100 << 20)", "assert f() == 'y'"),
    "a value in a value in a value": (
        "def f():\n    x = []\n    for _ in range(10 ** 5): x = [x]\n    return x",
        "assert f() == 1",
    ),
    "a value that contains itself": ("def f():\n    x = []\n    x.append(x)\n    return x", "assert f() == 1"),
    "a crash of the interpreter": ("import ctypes\ndef f(): ctypes.string_at(0)", "f()"),
    "no text": ("\ufffd\ufffd = '\x00'", "f()"),
    "nothing": ("", "f()"),
    "many characters": ("x = " + "1 + " * (LONG // 4) + "1", "f()"),
    "many characters of text": ("word " * (LONG // 5), "f()"),
    "many open brackets": ("[" * LONG, "f()"),
    "closing what it was given": ("import os\nos.closerange(0, 100)\ndef f(): return 1", "assert f() == 1"),
    "a new namespace": (
        "import ctypes\ndef f():\n    if ctypes.CDLL(None).unshare(0x10000000): raise OSError",
        "f()",
    ),
}
SCRIPTS = {
    "a gigabyte of output": "while True: print('x' * (1 << 20))",
    "output that never ends its line": "import sys\nwhile True: sys.stdout.write('x')",
    "an infinite loop": "while True: pass",
    "silence that holds its output open": "import time\nprint(1, flush=True)\ntime.sleep(60)",
    "closing its output and going on": "import os, time\nprint(1, flush=True)\nos.close(1)\ntime.sleep(60)",
    "waiting for input that does not come": "input(); input(); input()",
    "a fork bomb": "import os\nprint(1)\nwhile True: os.fork()",
    "ten gigabytes": "print(1)\nx = bytearray(10 << 30)",
}
