"""The process in which the program runs. It never gets the tests: it sees only the arguments of their calls, and the
examiner trusts only the values that it returns."""

import builtins
import operator
import os
import resource
import sys
import types
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from services.reward.sandbox.inside import seccomp
from services.reward.sandbox.inside.channel import Channel, Message
from services.reward.sandbox.inside.namespaces import WRITABLE
from services.reward.sandbox.inside.values import decode, encode, plain_copy

CHANNEL_FD = 3
FUNCTIONS, PROGRAM, OUTPUT = "functions", "program", "output"
_MAX_MESSAGE_BYTES = 64 << 20
_MODULE = "solution"
_MUTABLE = (list, dict, set, bytearray)


def _run_coroutine(coroutine: Coroutine[Any, Any, Any]) -> Any:
    # Few programs need this module, and each module that is loaded before the fork makes every fork slower.
    import asyncio

    return asyncio.run(coroutine)


_OPERATIONS: dict[str, Callable[..., Any]] = {
    "call": lambda function, *args, **kwargs: function(*args, **kwargs),
    "getattr": getattr,
    "setattr": setattr,
    "delattr": delattr,
    "iter": iter,
    "next": next,
    "len": len,
    "bool": bool,
    "str": str,
    "repr": repr,
    "int": int,
    "float": float,
    "format": format,
    "reversed": reversed,
    "isinstance": isinstance,
    "issubclass": issubclass,
    "await": _run_coroutine,
    "enter": lambda manager: manager.__enter__(),
    "exit": lambda manager: manager.__exit__(None, None, None),
    **{
        name: getattr(operator, name)
        for name in (
            "eq", "ne", "lt", "le", "gt", "ge", "add", "sub", "mul", "matmul", "truediv", "floordiv", "mod", "pow",
            "and_", "or_", "xor", "lshift", "rshift", "neg", "pos", "invert", "abs", "getitem", "setitem", "delitem",
            "contains",
        )
    },
}  # fmt: skip


def main(kind: str, limits: dict[str, int]) -> int:
    """Runs the program that comes over the channel, and returns the exit status. Called in a new process."""
    _confine(limits)
    channel = Channel(CHANNEL_FD, CHANNEL_FD, max_bytes=_MAX_MESSAGE_BYTES)
    program = channel.receive()["program"]
    if kind == PROGRAM:
        os.close(CHANNEL_FD)
        return _run_program(program)
    _Server(channel).run(program)
    return 0


def _confine(limits: dict[str, int]) -> None:
    os.closerange(CHANNEL_FD + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    for name, value in limits.items():
        number = getattr(resource, f"RLIMIT_{name}")
        hard = resource.getrlimit(number)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(number, (value, value))
    seccomp.confine()
    os.chdir(WRITABLE)
    sys.argv = [f"{_MODULE}.py"]
    utf8: dict[str, Any] = {"encoding": "utf-8", "errors": "surrogateescape", "closefd": False}
    # `site` normally adds these, but it is not imported, since it also adds installed packages.
    for name in ("exit", "quit"):
        setattr(builtins, name, sys.exit)
    for name, descriptor, mode in (("stdin", 0, "r"), ("stdout", 1, "w"), ("stderr", 2, "w")):
        stream = open(descriptor, mode, **utf8)  # noqa: SIM115
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _module(name: str) -> types.ModuleType:
    module = types.ModuleType(name)
    module.__dict__["__builtins__"] = builtins
    sys.modules[name] = module
    return module


def _run_program(program: str) -> int:
    """Runs a script as the interpreter does; returns the exit status."""
    status = 0
    try:
        exec(compile(program, sys.argv[0], "exec", dont_inherit=True), _module("__main__").__dict__)
    except SystemExit as stop:
        status = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:
        status = 1
    try:
        sys.stdout.flush()
    except BaseException:
        status = status or 1
    return status & 0xFF


class _Server:
    """Runs the examiner's requests on the program's objects."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._objects: list[Any] = []
        self._module = _module(_MODULE)

    def run(self, program: str) -> None:
        try:
            exec(compile(program, sys.argv[0], "exec", dont_inherit=True), self._module.__dict__)
        except BaseException as error:
            self._channel.send(self._raised(error))
            return
        self._channel.send({"value": None})
        while True:
            self._channel.send(self._answer(self._channel.receive()))

    def _answer(self, request: Message) -> Message:
        try:
            if "names" in request:
                present = {name: vars(self._module)[name] for name in request["names"] if name in vars(self._module)}
                return {"value": {name: self._encode(value) for name, value in present.items()}}
            args = [decode(item, self._dereference) for item in request["args"]]
            kwargs = {name: decode(item, self._dereference) for name, item in request.get("kwargs", {}).items()}
            value = _OPERATIONS[request["do"]](*args, **kwargs)
            reply: Message = {"value": self._encode(value)}
            changed = {
                str(index): after
                for index, (item, before) in enumerate(zip(args, request["args"], strict=True))
                if isinstance(item, _MUTABLE) and (after := self._encode(item)) != before
            }
            return {**reply, "changed": changed} if changed else reply
        except BaseException as error:
            return self._raised(error)

    def _raised(self, error: BaseException) -> Message:
        try:
            arguments = self._encode(list(error.args))
        except BaseException:
            arguments = []
        return {"raised": _lineage(type(error)), "arguments": arguments}

    def _encode(self, value: Any) -> Any:
        return encode(value, self._refer)

    def _refer(self, value: Any) -> dict[str, Any]:
        if isinstance(value, _OnExaminer):
            return {"callback": value.number, "is_own": True}
        self._objects.append(value)
        number = len(self._objects) - 1
        if isinstance(value, type) and issubclass(value, BaseException):
            return {"object": number, "exception": _lineage(value)}
        kind = "coroutine" if isinstance(value, types.CoroutineType) else type(value).__name__
        copy = plain_copy(value)
        holds = {} if copy is None else {"holds": self._encode(copy)}
        return {"object": number, "kind": kind, **holds}

    def _dereference(self, data: dict[str, Any]) -> Any:
        if "object" in data:
            return self._objects[data["object"]]
        if "builtin" in data:
            return getattr(builtins, data["builtin"])
        if "iterator" in data:
            return self._iterate(_OnExaminer(self, data["iterator"]))
        return _OnExaminer(self, data["callback"])

    def _iterate(self, advance: "_OnExaminer") -> Iterator[Any]:
        while True:
            try:
                item = advance()
            except StopIteration:
                return
            yield item

    def call_examiner(self, number: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Calls a function of the test, which may send requests in turn."""
        self._channel.send(
            {
                "callback": number,
                "args": [self._encode(item) for item in args],
                "kwargs": {name: self._encode(item) for name, item in kwargs.items()},
            }
        )
        while True:
            message = self._channel.receive()
            if "value" in message:
                return decode(message["value"], self._dereference)
            if "raised" in message:
                named = getattr(builtins, message["raised"][0], Exception)
                raise named(message["text"]) if message["text"] else named()
            self._channel.send(self._answer(message))


class _OnExaminer:
    """A function of the test."""

    def __init__(self, server: _Server, number: int) -> None:
        self._server, self.number = server, number

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._server.call_examiner(self.number, args, kwargs)


def _lineage(kind: type) -> list[str]:
    """Returns the names of a class and its base classes."""
    return [base.__name__ for base in kind.__mro__ if base is not object]
