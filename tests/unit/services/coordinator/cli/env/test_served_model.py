"""A served model whose endpoint does not do what is asked of it."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from services.coordinator.cli.env.served_model import ServedModel
from shoal.conversation import ChatMessage
from shoal.errors import InvalidArgument, Unavailable
from shoal.network import listening_socket


class Refusing(BaseHTTPRequestHandler):
    """Lists something that is no model, and refuses to answer."""

    def do_GET(self) -> None:
        self._answer(200, b'{"data": []}')

    def do_POST(self) -> None:
        self._answer(429, b'{"error": "too many requests"}')

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def refusing() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()
        thread.join()


async def test_a_refusal_is_shown_with_its_status_and_text(refusing: str) -> None:
    model = ServedModel(refusing, "small", "", 1)
    with pytest.raises(InvalidArgument, match=r"/v1/chat/completions answered 429: .*too many requests"):
        await model.say([ChatMessage("user", "Hello.")], ())


def test_an_endpoint_that_lists_no_model_needs_a_name(refusing: str) -> None:
    with pytest.raises(InvalidArgument, match="give --model-name"):
        ServedModel(refusing, "", "", 1)


def test_an_endpoint_that_is_not_there_is_named() -> None:
    with listening_socket("127.0.0.1", 0) as closed:
        port = closed.getsockname()[1]
    with pytest.raises(Unavailable, match=f"http://127.0.0.1:{port}/v1/models does not answer: "):
        ServedModel(f"http://127.0.0.1:{port}/v1", "", "", 1)
