"""Commands of `shoal`: those that messages tell, read as the command line reads them, and those that a test runs."""

import shlex
from collections.abc import Callable
from typing import Any

from typer import Context
from typer.core import TyperGroup
from typer.main import get_command

from services.coordinator.cli.app import app

Shoal = Callable[..., tuple[int, str, str]]
"""Runs `shoal` with these arguments; returns its exit code, standard output, and standard error."""


def parse_command(command: str) -> dict[str, Any]:
    """Returns the parameters of a command of `shoal`, and runs nothing. Raises the usage error of a wrong one."""
    program, *arguments = shlex.split(command)
    assert program == "shoal", command
    found = get_command(app)
    while isinstance(found, TyperGroup):
        _, chosen, arguments = found.resolve_command(Context(found), arguments)
        assert chosen is not None, command
        found = chosen
    return found.make_context(command, arguments).params
