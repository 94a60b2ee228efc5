"""Commands by id. A command that is sent again is not executed again."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

_T = TypeVar("_T")

MAX_RESULTS = 4
"""The number of results that are kept for repeated commands. These results belong to the newest commands."""


class Once(Generic[_T]):
    """The newest commands of one kind: running commands, and the results of ended commands."""

    def __init__(self) -> None:
        self._commands: OrderedDict[str, asyncio.Future[_T]] = OrderedDict()

    def begin_once(
        self,
        command_id: str,
        begin: "Callable[[], asyncio.Future[_T]]",
        still_holds: Callable[[_T], bool] = lambda result: True,
    ) -> "asyncio.Future[_T]":
        """Returns the command with this id. Begins it first if it is new, has failed, or `still_holds` is False."""
        command = self.find(command_id, still_holds)
        if command is None:
            command = self._commands[command_id] = begin()
            while len(self._commands) > MAX_RESULTS:
                self._commands.popitem(last=False)
        return command

    def find(
        self, command_id: str, still_holds: Callable[[_T], bool] = lambda result: True
    ) -> "asyncio.Future[_T] | None":
        """Returns the command with this id; None if it is new, has failed, or `still_holds` is False."""
        command = self._commands.get(command_id)
        return None if command is None or _is_void(command, still_holds) else command

    def clear(self) -> None:
        self._commands.clear()


def _is_void(command: "asyncio.Future[_T]", still_holds: Callable[[_T], bool]) -> bool:
    return command.done() and (command.exception() is not None or not still_holds(command.result()))
