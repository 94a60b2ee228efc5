"""An OpenEnv server that answers as scripted, and remembers what it was asked."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from websockets.asyncio.server import ServerConnection, serve
from websockets.http11 import Request, Response

ACTION = {
    "type": "object",
    "description": "Says something.",
    "properties": {"metadata": {"type": "object"}, "message": {"type": "string"}},
    "required": ["message"],
}
OBSERVATION = {"type": "object", "properties": {"metadata": {}, "heard": {"type": "string"}, "length": {}}}


def observation(reward: float | None = None, done: bool = False, **fields: Any) -> dict[str, Any]:
    data = {"observation": {"metadata": {}, **fields}, "reward": reward, "done": done}
    return {"type": "observation", "data": data}


def error(code: str, message: str = "It failed.", **fields: Any) -> dict[str, Any]:
    return {"type": "error", "data": {"message": message, "code": code, **fields}}


@dataclass
class OpenEnvServer:
    address: str = ""
    schemas: dict[str, Any] = field(default_factory=lambda: {"action": ACTION, "observation": OBSERVATION})
    answer: Callable[[dict[str, Any]], Any] = lambda message: observation()
    """To a message: what is sent as JSON, a text that is sent as it is, or None to say nothing."""
    num_places: int = 100
    asked: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    num_sessions: int = 0
    """Open ones."""
    num_refused: int = 0

    async def handle(self, socket: ServerConnection) -> None:
        if self.num_sessions >= self.num_places:
            self.num_refused += 1
            await socket.send(json.dumps(error("CAPACITY_REACHED", "Server at capacity: 1/1 sessions active")))
            return
        self.num_sessions += 1
        try:
            async for message in socket:
                self.asked.append(json.loads(message))
                answer = self.answer(self.asked[-1])
                if answer == "close":
                    return
                if answer is not None:
                    await socket.send(answer if isinstance(answer, str) else json.dumps(answer))
        finally:
            self.num_sessions -= 1

    def request(self, socket: ServerConnection, request: Request) -> Response | None:
        self.keys.append(request.headers.get("Authorization", ""))
        if request.path == "/schema":
            return socket.respond(HTTPStatus.OK, json.dumps(self.schemas))
        return None if request.path == "/ws" else socket.respond(HTTPStatus.NOT_FOUND, "")


@asynccontextmanager
async def openenv_server() -> AsyncIterator[OpenEnvServer]:
    state = OpenEnvServer()
    async with serve(
        state.handle, "127.0.0.1", 0, process_request=state.request, max_size=1 << 26, close_timeout=1
    ) as server:
        state.address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        yield state
