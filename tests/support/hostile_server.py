"""HTTP servers whose answers are hostile: malformed, endless, slow, huge, or anything at all."""

import asyncio
import gzip
import json
import random
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any

Answer = Callable[[], AsyncIterator[bytes]]
"""Makes the bytes of one connection, as they are to be sent."""
_CHUNK = b"x" * 65536


@asynccontextmanager
async def listening(
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[str]:
    """Serves each connection to a loopback port until the end of the block; yields "http://host:port"."""
    tasks: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        with suppress(OSError, asyncio.CancelledError):
            await serve(reader, writer)
        tasks.discard(task)
        writer.close()

    listener = await asyncio.start_server(connected, "127.0.0.1", 0, limit=1 << 24)
    try:
        yield f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    finally:
        listener.close()
        for task in tasks:
            task.cancel()


@asynccontextmanager
async def answering(answer: Answer) -> AsyncIterator[str]:
    """Serves on a loopback port, and answers whatever each connection sends first; yields "http://host:port"."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        async for part in answer():
            writer.write(part)
            await writer.drain()

    async with listening(serve) as url:
        yield url


def sends(*parts: bytes) -> Answer:
    async def answer() -> AsyncIterator[bytes]:
        for part in parts:
            yield part

    return answer


def endless(head: bytes, part: bytes, pause_s: float = 0.0) -> Answer:
    async def answer() -> AsyncIterator[bytes]:
        yield head
        while True:
            yield part
            await asyncio.sleep(pause_s)

    return answer


def response(body: bytes, *headers: str, status: str = "200 OK") -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def _bomb(compress: Callable[[bytes], bytes]) -> bytes:
    return compress(b'{"choices": "' + b"0" * (64 << 20) + b'"}')


def hostile_answers() -> dict[str, Answer]:
    ok = b"HTTP/1.1 200 OK\r\n"
    chunked = ok + b"Transfer-Encoding: chunked\r\n\r\n"
    js = "Content-Type: application/json"
    return {
        "closes at once": sends(b""),
        "is no HTTP": sends(b"\x00\xff" * 500),
        "has a status that is none": sends(b"HTTP/1.1 banana\r\n\r\n"),
        "has a status of 1000": sends(response(b"{}", status="1000 X")),
        "has an unknown status": sends(response(b"{}", status="299 X")),
        "has no body and no content": sends(response(b"", status="204 No Content")),
        "is an error with a page": sends(response(b"<html>" + b"x" * 100_000, status="500 X")),
        "is an error with a stack trace": sends(response(b"Traceback: " + b"\xff\x00\n" * 99, status="418 X")),
        "redirects to a file": sends(response(b"", "Location: file:///etc/passwd", status="302 X")),
        "redirects to itself": sends(response(b"", "Location: /v1/chat/completions", status="307 X")),
        "redirects without a place": sends(response(b"", status="301 X")),
        "asks for patience for ever": endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        "has endless headers": endless(ok, b"X-Header: " + b"y" * 1000 + b"\r\n"),
        "has one endless header": endless(ok + b"X-Header: ", _CHUNK),
        "has an endless body": endless(ok + b"\r\n", _CHUNK),
        "has endless chunks": endless(chunked, b"10000\r\n" + _CHUNK + b"\r\n"),
        "drips": endless(ok + b"Content-Length: 1000000\r\n\r\n", b" ", 0.05),
        "drips its headers": endless(b"HTTP/1.1 200 O", b"K", 0.05),
        "says nothing": endless(b"", b"", 0.05),
        "has chunks of no size": sends(chunked + b"banana\r\nxx\r\n0\r\n\r\n"),
        "has a chunk of a huge size": sends(chunked + b"ffffffffffffffff\r\nxx"),
        "announces more than it sends": sends(ok + b"Content-Length: 50\r\n\r\n{}"),
        "announces two lengths": sends(ok + b"Content-Length: 5\r\nContent-Length: 2\r\n\r\n{}"),
        "announces a length that is none": sends(ok + b"Content-Length: -7\r\n\r\n{}"),
        "is a page": sends(response(b"<html>hello</html>", "Content-Type: text/html")),
        "is cut JSON": sends(response(b'{"choices": [', js)),
        "is JSON without end": sends(response(b"[" * 2_000_000, js)),
        "is deep JSON": sends(response(b"[" * 3000 + b"]" * 3000, js)),
        "is wide JSON": sends(response(b"[" + b"0," * 1_500_000 + b"0]", js)),
        "is not UTF-8": sends(response(b'{"choices": "\xff\xfe"}', js)),
        "is UTF-16": sends(response('{"choices": []}'.encode("utf-16"), js)),
        "is a number without end": sends(response(b'{"data": [{"probs": [' + b"9" * 5000 + b"]}]}", js)),
        "is a number beyond doubles": sends(response(b'{"data": [{"probs": [' + b"9" * 400 + b"]}]}", js)),
        "is NaN": sends(response(b'{"data": [{"probs": [NaN, Infinity]}]}', js)),
        "has a lone surrogate": sends(response(b'{"choices": [{"message": {"content": "\\ud800"}}]}', js)),
        "is a gzip bomb": sends(response(_bomb(gzip.compress), js, "Content-Encoding: gzip")),
        "is a deflate bomb": sends(response(_bomb(zlib.compress), js, "Content-Encoding: deflate")),
        "is no gzip": sends(response(b"{}", js, "Content-Encoding: gzip")),
        "retries after centuries": sends(response(b"", "Retry-After: 99999999999", status="429 X")),
        "retries after nonsense": sends(response(b"", "Retry-After: Sun, 99 Foo 99999 99:99:99 GMT", status="503 X")),
    }


def mutated_answers(template: Any, seed: int) -> Iterator[bytes]:
    """Yields JSON like `template`, endlessly, with one to three of its values replaced by any others."""
    rng = random.Random(seed)
    others: list[Any] = [
        None, True, -1, 0, 1e308, 10**400, float("nan"), "", "x" * 200, "\ud800", [], {}, [[]], [None], {"a": 1},
        ["a", 1], "null", "NaN", '{"SCORE": 1e999}', '{"SCORE": [1]}', '{"SCORE": "ten"}',
    ]  # fmt: skip

    def changed(value: Any, budget: list[int]) -> Any:
        if budget[0] and rng.random() < 0.2:
            budget[0] -= 1
            return rng.choice(others)
        if isinstance(value, dict):
            return {key: changed(item, budget) for key, item in value.items() if rng.random() > 0.03}
        return [changed(item, budget) for item in value] if isinstance(value, list) else value

    while True:
        yield json.dumps(changed(template, [rng.randint(1, 3)])).encode()
