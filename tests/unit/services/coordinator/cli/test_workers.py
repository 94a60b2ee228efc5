"""`shoal workers` against a coordinator that follows a script, over real gRPC."""

import pytest

from tests.support.parsed_commands import Shoal

pytestmark = pytest.mark.usefixtures("scripted")


def test_workers_are_one_line_each_on_a_pipe(shoal: Shoal) -> None:
    lines = [line.split() for line in shoal("workers")[1].splitlines()]
    assert ["generator", "generator-1", "10.0.0.1:7000", "STALE", "2+0/64"] in [line[:5] for line in lines], lines
