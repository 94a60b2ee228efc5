"""The examiner's view of the program's objects.

Tests run in the examiner. They call the program's functions over a channel, and get plain data back. So comparisons
happen out of the program's reach, and a program passes a test only by returning the expected values. An object that is
not plain data stays with the program and equals no plain data, whatever its own `__eq__` returns.
"""

import builtins
import types
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from services.reward.sandbox.inside.channel import Channel, Closed, Message, Unreadable
from services.reward.sandbox.inside.values import decode, encode

_NOTHING = object()
_KINDS = {"function": types.FunctionType, "generator": types.GeneratorType}


class CannotCross(Exception):
    """A test passes the program an object that cannot be copied to another process."""


class Subject:
    """The process that runs the program."""

    def __init__(self, channel: Channel, deadline: float) -> None:
        """`deadline` is a time of time.monotonic()."""
        self._channel, self._deadline = channel, deadline
        self._callbacks: list[Callable[..., Any]] = []
        self._exceptions: dict[str, type[BaseException]] = {}
        self.failure: Exception | None = None
        """The reason why the conversation has ended, if it has."""

    def load(self, program: str) -> None:
        """Runs the program's own statements. Raises what they raise."""
        self._send({"program": program})
        self._reply()

    def names(self, wanted: list[str]) -> dict[str, Any]:
        """Returns the values of the wanted names that the program has bound."""
        self._send({"names": wanted})
        found = self._reply().get("value")
        if not isinstance(found, dict):
            raise Unreadable("no names")
        return {name: self.decode(found[name]) for name in wanted if name in found}

    def do(self, operation: str, *args: Any, **kwargs: Any) -> Any:
        """Runs an operation in the program's process, and returns its result.

        Copies the program's changes to lists, dictionaries and sets back to `args`. Raises the program's exceptions,
        `TimeoutError`, `Closed` or `Unreadable`.
        """
        request = {
            "do": operation,
            "args": [self.encode(item) for item in args],
            "kwargs": {name: self.encode(item) for name, item in kwargs.items()},
        }
        self._send(request)
        reply = self._reply()
        try:
            for index, after in reply.get("changed", {}).items():
                _update(args[int(index)], self.decode(after))
        except (ValueError, TypeError, AttributeError, LookupError) as error:
            raise Unreadable(f"changed arguments: {error}") from None
        return self.decode(reply.get("value"))

    def encode(self, value: Any) -> Any:
        return encode(value, self._refer)

    def decode(self, data: Any) -> Any:
        try:
            return decode(data, self._dereference)
        except (ValueError, TypeError, LookupError, ArithmeticError, RecursionError) as error:
            raise Unreadable(f"no value: {error}") from None

    def _send(self, message: Message) -> None:
        try:
            self._channel.send(message, deadline=self._deadline)
        except (Closed, TimeoutError) as error:
            self.failure = error
            raise

    def _receive(self) -> Message:
        try:
            return self._channel.receive(deadline=self._deadline)
        except (Closed, Unreadable, TimeoutError) as error:
            self.failure = error
            raise

    def _reply(self) -> Message:
        while True:
            message = self._receive()
            if "callback" in message:
                self._send(self._called_back(message))
            elif "raised" in message:
                raise self._exception(message)
            else:
                return message

    def _called_back(self, message: Message) -> Message:
        """Calls a function of the test for the program, which can only call the test's objects."""
        try:
            function = self._callbacks[message["callback"]]
            args = [self.decode(item) for item in message["args"]]
            kwargs = {str(name): self.decode(item) for name, item in message["kwargs"].items()}
        except (LookupError, TypeError, AttributeError) as error:
            raise Unreadable(f"a malformed call: {error}") from None
        try:
            return {"value": self.encode(function(*args, **kwargs))}
        except CannotCross:
            raise
        except Exception as error:
            return {"raised": [type(error).__name__], "text": str(error)}

    def _exception(self, message: Message) -> BaseException:
        kind = self._exception_class(message["raised"])
        arguments = self.decode(message.get("arguments", []))
        try:
            return kind(*arguments)
        except Exception:
            return kind()

    def _exception_class(self, lineage: Any) -> type[BaseException]:
        """Returns an exception class; for a class of the program, a stand-in with the same name and base."""
        if not isinstance(lineage, list) or not lineage or not all(isinstance(name, str) for name in lineage):
            raise Unreadable("a malformed exception")
        for name in lineage:
            known = getattr(builtins, name, None)
            if isinstance(known, type) and issubclass(known, BaseException):
                break
        else:
            known = Exception
        name = lineage[0]
        if name == known.__name__:
            return known
        # Accept any arguments: the base class's constructor may not.
        return self._exceptions.setdefault(name, type(name[:100], (known,), {"__init__": lambda self, *args: None}))

    def _refer(self, value: Any) -> dict[str, Any]:
        if isinstance(value, Remote):
            return {"object": object.__getattribute__(value, "_number")}
        if isinstance(value, type) or getattr(value, "__module__", "") == "builtins":
            name = getattr(value, "__name__", "")
            if getattr(builtins, name, None) is value:
                return {"builtin": name}
        if callable(value):
            self._callbacks.append(value)
            return {"callback": len(self._callbacks) - 1}
        if isinstance(value, Iterator):
            self._callbacks.append(partial(next, value))
            return {"iterator": len(self._callbacks) - 1}
        raise CannotCross(f"an object of class {type(value).__name__} cannot be handed to the program")

    def _dereference(self, data: dict[str, Any]) -> Any:
        if "callback" in data:
            return self._callbacks[data["callback"]]
        if "exception" in data:
            return self._exception_class(data["exception"])
        number, kind = data["object"], data["kind"]
        if not isinstance(number, int) or not isinstance(kind, str):
            raise ValueError("a malformed reference")
        remote = Remote(self, number, kind, self.decode(data["holds"]) if "holds" in data else _NOTHING)
        return _awaitable(self, remote) if kind == "coroutine" else remote


async def _awaitable(subject: Subject, remote: "Remote") -> Any:
    return subject.do("await", remote)


def _update(argument: Any, after: Any) -> None:
    """Copies the program's changes of an argument back to it."""
    if isinstance(argument, list | bytearray):
        argument[:] = after
    elif isinstance(argument, dict | set):
        argument.clear()
        argument.update(after)


def _forward(operation: str, kind: type = object) -> Callable[..., Any]:
    def method(self: "Remote", *args: Any) -> Any:
        value = self._subject.do(operation, self, *args)
        if not isinstance(value, kind):
            raise TypeError(f"{operation} of the program's {self._kind} is not a {kind.__name__}")
        return value

    return method


def _calculate(operation: str, *, reflected: bool = False) -> Callable[..., Any]:
    """Returns an arithmetic operation. Its result with a difference is a difference too."""

    def method(self: "Remote", *others: Any) -> Any:
        operands = (*others, self) if reflected else (self, *others)
        result = self._subject.do(operation, *operands)
        if any(isinstance(operand, Remote) and operand._is_difference for operand in operands):
            _as_object(self, result)._be_difference()
        return result

    return method


def _hold_against(operation: str, *, reflected: bool = False) -> Callable[..., Any]:
    """Returns an operation with which tests measure the distance from the expected result: "abs(f(x) - 1.5) < 1e-6".
    It shows the program's object the expected number, so the program does not decide the distance."""
    calculate = _calculate(operation, reflected=reflected)

    def method(self: "Remote", other: Any) -> Any:
        result = calculate(self, other)
        if isinstance(other, int | float | complex):
            _as_object(self, result)
            if operation == "sub":
                result._be_difference()
        return result

    return method


def _measure(operation: str, kind: type = object) -> Callable[..., Any]:
    """Returns an operation that measures the size of an object of the program, unless the object is a difference."""

    def method(self: "Remote") -> Any:
        if self._is_difference:
            raise TypeError(f"the program's {self._kind} is not a number")
        return _forward(operation, kind)(self)

    return method


def _as_object(operand: "Remote", result: Any) -> "Remote":
    """Returns the result of a calculation with an object of the program. Raises `TypeError` for plain data."""
    if not isinstance(result, Remote):
        raise TypeError(f"the program's {operand._kind} is not a number")
    return result


def _compare(operation: str, compare: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """Returns a comparison. The program compares two of its objects; this process compares one with plain data."""

    def method(self: "Remote", other: Any) -> Any:
        if not isinstance(other, Remote):
            return NotImplemented if self._holds is _NOTHING else compare(self._holds, other)
        if self._holds is not _NOTHING and other._holds is not _NOTHING:
            return compare(self._holds, other._holds)
        return self._subject.do(operation, self, other)

    return method


class Remote:
    """An object of the program."""

    _subject: Subject
    _number: int
    _kind: str
    _holds: Any
    _is_difference = False

    def __init__(self, subject: Subject, number: int, kind: str, holds: Any) -> None:
        for name, value in (("_subject", subject), ("_number", number), ("_kind", kind), ("_holds", holds)):
            object.__setattr__(self, name, value)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """The class, for tests that check whether a result is a generator."""
        return _KINDS.get(object.__getattribute__(self, "_kind"), Remote)

    def _be_difference(self) -> None:
        object.__setattr__(self, "_is_difference", True)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._subject.do("call", self, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return self._subject.do("getattr", self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._subject.do("setattr", self, name, value)

    def __delattr__(self, name: str) -> None:
        self._subject.do("delattr", self, name)

    def __exit__(self, *exception: Any) -> Any:
        return self._subject.do("exit", self)

    def __hash__(self) -> int:
        return hash(self._number) if self._holds is _NOTHING else hash(self._holds)

    def __instancecheck__(self, instance: Any) -> bool:
        return isinstance(instance, Remote) and bool(self._subject.do("isinstance", instance, self))

    def __subclasscheck__(self, kind: Any) -> bool:
        return isinstance(kind, Remote) and bool(self._subject.do("issubclass", kind, self))

    __eq__ = _compare("eq", lambda left, right: left == right)
    __ne__ = _compare("ne", lambda left, right: left != right)
    __lt__ = _compare("lt", lambda left, right: left < right)
    __le__ = _compare("le", lambda left, right: left <= right)
    __gt__ = _compare("gt", lambda left, right: left > right)
    __ge__ = _compare("ge", lambda left, right: left >= right)
    __enter__, __iter__, __next__ = _forward("enter"), _forward("iter"), _forward("next")
    __contains__ = _forward("contains", bool)
    __str__, __repr__, __format__ = _forward("str", str), _forward("repr", str), _forward("format", str)
    __int__, __float__, __abs__ = _measure("int"), _measure("float"), _measure("abs")
    __len__, __bool__ = _measure("len", int), _measure("bool", bool)
    __getitem__, __setitem__, __delitem__ = _forward("getitem"), _forward("setitem"), _forward("delitem")
    __reversed__ = _forward("reversed")
    __neg__, __pos__, __invert__ = _calculate("neg"), _calculate("pos"), _calculate("invert")
    __add__, __radd__ = _calculate("add"), _calculate("add", reflected=True)
    __sub__, __rsub__ = _hold_against("sub"), _hold_against("sub", reflected=True)
    __mul__, __rmul__ = _calculate("mul"), _calculate("mul", reflected=True)
    __matmul__, __rmatmul__ = _calculate("matmul"), _calculate("matmul", reflected=True)
    __truediv__, __rtruediv__ = _hold_against("truediv"), _hold_against("truediv", reflected=True)
    __floordiv__, __rfloordiv__ = _hold_against("floordiv"), _hold_against("floordiv", reflected=True)
    __mod__, __rmod__ = _hold_against("mod"), _hold_against("mod", reflected=True)
    __pow__, __rpow__ = _calculate("pow"), _calculate("pow", reflected=True)
    __and__, __rand__ = _calculate("and_"), _calculate("and_", reflected=True)
    __or__, __ror__ = _calculate("or_"), _calculate("or_", reflected=True)
    __xor__, __rxor__ = _calculate("xor"), _calculate("xor", reflected=True)
    __lshift__, __rlshift__ = _calculate("lshift"), _calculate("lshift", reflected=True)
    __rshift__, __rrshift__ = _calculate("rshift"), _calculate("rshift", reflected=True)
