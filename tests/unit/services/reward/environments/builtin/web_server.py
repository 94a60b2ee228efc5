"""An HTTP server that answers as scripted, and remembers what it was asked."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any


@dataclass
class WebServer:
    address: str
    answers: list[tuple[int, Any]] = field(default_factory=list)
    """Status and JSON of each answer; the last one for all that follow."""
    paths: list[str] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    bodies: list[Any] = field(default_factory=list)


@asynccontextmanager
async def web_server() -> AsyncIterator[WebServer]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.answer()

        def do_POST(self) -> None:
            self.answer()

        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            state.paths.append(self.path)
            state.headers.append({name.lower(): value for name, value in self.headers.items()})
            state.bodies.append(json.loads(body) if body else None)
            status, value = state.answers.pop(0) if len(state.answers) > 1 else state.answers[0]
            content = json.dumps(value).encode()
            self.send_response(HTTPStatus(status))
            self.send_header("Content-Length", str(len(content)))
            self.send_header("Retry-After", "0")
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state = WebServer(f"http://127.0.0.1:{server.server_address[1]}")
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
