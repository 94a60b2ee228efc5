"""An OpenAI-compatible server whose answers follow a script."""

import asyncio
import contextlib
import json
import queue
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.support.hostile_server import listening


def completion(text: str | None, *, finish_reason: str = "stop") -> bytes:
    """Returns a whole HTTP response that contains the judge's text."""
    body: dict[str, Any] = {
        "choices": [{"message": {"role": "assistant", "content": text}, "finish_reason": finish_reason}],
        "usage": {"prompt_tokens": 100, "completion_tokens": 20},
    }
    return http(200, json.dumps(body))


def graded(score: Any) -> bytes:
    return completion(json.dumps({"REASONING": "because", "SCORE": score}))


def http(status: int, body: str, *headers: str) -> bytes:
    raw = body.encode()
    lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(raw)}", "Content-Type: application/json", *headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + raw


Script = Callable[[int, dict[str, Any]], bytes]
"""Maps the number of a request, counted from 0, and its body to the response. An empty one closes the connection."""


@dataclass
class JudgeServer:
    """A server that records its requests. Its script may change at any time."""

    script: Script = lambda number, body: graded(7)
    delay_s: float = 0.0
    """Delay before each response."""
    may_answer: asyncio.Event = field(default_factory=asyncio.Event)
    """Set at the start. While it is clear, requests are recorded and responses wait."""
    hangs_after: int | None = None
    """Number of bytes of each response after which the server goes silent."""
    cuts_after: int | None = None
    """Number of bytes of each response after which the server closes the connection."""
    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    num_open: int = 0
    most_open: int = 0
    url: str = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError):
            while head := (await reader.readuntil(b"\r\n\r\n")).decode():
                first, *lines = head.strip().split("\r\n")
                headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
                body = json.loads(await reader.readexactly(int(headers["content-length"])))
                number = len(self.requests)
                self.requests.append(body)
                self.headers.append(headers)
                self.paths.append(first)
                self.num_open += 1
                self.most_open = max(self.most_open, self.num_open)
                try:
                    await self.may_answer.wait()
                    await asyncio.sleep(self.delay_s)
                    answer = self.script(number, body)
                finally:
                    self.num_open -= 1
                writer.write(answer[: self.cuts_after or self.hangs_after])
                await writer.drain()
                if self.hangs_after is not None:
                    await asyncio.sleep(30)
                if not answer or self.cuts_after is not None:
                    return


@contextlib.asynccontextmanager
async def judge_server() -> AsyncIterator[JudgeServer]:
    server = JudgeServer()
    server.may_answer.set()
    async with listening(server.serve) as url:
        server.url = f"{url}/v1"
        yield server


@contextlib.contextmanager
def judge_server_beside() -> Iterator[JudgeServer]:
    """Runs a server in a separate thread, for tests without an event loop."""
    started: queue.Queue[tuple[JudgeServer, asyncio.AbstractEventLoop, asyncio.Event]] = queue.Queue()

    async def serve() -> None:
        async with judge_server() as server:
            ended = asyncio.Event()
            started.put((server, asyncio.get_running_loop(), ended))
            await ended.wait()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    server, loop, ended = started.get(timeout=30)
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join()
