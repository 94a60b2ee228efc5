"""Finds the class of an environment, and describes it."""

import contextlib
import difflib
import hashlib
import importlib
import inspect
import json
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from services.reward.process.source import error_line, import_source
from shoal.environment import Agent, Environment
from shoal.environment.environment import awaited
from shoal.environment.tools import marked_tools

_BUILT_IN = "services.reward.environments.builtin."
_LIKENESS = 0.7


class CannotLoad(Exception):
    """The code cannot be played as an environment. The message gives the reason."""


class FunctionTools(Environment):
    """Tools made from plain functions."""

    def __init__(self, functions: Sequence[Callable[..., Any]]) -> None:
        self.tools = tuple(functions)


class LoadedEnvironment:
    """The class of an environment, with its settings."""

    def __init__(self, code: Mapping[str, Any], make: Callable[[], Environment], module: types.ModuleType) -> None:
        self.path: str = code["path"] or getattr(module, "__file__", None) or ""
        self.make = make
        self._code = code
        self._found = getattr(module, code["object"])

    async def describe(self) -> dict[str, Any]:
        """Returns the description of the environment for `ListEnvironments`. Raises `CannotLoad` for settings that the
        class does not take, and for tools that cannot be described."""
        name, settings = self._code["object"], self._code["settings"]
        try:
            environment = self.make()
        except BaseException as error:
            if self._code["module"].startswith(_BUILT_IN):
                why = str(error) or type(error).__name__
            else:
                why = _without_folder(error_line(error, self.path), self.path)
            what = f"{name} cannot be made with the settings {settings}" if settings else "needs settings"
            raise CannotLoad(f"{what}: {why}") from error
        try:
            tools = [asdict(tool) for tool, _ in (await environment.listed_tools()).values()]
            json.dumps(tools, ensure_ascii=False, allow_nan=False).encode()  # They are sent in this form.
            unavailable, mistaken = str(environment.unavailable()), misnamed(environment)
        except Exception as error:
            raise CannotLoad(f"the tools of {name} cannot be listed: {error}") from error
        finally:
            with contextlib.suppress(Exception):  # It may rely on `reset`.
                await awaited(environment.close())
        if not unavailable:
            _check_answers(environment, mistaken, has_tools=bool(tools))
        return {
            "description": inspect.getdoc(self._found) if isinstance(self._found, type) else FunctionTools.__doc__,
            "tools": tools,
            # A program cannot be brought back to where it was between two calls of the policy.
            "is_deterministic": bool(environment.is_deterministic) and not isinstance(environment, Agent),
            "is_agent": isinstance(environment, Agent),
            "unavailable": unavailable,
            "misnamed": mistaken,
            "digest": self._code["digest"] or _digest_of(self.path),
        }


def misnamed(environment: Environment) -> dict[str, str]:
    """Returns public attributes of an environment's class that are probably misspelled, each with the name that is
    meant: the class lacks that name, and the attribute fits in its place."""
    cls = type(environment)
    bases = (Agent, *Agent.__mro__)
    names = dict.fromkeys(name for one in cls.__mro__ if one not in bases for name in vars(one))
    tools = {function.__name__ for function in marked_tools(environment)}
    others = {name: getattr(cls, name) for name in names if not name.startswith("_") and name not in tools}
    found: dict[str, str] = {}
    for meant, fits in _READ.items():
        if meant not in names and (isinstance(environment, Agent) or meant != "run"):
            similar = [name for name, value in others.items() if name not in _READ and fits(value)]
            found |= dict.fromkeys(difflib.get_close_matches(meant, similar, n=1, cutoff=_LIKENESS), meant)
    return found


def _takes(num_arguments: int) -> Callable[[Any], bool]:
    def fits(value: Any) -> bool:
        try:
            inspect.signature(value).bind(*[None] * (1 + num_arguments))
        except (TypeError, ValueError):
            return False
        return inspect.isfunction(value)

    return fits


_READ: Mapping[str, Callable[[Any], bool]] = {
    "reset": _takes(2),
    "step": _takes(1),
    "close": _takes(0),
    "run": _takes(3),
    "is_deterministic": lambda value: isinstance(value, bool),
    "tools": lambda value: isinstance(value, list | tuple) and any(map(callable, value)),
}
"""The names that are called or read of an environment, each with a check of its possible values."""


def _check_answers(environment: Environment, mistaken: Mapping[str, str], *, has_tools: bool) -> None:
    """Raises `CannotLoad` for an environment that answers no turn, and for an agent that does nothing."""
    is_agent, cls = isinstance(environment, Agent), type(environment)
    method = "run" if is_agent else "step"
    if getattr(cls, method) is not getattr(Agent, method) or (has_tools and not is_agent):
        return
    what = "" if is_agent else " and no tools: nothing would answer the policy"
    hints = [f"; rename {name!r} to {meant!r}" for name, meant in mistaken.items() if meant in (method, "tools")]
    raise CannotLoad(f"{cls.__name__} has no method {method!r}{what}{''.join(hints)}")


def load(code: Mapping[str, Any]) -> LoadedEnvironment:
    """Imports the code. Raises `CannotLoad`."""
    module = _module(code)
    where, name = Path(code["path"]).name or code["module"], code["object"]
    found = getattr(module, name, None)
    settings = code["settings"]
    if isinstance(found, type) and issubclass(found, Environment):
        _check_origin(found, code)
        return LoadedEnvironment(code, lambda: found(**settings), module)
    if isinstance(found, list | tuple) and found and all(callable(item) for item in found):
        for item in found:
            _check_origin(item, code)
        if settings:
            raise CannotLoad(f"{name} is a list of functions, which takes no settings: remove them")
        return LoadedEnvironment(code, lambda: FunctionTools(found), module)
    what = "" if found is None else f", only a {type(found).__name__} of this name"
    classes = [(key, value) for key, value in vars(module).items() if isinstance(value, type)]
    own = sorted(key for key, cls in classes if issubclass(cls, Environment) and cls.__module__ == module.__name__)
    raise CannotLoad(
        f"{where} has no environment {name!r}{what}; it has: {', '.join(own) or 'none'}. Name a subclass of "
        "shoal.environment.Environment, or a list of functions"
    )


def _module(code: Mapping[str, Any]) -> types.ModuleType:
    try:
        if code["path"]:
            return import_source(f"shoal_environment_{code['name'].replace('-', '_')}", code["path"], code["source"])
        return importlib.import_module(code["module"])
    except BaseException as error:
        where = code["path"] or code["module"]
        why = error_line(error, code["path"])
        raise CannotLoad(_without_folder(f"{where} cannot be imported: {why}", code["path"])) from error


def _without_folder(text: str, path: str) -> str:
    """Returns a text without the file's folder. Callers learn which line of a file is wrong, not where the file is."""
    return text.replace(f"{Path(path).parent}/", "") if path else text


def _check_origin(found: Any, code: Mapping[str, Any]) -> None:
    """Raises `CannotLoad` for an object that the module only imports from a package that is not allowed."""
    origin = str(getattr(found, "__module__", None) or "nowhere")
    if code["defined_in"] and not any(f"{origin}.".startswith(f"{package}.") for package in code["defined_in"]):
        raise CannotLoad(
            f"{code['module']} only imports {code['object']!r}, which {origin} defines: name an object that is defined "
            f"in a package that --allow-verifier-package allows (allowed: {', '.join(code['defined_in'])})"
        )


def _digest_of(path: str) -> str:
    """Returns the digest of a module's file, without its imports."""
    return hashlib.sha256(Path(path).read_bytes()).hexdigest() if path else ""
