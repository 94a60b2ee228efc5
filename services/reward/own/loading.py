"""Functions of yours as verifiers, in the process that calls them."""

import asyncio
import hashlib
import importlib
import inspect
import linecache
import numbers
import reprlib
import sys
import traceback
import types
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from services.reward.own.code import Code, Unusable
from services.reward.own.given import NAMES
from services.reward.verdict import Broken, Unscorable, Verdict


@dataclass(frozen=True)
class Loaded:
    """A function that can be called."""

    code: Code
    call: Callable[..., Any]
    wants: frozenset[str]
    """Those of `given.NAMES` that it takes."""
    digest: str
    description: str

    @property
    def file(self) -> str:
        """Where the function stands, as in tracebacks."""
        return self.code.path or getattr(getattr(self.call, "__code__", None), "co_filename", "")

    def judge(self, given: Mapping[str, Any]) -> Verdict:
        """What the function says of a completion. Raises `Unscorable`, `Broken`, and what it raises itself."""
        value = self.call(**{name: given[name] for name in self.wants})
        if inspect.isawaitable(value):
            value = _runner().run(_awaited(value))
        if value is None:
            raise Unscorable(f"{self.code.function} returned None: the completion cannot be judged")
        return Verdict(_number(value, self.code.function))


def load(code: Code) -> Loaded:
    """Imports the function. Raises `Unusable`."""
    module = _module_of_file(code) if code.path else _installed(code)
    found = getattr(module, code.function, None)
    if not callable(found):
        functions = [name for name, item in vars(module).items() if inspect.isfunction(item)]
        raise Unusable(
            "function" if code.path else "entry_point",
            f"{code.path or code.module} has no function {code.function!r}; it has: {', '.join(functions) or 'none'}",
        )
    wants = _wanted(found, code)
    return Loaded(code, found, wants, code.digest or _digest_of(module), inspect.getdoc(found) or "")


def told(error: BaseException, path: str) -> str:
    """An error in a line: "ValueError at /x/score.py:12: ...", the line being the innermost of the file at `path`."""
    try:
        message = str(error)
    except Exception:
        message = "(its message cannot be had)"
    if isinstance(error, SyntaxError) and error.filename:
        return f"{type(error).__name__} at {error.filename}:{error.lineno}: {error.msg}"
    frames = traceback.extract_tb(error.__traceback__)
    place = next((frame for frame in reversed(frames) if frame.filename == path), frames[-1] if frames else None)
    where = f" at {place.filename}:{place.lineno}" if place else ""
    return f"{type(error).__name__}{where}: {message}" if message else f"{type(error).__name__}{where}"


def _module_of_file(code: Code) -> types.ModuleType:
    name = f"shoal_verifier_{code.name}"
    module = types.ModuleType(name)
    module.__file__ = code.path
    if (folder := str(Path(code.path).parent)) not in sys.path:
        sys.path.append(folder)  # Behind everything else, so that a file called `json.py` hides nothing.
    # A traceback shows lines of what runs, not of what the file holds by then.
    linecache.cache[code.path] = (len(code.source), None, code.source.splitlines(keepends=True), code.path)
    before, sys.modules[name] = sys.modules.get(name), module
    try:
        exec(compile(code.source, code.path, "exec", dont_inherit=True), module.__dict__)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        if before is not None:
            sys.modules[name] = before
        raise Unusable("file", f"{code.path} does not import: {told(error, code.path)}") from error
    return module


def _installed(code: Code) -> types.ModuleType:
    try:
        return importlib.import_module(code.module)
    except (Exception, SystemExit) as error:
        raise Unusable("entry_point", f"{code.module} does not import: {told(error, '')}") from error


def _digest_of(module: types.ModuleType) -> str:
    """That of the module's file; what it imports is not in it."""
    file = getattr(module, "__file__", None)
    return hashlib.sha256(Path(file).read_bytes()).hexdigest() if file else ""


def _wanted(function: Callable[..., Any], code: Code) -> frozenset[str]:
    field = "function" if code.path else "entry_point"
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError) as error:
        raise Unusable(field, f"what {code.function} takes cannot be told: {error}") from None
    wants: set[str] = set()
    for parameter in parameters:
        if parameter.kind is parameter.VAR_KEYWORD:
            wants.update(NAMES)
        elif parameter.kind is parameter.POSITIONAL_ONLY:
            raise Unusable(field, f"{code.function} takes {parameter.name!r} by position only; arguments come by name")
        elif parameter.name in NAMES:
            wants.add(parameter.name)
        elif parameter.default is parameter.empty and parameter.kind is not parameter.VAR_POSITIONAL:
            raise Unusable(
                field, f"{code.function} takes {parameter.name!r}, which there is not; there is {', '.join(NAMES)}"
            )
    if "completion" not in wants:
        raise Unusable(field, f"{code.function} takes no 'completion', so it would judge without looking at any")
    return frozenset(wants)


def _number(value: Any, function: str) -> float:
    """A number, a bool, or what numpy and torch make of either. Raises `Broken` for anything else."""
    given = value
    if not isinstance(value, numbers.Real) and callable(getattr(value, "item", None)):
        try:
            value = value.item()
        except Exception:
            value = given
    if isinstance(value, numbers.Real):
        try:
            number = float(value)
        except OverflowError:
            number = float("inf")
        if abs(number) < float("inf"):
            return number
    try:
        shown = reprlib.repr(given)
    except Exception:
        shown = "what cannot be shown"
    raise Broken(
        f"{function} returned {shown} ({type(given).__name__}); it must return a finite number, True or False, or None "
        "for a completion that cannot be judged"
    )


@cache
def _runner() -> asyncio.Runner:
    """One event loop for all calls, so that a function may keep its connections."""
    return asyncio.Runner()


async def _awaited(value: Awaitable[Any]) -> Any:
    return await value
