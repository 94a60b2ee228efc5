"""A TCP proxy that breaks off after a number of bytes, for uploads that are cut off half-way."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class CuttingProxy:
    """Forwards connections of 127.0.0.1 to a port, until `max_bytes` have come from clients; None never cuts."""

    def __init__(self, target_port: int) -> None:
        self.max_bytes: int | None = None
        self.num_bytes = 0
        self._target_port = target_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def is_cut(self) -> bool:
        """Whether so many bytes have come that nothing is forwarded any more."""
        return self.max_bytes is not None and self.num_bytes >= self.max_bytes

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while self._listener.fileno() >= 0:
            with suppress(OSError):
                client, _ = self._listener.accept()
                if self.is_cut:
                    client.close()
                    continue
                server = socket.create_connection(("127.0.0.1", self._target_port))
                for end in (client, server):  # Else small writes wait 40 ms for the ACK of the write before.
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                for source, target, counts in ((client, server, True), (server, client, False)):
                    threading.Thread(target=self._forward, args=(source, target, counts), daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket, counts: bool) -> None:
        with suppress(OSError):
            while data := source.recv(4096):
                with self._lock:
                    self.num_bytes += len(data) if counts else 0
                if self.is_cut:
                    break
                target.sendall(data)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


@contextmanager
def cutting_proxy(target_port: int) -> Iterator[CuttingProxy]:
    proxy = CuttingProxy(target_port)
    try:
        yield proxy
    finally:
        proxy.close()
