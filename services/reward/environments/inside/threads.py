"""A thread for one call: as many as there are agents, and none that keeps its process from ending."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any


def in_thread(work: Callable[[], Any]) -> "asyncio.Future[Any]":
    """Runs something in a thread of its own. Returns the future of what it returns or raises."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Any] = loop.create_future()

    def end(value: Any, error: BaseException | None) -> None:
        if error is None:
            done.set_result(value)
        else:
            done.set_exception(error)
            done.exception()  # Retrieved, even if nobody waits any more.

    def run() -> None:
        value: Any = None
        failure: BaseException | None = None
        try:
            value = work()
        except SystemExit as error:  # As of a script that is called.
            failure = RuntimeError(f"it called exit({error.code})")
        except StopIteration as error:  # No future takes it.
            failure = RuntimeError(f"it raised StopIteration({error.value!r:.80})")
        except BaseException as error:  # A thread that only ends keeps whoever waits for it waiting.
            failure = error
        loop.call_soon_threadsafe(end, value, failure)

    threading.Thread(target=run, daemon=True).start()
    return done
