"""Shows and changes files by the commands of the tool `str_replace_editor`: reads {"command", "path", ...} from stdin,
and prints the policy's answer. Ends with 1 if the command cannot be done."""

import inspect
import json
import os
import stat
import sys
from collections.abc import Callable
from typing import Any

_MAX_BYTES = 1 << 20
_SHOWN_LINES = 4
"""Lines that are shown before and after a change."""


class Wrong(Exception):
    """The command cannot be carried out. The message gives the reason."""


def view(path: str, view_range: list[int] | None = None) -> str:
    """Shows a file with line numbers, or lists a folder."""
    if os.path.isdir(path):
        return "\n".join(sorted(f"{name}/" if os.path.isdir(f"{path}/{name}") else name for name in os.listdir(path)))
    lines = _read(path).splitlines()
    first, last = view_range or (1, -1)
    last = len(lines) if last == -1 else last
    if not (1 <= first <= max(1, len(lines)) and first <= max(last, 1)):
        raise Wrong(f"view_range: {path} has the lines 1 to {len(lines)}")
    return _numbered(lines, first, min(last, len(lines)))


def create(path: str, file_text: str) -> str:
    """Writes a file, and makes its folders."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    _write(path, file_text)
    return f"{path} has been written."


def str_replace(path: str, old_str: str, new_str: str = "") -> str:
    """Replaces a text that occurs once in the file."""
    text = _read(path)
    found = text.count(old_str) if old_str else 0
    if found != 1:
        raise Wrong(f"old_str is in {path} {found} times: it must be there once")
    _write(path, text.replace(old_str, new_str))
    line = text[: text.index(old_str)].count("\n") + 1
    return _changed(path, line, line + new_str.count("\n"))


def insert(path: str, insert_line: int, new_str: str) -> str:
    """Inserts lines after a line; 0 is the beginning."""
    lines = _read(path).splitlines()
    if not 0 <= insert_line <= len(lines):
        raise Wrong(f"insert_line must be from 0 to {len(lines)}")
    added = new_str.splitlines()
    lines[insert_line:insert_line] = added
    _write(path, "\n".join(lines) + "\n")
    return _changed(path, insert_line + 1, insert_line + len(added))


_COMMANDS: dict[str, Callable[..., str]] = {one.__name__: one for one in (view, create, str_replace, insert)}


def _read(path: str) -> str:
    # Reading a pipe might never end.
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise Wrong(f"{path} is no file")
    with open(path, "rb") as file:
        data = file.read(_MAX_BYTES + 1)
    if len(data) > _MAX_BYTES:
        raise Wrong(f"{path} is longer than 1 MiB")
    return data.decode("utf-8", "replace")


def _write(path: str, text: str) -> None:
    with open(path, "wb") as file:
        file.write(text.encode("utf-8", "replace"))


def _numbered(lines: list[str], first: int, last: int) -> str:
    return "\n".join(f"{number:6}\t{line}" for number, line in enumerate(lines[first - 1 : last], start=first))


def _changed(path: str, first: int, last: int) -> str:
    lines = _read(path).splitlines()
    shown = _numbered(lines, max(1, first - _SHOWN_LINES), min(len(lines), last + _SHOWN_LINES))
    return f"{path} has been changed:\n{shown}"


def main() -> int:
    asked: dict[str, Any] = json.load(sys.stdin)
    path = asked["path"] = os.path.abspath(asked["path"])
    command = _COMMANDS[asked["command"]]
    signature = inspect.signature(command)
    given = {name: value for name, value in asked.items() if name in signature.parameters}
    try:
        signature.bind(**given)
        print(command(**given))
    except Wrong as error:
        print(f"error: {error}")
    except OSError as error:
        print(f"error: {error.filename or path}: {error.strerror}")
    except (TypeError, ValueError) as error:
        print(f"error: {asked['command']} cannot be called so: {error}")
    else:
        return 0
    return 1


if __name__ == "__main__":
    sys.exit(main())
