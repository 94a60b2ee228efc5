"""Task groups whose errors can be told apart."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


@asynccontextmanager
async def first_error(tasks: asyncio.TaskGroup) -> AsyncIterator[asyncio.TaskGroup]:
    """A task group that raises its first error as it is, not wrapped in a group, so that callers can name it."""
    try:
        async with tasks:
            yield tasks
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from group
