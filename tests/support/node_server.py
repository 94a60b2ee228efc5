"""The example server in Node.js, in a process of its own."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.repository import ROOT

GAME = "higher_or_lower"
_FOLDER = ROOT / "examples" / "environment-server"


def missing_for_node_server() -> str:
    """Returns what the server needs and this machine lacks; empty if nothing."""
    if shutil.which("node") is None:
        return "needs Node.js"
    return "" if (_FOLDER / "node_modules").is_dir() else f"needs `npm ci` in {_FOLDER}"


@contextmanager
def node_server() -> Iterator[str]:
    command = ["node", str(_FOLDER / "server.js"), "127.0.0.1:0"]
    with subprocess.Popen(command, cwd=_FOLDER, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            said = process.stdout.readline()
            assert said.startswith("listening on port "), f"the server ended with {process.wait()}: {said}"
            yield f"127.0.0.1:{said.split()[-1]}"
        finally:
            process.kill()
