"""Loads and calls custom verifiers, in a process that can be killed."""

import asyncio
import hashlib
import importlib
import inspect
import numbers
import reprlib
import types
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import psutil

from services.reward.common.verdict import Broken, Unscorable, Verdict
from services.reward.custom.code import Code, Unusable
from services.reward.custom.conventions import adapted
from services.reward.custom.excerpt import excerpt
from services.reward.process.limits import MEMORY_LIMIT_BYTES
from services.reward.process.source import error_line, import_source

NAMES = ("completion", "label", "prompt", "messages", "token_ids", "finish_reason", "prompt_id")
"""Parameters that a function may have. It is called with the parameters that it has, by name."""
_MAX_RESIDENT_BYTES = MEMORY_LIMIT_BYTES // 2


@dataclass(frozen=True)
class LoadedVerifier:
    """A function that can be called."""

    code: Code
    call: Callable[..., Any]
    parameters: frozenset[str]
    """The parameters of `NAMES` that it takes."""
    digest: str
    description: str

    @property
    def file(self) -> str:
        """The function's file, as in tracebacks."""
        return self.code.path or getattr(getattr(self.call, "__code__", None), "co_filename", "")

    def judge(self, arguments: Mapping[str, Any]) -> Verdict:
        """Calls the function. Raises `Unscorable`, `Broken`, and what the function raises."""
        value = self.call(**{name: arguments[name] for name in self.parameters})
        if inspect.isawaitable(value):
            value = _runner().run(_awaited(value))
        if value is None:
            raise Unscorable(f"{self.code.function} returned None: the completion cannot be judged")
        return Verdict(_number(value, self.code.function))


class LoadedVerifiers:
    """The custom verifiers of one process."""

    def __init__(self) -> None:
        self._codes: dict[str, Code] = {}
        self._loaded: dict[str, LoadedVerifier | Unusable] = {}
        self._process = psutil.Process()
        self.why_replace = ""
        """The reason to replace this process, if a function left memory or open files behind; else empty."""

    def __contains__(self, name: str) -> bool:
        return name in self._codes

    def use(self, code: Code) -> None:
        """Uses a verifier, or a new version of it, from the next call on."""
        self._codes[code.name] = code
        self._loaded.pop(code.name, None)

    def is_loaded(self, name: str) -> bool:
        return name in self._loaded

    def load(self, name: str) -> None:
        """Imports the function. `judge` raises the error of a failed import."""
        try:
            self._loaded[name] = load(self._codes[name])
        except Unusable as error:
            self._loaded[name] = error

    def digest(self, name: str) -> str:
        """Returns the digest of the code that is called."""
        loaded = self._loaded[name]
        return loaded.digest if isinstance(loaded, LoadedVerifier) else self._codes[name].digest

    def judge(self, name: str, arguments: Mapping[str, Any]) -> Verdict:
        """Calls the function. Raises `Unscorable`, `Broken`, and what the function raises."""
        loaded = self._loaded[name]
        if isinstance(loaded, Unusable):
            raise Broken(str(loaded))
        try:
            return loaded.judge(arguments)
        except MemoryError:
            self.why_replace = f"{name} ran out of memory"
            raise
        finally:
            self._look_for_leaks(name)

    def error_line(self, name: str, error: BaseException) -> str:
        """Returns an error as one line, with the line number in the function's file."""
        loaded = self._loaded[name]
        return error_line(error, loaded.file if isinstance(loaded, LoadedVerifier) else "")

    def _look_for_leaks(self, name: str) -> None:
        try:
            if (used := self._process.memory_info().rss) > _MAX_RESIDENT_BYTES:
                self.why_replace = f"it uses {used >> 20} MiB of memory after {name}"
        except OSError as error:  # The process has too many open files to read its own memory use.
            self.why_replace = f"{error.strerror} after {name}"


def load(code: Code) -> LoadedVerifier:
    """Imports the function. Raises `Unusable`."""
    module = _module_of_file(code) if code.path else _installed(code)
    found = getattr(module, code.function, None)
    if not callable(found):
        functions = [name for name, item in vars(module).items() if inspect.isfunction(item)]
        raise Unusable(
            "function" if code.path else "entry_point",
            f"{code.path or code.module} has no function {code.function!r}; it has: {', '.join(functions) or 'none'}",
        )
    _check_origin(found, code)
    call = adapted(found, code)
    return LoadedVerifier(
        code, call, _parameters(call, code), code.digest or _digest_of(module), inspect.getdoc(found) or ""
    )


def _module_of_file(code: Code) -> types.ModuleType:
    try:
        # A reward function of TRL is usually in the script that trains with it.
        is_script = code.convention.startswith("trl")
        source = excerpt(code.source, code.function, code.path) if is_script else code.source
    except LookupError as error:
        raise Unusable("function", f"{code.path} has no function {code.function!r}; it has: {error}") from None
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:  # Python raises these for odd source.
        raise Unusable("file", f"{code.path} cannot be imported: {error_line(error, code.path)}") from None
    try:
        return import_source(f"shoal_verifier_{code.name}", code.path, source)
    except (Exception, SystemExit) as error:
        raise Unusable("file", f"{code.path} cannot be imported: {error_line(error, code.path)}") from error


def _installed(code: Code) -> types.ModuleType:
    try:
        return importlib.import_module(code.module)
    except (Exception, SystemExit) as error:
        raise Unusable("entry_point", f"{code.module} cannot be imported: {error_line(error, '')}") from error


def _check_origin(function: Callable[..., Any], code: Code) -> None:
    """Raises `Unusable` for a name that the module only imports from a package that is not allowed."""
    origin = str(getattr(function, "__module__", None) or "nowhere")
    if code.defined_in and not any(f"{origin}.".startswith(f"{package}.") for package in code.defined_in):
        raise Unusable(
            "entry_point",
            f"{code.module} only imports {code.function!r}, which {origin} defines: name a function that is defined in "
            f"a package that --allow-verifier-package allows (allowed: {', '.join(code.defined_in)})",
        )


def _digest_of(module: types.ModuleType) -> str:
    """Returns the digest of the module's file, without its imports."""
    file = getattr(module, "__file__", None)
    return hashlib.sha256(Path(file).read_bytes()).hexdigest() if file else ""


def _parameters(function: Callable[..., Any], code: Code) -> frozenset[str]:
    """Returns the arguments that a function takes. Raises `Unusable` if it needs an argument outside `NAMES`."""
    field = "function" if code.path else "entry_point"
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError) as error:
        raise Unusable(field, f"the parameters of {code.function} cannot be read: {error}") from None
    found: set[str] = set()
    for parameter in parameters:
        if parameter.kind is parameter.VAR_KEYWORD:
            found.update(NAMES)
        elif parameter.kind is parameter.POSITIONAL_ONLY:
            raise Unusable(field, f"{code.function} takes {parameter.name!r} only by position; it must take it by name")
        elif parameter.name in NAMES:
            found.add(parameter.name)
        elif parameter.default is parameter.empty and parameter.kind is not parameter.VAR_POSITIONAL:
            raise Unusable(
                field, f"{code.function} needs {parameter.name!r}, but verifiers get only {', '.join(NAMES)}"
            )
    if "completion" not in found:
        raise Unusable(field, f"{code.function} takes no 'completion', so it could not judge the completion")
    return frozenset(found)


def _number(value: Any, function: str) -> float:
    """Converts a number or bool, including numpy's and torch's. Raises `Broken` for anything else."""
    returned = value
    if not isinstance(value, numbers.Real) and callable(getattr(value, "item", None)):
        try:
            value = value.item()
        except Exception:
            value = returned
    if isinstance(value, numbers.Real):
        try:
            number = float(value)
        except OverflowError:
            number = float("inf")
        if abs(number) < float("inf"):
            return number
    try:
        shown = reprlib.repr(returned)
    except Exception:
        shown = "a value without a representation"
    raise Broken(
        f"{function} returned {shown} ({type(returned).__name__}); it must return a finite number, True or False, or "
        "None for a completion that cannot be judged"
    )


@cache
def _runner() -> asyncio.Runner:
    """Returns the event loop of all calls. With a single loop, a function may keep its connections."""
    return asyncio.Runner()


async def _awaited(value: Awaitable[Any]) -> Any:
    return await value
