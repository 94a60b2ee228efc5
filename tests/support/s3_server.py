"""A real S3 server: moto's, as a process of its own on a free port."""

import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.support.cutting_proxy import CuttingProxy, cutting_proxy

_STARTED = re.compile(r"Running on http://127\.0\.0\.1:(\d+)")


@contextmanager
def s3_server() -> Iterator[int]:
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


@contextmanager
def s3_by_proxy(port: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[CuttingProxy]:
    """Leads clients that read the environment to a server by a proxy, which may be cut."""
    with cutting_proxy(port) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{proxy.port}")
        monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "nothing")
        monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        yield proxy
