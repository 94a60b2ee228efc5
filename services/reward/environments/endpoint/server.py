"""The HTTP server of the policy endpoint."""

import asyncio
import contextlib
import hashlib
import hmac
import json
import logging
import secrets
import socket
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from services.reward.environments.endpoint.chat import AUXILIARY, chat_answer, chat_call, chat_chunks
from services.reward.environments.endpoint.fields import is_on, overridden
from services.reward.environments.endpoint.generate import generate_answer, generate_call, generate_overridden
from services.reward.environments.endpoint.refusals import Refused, ended
from services.reward.environments.endpoint.session import MAX_CALL_BYTES, Session
from shoal.v1 import environment_pb2 as pb

_log = logging.getLogger(__name__)

_KEPT_KEYS = 4096
"""Maximum number of ended episodes whose agents are still told of the end."""
_SILENT_S = 10.0
"""Wait of a stream for the answer before it begins, so that a refusal can still have its own status."""
_KEEP_ALIVE_S = 3.0
_STOP_S = 2.0
_SERVED = "POST /v1/chat/completions, POST /inference/v1/generate, GET /v1/models"

Values = Mapping[str, Any]


class _Server(uvicorn.Server):
    """A server that leaves the signals of the process to the service."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class PolicyEndpoint:
    """Listens on the loopback interface from the first episode on. Belongs to one event loop."""

    def __init__(self) -> None:
        self._sessions: dict[str, Session] = {}
        self._ended: OrderedDict[str, str] = OrderedDict()
        """Keys of ended episodes, by the name in their path."""
        self._server: _Server | None = None
        self._serving: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()
        self.port = 0
        """The port; 0 while nothing listens."""

    @contextlib.asynccontextmanager
    async def session(
        self, send: Callable[[pb.PolicyCall], None], max_context_tokens: int
    ) -> AsyncIterator[tuple[str, Session]]:
        """Opens the endpoint for one episode, until the block ends. Yields its base URL, and the session."""
        await self._start()
        name, session = secrets.token_urlsafe(9), Session(send, max_context_tokens)
        self._sessions[name] = session
        try:
            yield f"http://127.0.0.1:{self.port}/{name}/v1", session
        finally:
            session.close()
            del self._sessions[name]
            self._ended[name] = session.key
            if len(self._ended) > _KEPT_KEYS:
                self._ended.popitem(last=False)

    async def close(self) -> None:
        """Ends the server, and all connections."""
        if self._server is not None and self._serving is not None:
            self._server.should_exit = self._server.force_exit = True
            await self._serving
            self._server, self._serving, self.port = None, None, 0

    async def _start(self) -> None:
        async with self._starting:
            if self._server is not None:
                return
            listening = socket.create_server(("127.0.0.1", 0), backlog=2048)
            # Connections inherit this option. Without it, an answer's body waits 40 ms for the ACK of its header.
            listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            app = Starlette(routes=[Route("/{name}/{path:path}", self._answer, methods=["GET", "POST"])])
            config = uvicorn.Config(
                app, log_config=None, access_log=False, lifespan="off", ws="none", server_header=False,
                timeout_graceful_shutdown=int(_STOP_S), timeout_keep_alive=75,
            )  # fmt: skip
            self._server = _Server(config)
            self._serving = asyncio.create_task(self._server.serve(sockets=[listening]))
            self.port = listening.getsockname()[1]

    async def _answer(self, request: Request) -> Response:
        try:
            return await self._respond(request)
        except Refused as refused:
            return refused.response()
        except ClientDisconnect:
            return Response(status_code=499)
        except Exception:
            _log.exception("the policy endpoint failed")
            return Refused(500, "internal_error", "the endpoint failed; see the log of the reward service").response()

    async def _respond(self, request: Request) -> Response:
        session = self._find(request)
        match request.method, request.path_params["path"]:
            case "GET", "v1/models":
                return JSONResponse(_models(session))
            case "POST", "v1/chat/completions":
                return await _chat(session, request)
            case "POST", "inference/v1/generate":
                return await _generate(session, request)
        detail = f"{request.method} /{request.path_params['path'][:80]} is not served here; served are: {_SERVED}"
        raise Refused(404, "not_found", detail)

    def _find(self, request: Request) -> Session:
        name = request.path_params["name"]
        session = self._sessions.get(name)
        key = self._ended.get(name) if session is None else session.key
        if key is None:
            raise Refused(404, "not_found", "no episode has this base URL")
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(given.encode(), key.encode()):
            raise Refused(401, "invalid_api_key", "the token is not the key of this episode: give policy.api_key")
        if session is None:
            raise ended()
        return session


async def _read(request: Request) -> tuple[Values, bytes]:
    """Returns the body, and its digest. Raises `Refused`."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MAX_CALL_BYTES:
            raise Refused(413, "too_large", f"the body is larger than {MAX_CALL_BYTES:,} bytes")
    try:
        text = body.decode("utf-8", "replace")
        values = json.loads(text)
        if "\\u" in text:
            # Replace halves of characters, which some clients send after cutting a text: protobuf cannot carry them.
            values = json.loads(json.dumps(values, ensure_ascii=False).encode("utf-8", "replace"))
    except (ValueError, RecursionError):
        raise Refused(400, "invalid_json", "the body is not JSON") from None
    if not isinstance(values, dict):
        raise Refused(400, "invalid_json", "the body must be a JSON object")
    path = request.path_params["path"].encode()
    return values, hashlib.sha256(path + b"\n" + body).digest()


def _models(session: Session) -> dict[str, Any]:
    models = [
        {"id": name, "object": "model", "created": 0, "owned_by": "shoal", "max_model_len": session.max_context_tokens}
        for name in ("policy", AUXILIARY)
    ]
    return {"object": "list", "data": models}


async def _chat(session: Session, request: Request) -> Response:
    values, digest = await _read(request)
    streams = is_on(values, "stream")
    call = chat_call({name: value for name, value in values.items() if name != "stream"} if streams else values)
    answering = asyncio.create_task(session.ask(call, digest, request.headers))
    headers = _headers(overridden(values))
    await _wait_while_connected(request, answering, _SILENT_S if streams else None)
    if not streams:
        reply = answering.result()
        return JSONResponse(chat_answer(reply.answer, reply.call_id, values), headers=headers)
    if answering.done():
        answering.result()  # Raises the refusal, if any.
    return StreamingResponse(_events(answering, values), media_type="text/event-stream", headers=headers)


async def _events(answering: "asyncio.Task[pb.PolicyReply]", values: Values) -> AsyncIterator[str]:
    """Yields the events of a stream: keep-alive comments, then the whole turn."""
    try:
        while not (await asyncio.wait([answering], timeout=_KEEP_ALIVE_S))[0]:
            yield ": the turn is being sampled\n\n"
        reply = answering.result()
        for chunk in chat_chunks(reply.answer, reply.call_id, values):
            yield f"data: {json.dumps(chunk)}\n\n"
        yield "data: [DONE]\n\n"
    except Refused as refused:
        yield f"data: {json.dumps(refused.body())}\n\n"
    finally:
        answering.cancel()


async def _generate(session: Session, request: Request) -> Response:
    values, digest = await _read(request)
    call = generate_call(values)
    answering = asyncio.create_task(session.ask(call, digest, request.headers))
    await _wait_while_connected(request, answering)
    reply = answering.result()
    headers = _headers(generate_overridden(values))
    return JSONResponse(generate_answer(reply.answer, reply.call_id, values), headers=headers)


async def _wait_while_connected(
    request: Request, answering: "asyncio.Task[pb.PolicyReply]", limit_s: float | None = None
) -> None:
    """Waits for the answer while the client is connected. The turn continues without it: a retry gets the answer."""
    gone = asyncio.create_task(_disconnected(request))
    try:
        tasks: list[asyncio.Task[Any]] = [answering, gone]
        await asyncio.wait(tasks, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
        if gone.done() and not answering.done():
            raise ClientDisconnect
    except BaseException:
        answering.cancel()
        raise
    finally:
        gone.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _headers(names: list[str]) -> dict[str, str]:
    """Returns headers that name the fields of the request that the run's values replace."""
    return {"x-shoal-overridden": ", ".join(names)} if names else {}
