from pathlib import Path
from typing import Any

import pytest

from shoal.config import load_config
from shoal.errors import InvalidArgument
from tests.support.configs import run_config


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"name": "nothing"}, "give source or server"),
        ({"name": "a b"}, "1 to 63 characters"),
        ({"name": "x", "source": "game.py:Game"}, "absolute path"),
        ({"name": "x", "source": "game"}, "package.module:Class"),
        ({"name": "x", "source": "calculator", "server": "h:1"}, "give server or source"),
        ({"name": "x", "server": "nowhere"}, "host:port"),
        ({"name": "x", "server": "h:1", "settings": {"a": 1}}, "give server or settings"),
        ({"name": "calculator", "interpreter": "python3"}, "absolute path"),
        ({"name": "calculator", "reload": True}, "reload watches a file"),
        ({"name": "calculator", "episodes_per_process": 0}, "greater than or equal to 1"),
        ({"name": "x", "source": "game.py"}, 'add the class, as in "game.py:MyEnvironment"'),
        ({"name": "x", "server": "h:99999"}, "must have a port from 1 to 65535"),
        ({"name": "calculator", "max_memory_gib": 0.01}, "greater than or equal to 0.25"),
        ({"name": "calculator", "max_memory_gib": 1e30}, "less than or equal to 1048576"),
    ],
)
def test_an_environment_that_cannot_be_is_refused_with_its_field(table: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidArgument, match=r"environments\.0") as raised:
        run_config(environments=[table])
    assert says in raised.value.message, raised.value.message


def test_two_environments_of_one_name_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="'calculator'"):
        run_config(environments=[{"name": "calculator"}, {"name": "Calculator"}])


def test_a_relative_file_begins_at_the_folder_of_its_toml_file(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(
        '[model]\npath = "m"\n[[data.sources]]\npath = "d"\n'
        '[[environments]]\nname = "doubling"\nsource = "games/doubling.py:Doubling"\n'
    )
    [environment] = load_config(file).environments
    assert (environment.file, environment.object_name) == (str(tmp_path / "games/doubling.py"), "Doubling")


@pytest.mark.parametrize(
    ("table", "file", "module"),
    [
        ({"name": "calculator"}, "", ""),
        ({"name": "sums", "source": "calculator"}, "", ""),
        ({"name": "x", "source": "/a/b.py:Game"}, "/a/b.py", ""),
        ({"name": "x", "source": "games.chess:Chess"}, "", "games.chess"),
        ({"name": "x", "server": "h:1"}, "", ""),
    ],
)
def test_a_source_is_a_file_a_module_or_built_in(table: dict[str, Any], file: str, module: str) -> None:
    [environment] = run_config(environments=[table]).environments
    assert (environment.file, environment.module) == (file, module)


@pytest.mark.parametrize("table", ["data", "evaluation"])
@pytest.mark.parametrize(
    ("name", "usual"), [("environment_task_column", "environment_task"), ("tools_column", "tools")]
)
def test_a_column_for_an_environment_is_refused_where_there_is_none(name: str, usual: str, table: str) -> None:
    def parse(column: str) -> None:
        run_config(**{table: {"sources": [{"path": "questions.jsonl", name: column}]}})

    parse(usual)
    parse("")
    with pytest.raises(InvalidArgument, match=f"{name} = 'game' "):
        parse("game")
