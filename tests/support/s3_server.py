"""A real S3 server: moto's, as a process of its own on a free port."""

import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_STARTED = re.compile(r"Running on http://127\.0\.0\.1:(\d+)")


@contextmanager
def s3_server() -> Iterator[int]:
    """Runs the server; yields its port."""
    process = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr is not None
    seen = []
    try:
        for line in process.stderr:
            seen.append(line)
            if started := _STARTED.search(line):
                # It writes a line for each request, and waits where nobody reads them.
                threading.Thread(target=lambda: [None for _ in process.stderr or ()], daemon=True).start()
                yield int(started[1])
                return
        raise AssertionError(f"moto's server has not started: {''.join(seen)}")
    finally:
        process.terminate()
        process.wait()
