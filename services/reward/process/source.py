"""Imports Python source, and names its lines in errors. Needs only the standard library, since other interpreters also
run it."""

import linecache
import sys
import traceback
import types
from pathlib import Path


def import_source(name: str, path: str, source: str) -> types.ModuleType:
    """Imports the text of the file `path` as the module `name`. Raises what the code raises."""
    module = types.ModuleType(name)
    module.__file__ = path
    if (folder := str(Path(path).parent)) not in sys.path:
        sys.path.append(folder)  # At the end, so that a file called `json.py` hides nothing.
    # Tracebacks must show the lines that run, not the lines that the file has later.
    linecache.cache[path] = (len(source), None, source.splitlines(keepends=True), path)
    before, sys.modules[name] = sys.modules.get(name), module
    try:
        exec(compile(source, path, "exec", dont_inherit=True), module.__dict__)
    except BaseException:
        del sys.modules[name]
        if before is not None:
            sys.modules[name] = before
        raise
    return module


def error_line(error: BaseException, path: str) -> str:
    """Returns an error as one line, "ValueError at /x/score.py:12: ...", with the innermost line of the file `path`."""
    try:
        message = str(error)
    except Exception:
        message = "(its message raises another error)"
    if isinstance(error, SyntaxError) and error.filename:
        return f"{type(error).__name__} at {error.filename}:{error.lineno}: {error.msg}"
    frames = traceback.extract_tb(error.__traceback__)
    at = next((frame for frame in reversed(frames) if frame.filename == path), frames[-1] if frames else None)
    where = f" at {at.filename}:{at.lineno}" if at else ""
    return f"{type(error).__name__}{where}: {message}" if message else f"{type(error).__name__}{where}"
