"""The `shoal` command as a whole: its version, and its help."""

from collections.abc import Iterator

import pytest
from typer import Context
from typer.core import TyperGroup
from typer.main import get_command

import shoal as library
from services.coordinator.cli.app import app
from tests.support.parsed_commands import Shoal


def _helps(command: object, name: str) -> Iterator[tuple[str, str]]:
    yield name, command.get_help(Context(command, info_name=name))  # type: ignore[attr-defined, arg-type]
    if isinstance(command, TyperGroup):
        for word, inner in command.commands.items():
            yield from _helps(inner, f"{name} {word}")


def test_the_help_of_no_command_is_cut_at_80_columns_or_names_a_type_of_programs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    helps = dict(_helps(get_command(app), "shoal"))
    assert "shoal run rollouts" in helps, list(helps)
    for name, text in helps.items():
        lines = [line for line in text.splitlines() if not line.startswith("Usage:")]
        assert not [line for line in lines if line.endswith("...") or " range>" in line], f"{name}\n{text}"


def test_the_version_is_printed(shoal: Shoal) -> None:
    assert shoal("--version") == (0, f"shoal {library.__version__}\n", "")
