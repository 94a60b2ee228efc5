"""The port for Prometheus under arbitrary requests."""

import random
import socket
import time

import prometheus_client
import pytest

PATIENCE_S = 30.0
REQUESTS = [
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /metrics?name[]=" + b"x" * 60_000 + b" HTTP/1.1\r\nAccept: application/openmetrics-text\r\n\r\n",
    b"GET /%ff%00/../../etc/passwd HTTP/1.1\r\nAccept: \xff\xfe\r\nAccept-Encoding: gzip\r\n\r\n",
    b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\nx",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"GET " + b"/" * 100_000 + b" HTTP/1.1\r\n\r\n",
    b"GET / HTTP/9.9\r\n\r\n",
    b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 500 + b"\r\n",
    b"\r\n\r\n",
]


def answer_to(port: int, request: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as connection:
        parts = []
        try:
            connection.sendall(request)
            connection.shutdown(socket.SHUT_WR)
            while part := connection.recv(65536):
                parts.append(part)
        except TimeoutError:
            raise
        except OSError:
            pass  # The server has ended the connection, as it may for a malformed request.
        return b"".join(parts)


def test_no_request_stops_the_metrics_or_gets_an_answer_with_a_stack_trace(capsys: pytest.CaptureFixture[str]) -> None:
    server, thread = prometheus_client.start_http_server(0, "127.0.0.1")
    rng = random.Random(1)
    idle = [socket.create_connection(("127.0.0.1", server.server_port), timeout=PATIENCE_S) for _ in range(20)]
    try:
        for _ in range(100):
            request = bytearray(rng.choice(REQUESTS))
            for _ in range(rng.randint(0, 4)):
                request[rng.randrange(len(request))] = rng.randrange(256)
            began = time.monotonic()
            answer = answer_to(server.server_port, bytes(request))
            for leak in (b"Traceback", b'File "', b"site-packages", b"root:x:"):
                assert leak not in answer, f"{bytes(request)[:200]!r}: {answer[:500]!r}"
            assert time.monotonic() - began < PATIENCE_S
        assert b"python_info" in answer_to(server.server_port, REQUESTS[0])
    finally:
        for connection in idle:
            connection.close()
        server.shutdown()
        server.server_close()
        thread.join(PATIENCE_S)
