"""Callers without permission are refused by their headers: nothing of their requests is read."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from shoal.rpc.auth.permissions import Role
from shoal.rpc.options import MAX_MESSAGE_BYTES
from shoal.rpc.server import RpcServer
from shoal.v1 import coordinator_pb2 as pb
from tests.support.loopback import COORDINATOR, started
from tests.support.secured import DESCRIBING_METHODS, METHODS, PATIENCE_S, Tokens, secured_server

LARGE = pb.StartRunRequest(run_id="x" * (MAX_MESSAGE_BYTES - 100)).SerializeToString()
NUM_CALLS = 20


async def code_without_request(channel: grpc.aio.Channel, path: str, token: str) -> grpc.StatusCode:
    """Begins a call, sends nothing of its request, and returns the status."""
    metadata = (("authorization", f"Bearer {token}"),)
    return await channel.stream_stream(path)(timeout=PATIENCE_S, metadata=metadata).code()


async def test_every_rpc_refuses_a_caller_without_permission_before_its_request_begins_to_arrive(
    tmp_path: Path,
) -> None:
    tokens = Tokens(tmp_path)
    async with (
        secured_server(tokens.server(None)) as address,
        grpc.aio.insecure_channel(address) as channel,
    ):
        for path in (*METHODS, *DESCRIBING_METHODS):
            code = await code_without_request(channel, path, "nobody's token here")
            assert code is grpc.StatusCode.UNAUTHENTICATED, path
        viewer = tokens.of[Role.VIEWER]
        code = await code_without_request(channel, f"/{COORDINATOR}/StartRun", viewer)
        assert code is grpc.StatusCode.PERMISSION_DENIED


class Parser:
    def __init__(self) -> None:
        self.num_parsed = 0

    def parse(self, serialized: bytes) -> pb.StartRunRequest:
        self.num_parsed += 1
        return pb.StartRunRequest.FromString(serialized)

    @asynccontextmanager
    async def serving(self, tokens: Tokens) -> AsyncIterator[str]:
        async def start(request: Any, context: Any) -> pb.StartRunResponse:
            return pb.StartRunResponse(run=pb.Run(num_steps=len(request.run_id)))

        def add(servicer: Any, server: grpc.aio.Server) -> None:
            handler = grpc.unary_unary_rpc_method_handler(start, self.parse, pb.StartRunResponse.SerializeToString)
            handlers = grpc.method_handlers_generic_handler(COORDINATOR, {"StartRun": handler})
            server.add_generic_rpc_handlers((handlers,))

        server = RpcServer(listen="127.0.0.1:0", credentials=tokens.server(None), audit=lambda call: None)
        server.add(add, None, COORDINATOR)
        async with started(server) as address:
            yield address


@pytest.mark.parametrize("role", [None, Role.VIEWER])
async def test_a_large_request_of_a_caller_without_permission_is_not_parsed(role: Role | None, tmp_path: Path) -> None:
    tokens, parser = Tokens(tmp_path), Parser()
    expected = grpc.StatusCode.PERMISSION_DENIED if role else grpc.StatusCode.UNAUTHENTICATED
    async with parser.serving(tokens) as address, grpc.aio.insecure_channel(address) as channel:
        start = channel.unary_unary(f"/{COORDINATOR}/StartRun")

        def call(token: str) -> Any:
            return start(LARGE, timeout=PATIENCE_S, metadata=(("authorization", f"Bearer {token}"),))

        refused = [call(tokens.of[role] if role else "nobody's token here") for _ in range(NUM_CALLS)]
        assert {await each.code() for each in refused} == {expected}
        assert parser.num_parsed == 0, f"{parser.num_parsed} of {NUM_CALLS} requests were parsed"
        response = pb.StartRunResponse.FromString(await call(tokens.of[Role.OPERATOR]))
    assert (response.run.num_steps, parser.num_parsed) == (MAX_MESSAGE_BYTES - 100, 1)
