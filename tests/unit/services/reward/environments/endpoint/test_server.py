"""The policy endpoint over HTTP, with a policy that is a function."""

import asyncio
import json
import math
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx2 as httpx
import numpy as np
import psutil
import pytest
import pytest_asyncio

from services.reward.environments.endpoint import server
from services.reward.environments.endpoint.server import PolicyEndpoint
from services.reward.environments.endpoint.session import MAX_CALL_BYTES, Session
from shoal.v1 import environment_pb2 as pb
from shoal.v1 import rollout_pb2
from tests.support.hostile_server import mutated_answers
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")

ENDPOINT = PolicyEndpoint()
HELLO = {"model": "policy", "messages": [{"role": "user", "content": "hello"}]}
CHAT, GENERATE = "v1/chat/completions", "inference/v1/generate"
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}


def answer(content: str = "hi", *calls: str, num_tokens: int = 3) -> pb.PolicyAnswer:
    message = rollout_pb2.ChatMessage(role="assistant", content=content)
    for number, name in enumerate(calls):
        message.tool_calls.add(id=f"call-1-{number}", name=name, arguments_json='{"a": 1}')
    return pb.PolicyAnswer(
        message=message,
        token_ids=np.arange(5, 5 + num_tokens, dtype="<i4").tobytes(),
        logprobs=np.full(num_tokens, -0.25, "<f4").tobytes(),
        finish_reason=rollout_pb2.FINISH_REASON_STOP,
        num_context_tokens=7,
        version=rollout_pb2.WeightVersion(policy_version=4),
    )


def refusal(reason: "pb.PolicyRefusalReason.ValueType", detail: str = "why", retry_after_s: float = 0.0) -> Any:
    return pb.PolicyRefusal(reason=reason, detail=detail, retry_after_s=retry_after_s)


@dataclass
class Served:
    """An episode at the endpoint, and a client of it."""

    session: Session
    url: str
    client: httpx.AsyncClient
    calls: list[pb.PolicyCall]
    held: list[pb.PolicyCall] = field(default_factory=list)

    async def post(self, path: str = CHAT, body: Any = None, key: str = "", **headers: str) -> httpx.Response:
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        values = HELLO if body is None else body
        return await self.client.post(
            f"{self.url.removesuffix('/v1')}/{path}",
            headers={"Authorization": f"Bearer {key or self.session.key}"} | headers,
            content=values if isinstance(values, bytes) else json.dumps(values).encode(),
        )


@pytest_asyncio.fixture(scope="module", loop_scope="module", autouse=True)
async def closed_endpoint() -> AsyncIterator[None]:
    yield
    await ENDPOINT.close()


Reply = Callable[[pb.PolicyCall], Any]


def num_orphaned(session: Session) -> int:
    """Counts the calls for whose answers nobody waits any more."""
    return sum(not (asked.num_waiting or asked.is_read) for asked in session._asked.values())


@asynccontextmanager
async def served(reply: Reply | None = lambda call: answer()) -> AsyncIterator[Served]:
    """Opens an episode whose calls are answered by a function; without one, `take` answers them."""
    calls: list[pb.PolicyCall] = []

    def send(call: pb.PolicyCall) -> None:
        calls.append(call)
        if reply is not None:
            given = reply(call)
            part = {"refusal" if isinstance(given, pb.PolicyRefusal) else "answer": given}
            asyncio.get_running_loop().call_soon(session.take, pb.PolicyReply(call_id=call.call_id, **part))

    client = httpx.AsyncClient(timeout=60, verify=False)  # To read certificates takes 30 ms.
    async with ENDPOINT.session(send, 4096) as (url, session), client:
        yield Served(session, url, client, calls)


async def test_a_conversation_becomes_a_call_and_its_answer_a_completion() -> None:
    body = HELLO | {"max_tokens": 9, "temperature": 0.1, "seed": 3, "user": "me", "logprobs": True}
    async with served() as at:
        response = await at.post(body=body)
    assert response.status_code == 200, response.text
    (call,) = at.calls
    assert [(message.role, message.content) for message in call.messages] == [("user", "hello")]
    assert call.max_tokens == 9 and not call.is_auxiliary
    assert response.headers["x-shoal-overridden"] == "temperature, seed"
    said = response.json()
    assert said["choices"][0]["message"] == {"role": "assistant", "content": "hi", "refusal": None}
    assert (said["choices"][0]["finish_reason"], said["policy_version"]) == ("stop", 4)
    assert said["usage"] == {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
    assert [token["logprob"] for token in said["choices"][0]["logprobs"]["content"]] == [-0.25] * 3


async def test_tools_travel_and_their_calls_come_back() -> None:
    calls = [{"id": "c", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}]
    messages = [
        {"role": "developer", "content": [{"type": "text", "text": "Use "}, {"type": "text", "text": "tools."}]},
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": "c", "content": "2"},
    ]
    async with served(lambda call: answer("", "add")) as at:
        response = await at.post(body={"messages": messages, "tools": [TOOL]})
    (call,) = at.calls
    assert [message.role for message in call.messages] == ["system", "assistant", "tool"]
    assert call.messages[0].content == "Use tools." and call.messages[1].tool_calls[0].arguments_json == '{"a": 1}'
    assert [tool.name for tool in call.tools] == ["add"]
    (choice,) = response.json()["choices"]
    assert choice["finish_reason"] == "tool_calls" and choice["message"]["content"] is None
    assert choice["message"]["tool_calls"][0]["function"] == {"name": "add", "arguments": '{"a": 1}'}


async def test_tokens_in_are_tokens_out_in_the_form_of_both_clients() -> None:
    sampling = {"max_tokens": 5, "stop_token_ids": [2], "temperature": 1.0, "logprobs": 1, "skip_special_tokens": False}
    body = {"model": "auxiliary", "token_ids": [1, 2, 3], "sampling_params": sampling, "cache_salt": "x"}
    async with served() as at:
        response = await at.post(GENERATE, body)
    (call,) = at.calls
    assert np.frombuffer(call.token_ids, "<i4").tolist() == [1, 2, 3] and not call.messages
    assert (call.max_tokens, list(call.stop_token_ids), call.is_auxiliary) == (5, [2], True)
    (choice,) = response.json()["choices"]
    assert choice["token_ids"] == [5, 6, 7] and choice["finish_reason"] == "stop"
    first = choice["logprobs"]["content"][0]
    assert (first["token"], first["token_id"], first["logprob"]) == ("token_id:5", 5, -0.25)
    assert response.headers["x-shoal-overridden"] == "sampling_params.temperature"


async def test_the_models_tell_how_long_a_context_may_be() -> None:
    async with served() as at:
        response = await at.client.get(f"{at.url}/models", headers={"Authorization": f"Bearer {at.session.key}"})
    models = response.json()["data"]
    assert [(model["id"], model["max_model_len"]) for model in models] == [("policy", 4096), ("auxiliary", 4096)]


async def test_a_stream_has_the_whole_turn_in_one_piece() -> None:
    body = HELLO | {"stream": True, "stream_options": {"include_usage": True}}
    async with served(lambda call: answer("", "add")) as at:
        response = await at.post(body=body)
    assert response.headers["content-type"].startswith("text/event-stream")
    events = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line.startswith("data: ")]
    assert events.pop() == "[DONE]"
    turn, end, usage = map(json.loads, events)
    assert turn["choices"][0]["delta"]["tool_calls"][0]["index"] == 0 and turn["object"] == "chat.completion.chunk"
    assert end["choices"][0]["finish_reason"] == "tool_calls"
    assert usage["choices"] == [] and usage["usage"]["total_tokens"] == 10


async def test_a_long_turn_has_signs_of_life_and_its_refusal_is_an_event(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_SILENT_S", 0.0)
    monkeypatch.setattr(server, "_KEEP_ALIVE_S", 0.01)
    async with served(None) as at:
        posting = asyncio.create_task(at.post(body=HELLO | {"stream": True}))
        await eventually(lambda: at.calls, "the call is on its way")
        await asyncio.sleep(0.05)
        given = refusal(pb.POLICY_REFUSAL_REASON_CONTEXT_FULL, "too long")
        at.session.take(pb.PolicyReply(call_id=at.calls[0].call_id, refusal=given))
        response = await posting
    assert response.status_code == 200 and response.text.startswith(": ")
    last = json.loads(response.text.strip().rpartition("data: ")[2])
    assert last["error"]["code"] == "context_length_exceeded" and last["error"]["message"] == "too long"


@pytest.mark.parametrize(
    "change",
    [
        {"n": 2}, {"response_format": {"type": "json_object"}}, {"tool_choice": "required"}, {"logit_bias": {"5": 1}},
        {"presence_penalty": 0.5}, {"top_logprobs": 3}, {"parallel_tool_calls": False}, {"nonsense": 1},
        {"tools": [{"type": "web_search"}]}, {"max_tokens": 0}, {"max_tokens": "9"}, {"stop": [1]}, {"messages": []},
        {"stream": "true"}, {"stream": 1}, {"logprobs": 5},
        {"messages": [{"role": "assistant", "function_call": {"name": "a", "arguments": "{}"}}]},
        {"messages": [{"role": "robot", "content": ""}]}, {"messages": [{"role": "user", "content": 5}]},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
        {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "a", "arguments": "[]"}}]}]},
    ],
)  # fmt: skip
async def test_what_cannot_be_done_is_refused_by_name(change: dict[str, Any]) -> None:
    async with served() as at:
        response = await at.post(body=HELLO | change)
    error = response.json()["error"]
    assert response.status_code == 400 and error["type"] == "invalid_request_error", response.text
    assert error["param"].startswith(*change) and error["message"].startswith(error["param"]), error
    assert not at.calls and response.headers["x-should-retry"] == "false"


async def test_fields_that_ask_for_nothing_are_taken() -> None:
    body = HELLO | {"n": 1, "tool_choice": "auto", "response_format": {"type": "text"}, "stop": None, "logit_bias": {}}
    async with served() as at:
        assert (await at.post(body=body)).status_code == 200


async def test_each_way_to_be_refused_has_its_status() -> None:
    full, limit = pb.POLICY_REFUSAL_REASON_CONTEXT_FULL, pb.POLICY_REFUSAL_REASON_LIMIT
    replies = iter(
        (
            refusal(pb.POLICY_REFUSAL_REASON_INVALID),
            refusal(full),
            refusal(pb.POLICY_REFUSAL_REASON_PAUSED, "", 4.6),
            answer(),
            refusal(limit, "the episode has reached its limit max_turns: end the episode"),
        )
    )
    async with served(lambda call: next(replies)) as at:
        responses = [await at.post() for _ in range(7)]
    assert [response.status_code for response in responses] == [400, 400, 429, 200, 400, 400, 400]
    codes = [response.json().get("error", {}).get("code") for response in responses]
    assert codes == ["invalid_value", "context_length_exceeded", "run_paused", None, *["episode_limit"] * 3]
    assert (responses[2].headers["retry-after"], responses[2].headers["x-should-retry"]) == ("5", "true")
    assert len(at.calls) == 5, "after a limit no call is sent any more"


async def test_only_the_key_of_the_episode_opens_it() -> None:
    async with served() as at:
        for key in ("wrong", at.session.key[:-1], "ä"):
            response = await at.client.post(
                f"{at.url}/chat/completions", headers={b"authorization": f"Bearer {key}".encode()}
            )
            assert (response.status_code, response.json()["error"]["code"]) == (401, "invalid_api_key")
        assert (await at.client.post(f"{at.url}/chat/completions")).status_code == 401
        assert (await at.client.post(at.url.replace("/v1", "x/v1/models"))).status_code == 404
        assert (await at.post("v1/responses")).json()["error"]["message"].startswith("POST /v1/responses ")
    assert not at.calls


async def test_after_the_end_everything_is_a_conflict_that_no_client_tries_again() -> None:
    endpoint = PolicyEndpoint()
    try:
        async with endpoint.session(lambda call: None, 10) as (url, session), httpx.AsyncClient() as client:
            headers = {"Authorization": f"Bearer {session.key}"}
            waiting = asyncio.create_task(client.post(f"{url}/chat/completions", json=HELLO, headers=headers))
            await eventually(lambda: session.idle_s() == 0, "the call is on its way")
            session.close()
            assert (await waiting).status_code == 409
        async with httpx.AsyncClient() as client:
            response = await client.post(f"{url}/chat/completions", json=HELLO, headers=headers)
            assert (response.status_code, response.headers["x-should-retry"]) == (409, "false")
            assert (await client.get(f"{url}/models", headers={"Authorization": "Bearer x"})).status_code == 401
    finally:
        await endpoint.close()


async def test_a_request_that_is_repeated_is_answered_once() -> None:
    async with served(None) as at:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(at.post(), 0.5)  # The client's time is over.
        again = asyncio.create_task(at.post(x_stainless_retry_count="1"))
        twice = asyncio.create_task(at.post(x_stainless_retry_count="2"))
        await eventually(lambda: at.calls, "the call is on its way")
        at.session.take(pb.PolicyReply(call_id="c1", answer=answer()))
        bodies = [(await one).json() for one in (again, twice)]
        late = await at.post(x_stainless_retry_count="3")
    assert len(at.calls) == 1 and bodies[0]["choices"] == bodies[1]["choices"] == late.json()["choices"]
    assert {bodies[0]["id"], bodies[1]["id"], late.json()["id"]} == {"chatcmpl-c1"}


async def test_the_retries_of_openais_client_are_answered_once() -> None:
    openai = pytest.importorskip("openai")
    async with served(None) as at:
        client = openai.AsyncOpenAI(base_url=at.url, api_key=at.session.key, timeout=0.5, max_retries=50)
        asking = asyncio.create_task(client.chat.completions.create(**HELLO))
        await eventually(lambda: at.calls, "the call is on its way")
        await asyncio.sleep(1.0)  # It gives up at least once.
        at.session.take(pb.PolicyReply(call_id="c1", answer=answer("late")))
        completion = await asking
        with pytest.raises(openai.BadRequestError, match="n: "):
            await client.chat.completions.create(**HELLO, n=2)
    assert completion.choices[0].message.content == "late" and len(at.calls) == 1


@pytest.mark.parametrize("streams", [False, True])
async def test_what_was_answered_when_nobody_waited_any_more_is_unread(
    streams: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_SILENT_S", 3600.0)
    body = HELLO | {"stream": streams}
    async with served(None) as at:
        posting = [asyncio.create_task(at.post(body=body)) for _ in range(2)]
        await eventually(lambda: len(at.calls) == 2, "both calls are on their way")
        for one in posting:
            one.cancel()
        await eventually(lambda: num_orphaned(at.session) == 2, "the endpoint has noticed")
        for call in at.calls:
            at.session.take(pb.PolicyReply(call_id=call.call_id, answer=answer()))
        again = await at.post(body=body, x_stainless_retry_count="1")
        at.session.close()
    assert '"chatcmpl-c1"' in again.text and at.session.unread == ("c2",)


async def test_two_equal_requests_that_a_pause_refused_are_two_draws_when_they_are_repeated() -> None:
    paused = refusal(pb.POLICY_REFUSAL_REASON_PAUSED, retry_after_s=1)
    replies = iter([paused, paused, answer("first"), answer("second")])
    async with served(lambda call: next(replies)) as at:
        assert [(await at.post()).status_code for _ in range(2)] == [429, 429]
        retried = [(await at.post(x_stainless_retry_count="1")).json() for _ in range(2)]
        lost = (await at.post(x_stainless_retry_count="2")).json()
    assert [body["id"] for body in retried] == ["chatcmpl-c3", "chatcmpl-c4"]
    assert lost["id"] == "chatcmpl-c4", "the answer got lost on its way to the client"


async def test_a_key_of_idempotency_tells_a_repetition_and_nothing_else_does() -> None:
    async with served() as at:
        ids = [(await at.post(idempotency_key=key)).json()["id"] for key in ("a", "a", "b")]
        ids += [(await at.post()).json()["id"] for _ in range(2)]
        other = await at.post(body=HELLO | {"max_tokens": 7}, idempotency_key="a")
    assert ids == ["chatcmpl-c1", "chatcmpl-c1", "chatcmpl-c2", "chatcmpl-c3", "chatcmpl-c4"]
    assert other.status_code == 400 and "another request" in other.text, "another request has the answer of the first"


async def test_bodies_are_bounded_and_must_be_json() -> None:
    async with served() as at:
        statuses = [
            (await at.post(body=body)).status_code
            for body in (b"x" * (MAX_CALL_BYTES + 1), b"{", b"[]", b"[" * 100_000, b"\xff")
        ]
    assert statuses == [413, 400, 400, 400, 400] and not at.calls


async def test_what_breaks_tells_nothing_of_the_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("/secret/path")

    monkeypatch.setattr(server, "chat_answer", broken)
    async with served() as at:
        response = await at.post()
    assert response.status_code == 500 and "secret" not in response.text and "Traceback" not in response.text


async def test_the_key_of_another_episode_opens_nothing() -> None:
    endpoint = PolicyEndpoint()
    async with (
        endpoint.session(lambda call: None, 10) as (url, one),
        endpoint.session(lambda call: None, 10) as (_, other),
        httpx.AsyncClient(timeout=60) as client,
    ):
        statuses = [
            (await client.get(f"{url}/models", headers={"Authorization": f"Bearer {key}"})).status_code
            for key in (one.key, other.key)
        ]
    await endpoint.close()
    assert statuses == [200, 401]


async def test_an_answer_does_not_wait_until_its_header_is_acknowledged() -> None:
    async with served() as at:
        await at.post()
        ends = [found for found in psutil.Process().net_connections() if found.laddr.port == ENDPOINT.port]
        for end in (found for found in ends if found.status == psutil.CONN_ESTABLISHED):
            with socket.socket(fileno=os.dup(end.fd)) as connection:
                assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


async def test_nothing_listens_before_an_episode_or_after_the_end_and_only_on_loopback_meanwhile() -> None:
    endpoint = PolicyEndpoint()
    assert endpoint.port == 0
    async with endpoint.session(lambda call: None, 10) as (url, _):
        assert url.startswith(f"http://127.0.0.1:{endpoint.port}/")
        sockets = [found for found in psutil.Process().net_connections() if found.status == psutil.CONN_LISTEN]
        assert {found.laddr.ip for found in sockets if found.laddr.port == endpoint.port} == {"127.0.0.1"}
    port = endpoint.port
    await endpoint.close()
    with pytest.raises(OSError):
        await asyncio.open_connection("127.0.0.1", port)


WHOLE = HELLO | {
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "b"}]},
        {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "add", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "1", "name": "add", "content": "x"},
    ],
    "tools": [TOOL],
    "max_tokens": 5,
    "stop": ["x"],
    "stream": True,
    "stream_options": {"include_usage": True},
    "stop_token_ids": [1],
}
TOKENS = {"token_ids": [1, 2], "request_id": "r", "sampling_params": {"max_tokens": 3, "stop": "x", "seed": 1}}


NO_ROLE = {"messages": [{"role": ["user"], "content": "b"}]}
NO_CALLS = {"messages": [{"role": "assistant", "tool_calls": 5}, HELLO["messages"][0]]}
NO_NAME = {"\ud800": 1}


@pytest.mark.parametrize(
    "body",
    [NO_ROLE, NO_CALLS, HELLO | {"tools": 1.5}, HELLO | {"stream": True, "stream_options": "x"}, HELLO | NO_NAME],
)
async def test_a_field_of_another_type_is_refused(body: Any) -> None:
    async with served() as at:
        response = await at.post(body=body)
    assert response.status_code == 400 and response.json()["error"]["param"], response.text


@pytest.mark.parametrize(("path", "template"), [(CHAT, WHOLE), (GENERATE, TOKENS)])
async def test_any_request_gets_an_answer_or_a_refusal_that_is_its_own_fault(path: str, template: Any) -> None:
    async with served() as at:
        for number, body in zip(range(100), mutated_answers(template, seed=7), strict=False):
            response = await at.post(path, body)
            assert response.status_code in (200, 400), (number, body, response.status_code, response.text)
            if response.status_code == 400:
                error = response.json()["error"]
                assert error["code"] and "Error" not in error["message"] and ".py" not in error["message"], error
        assert at.calls, "some are answered"


def nested(levels: int) -> dict[str, Any]:
    return {"a": nested(levels - 1)} if levels else {}


def calling_with(arguments: str) -> dict[str, Any]:
    return {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "a", "arguments": arguments}}]}]}


def offering(parameters: dict[str, Any]) -> dict[str, Any]:
    return {"tools": [{"type": "function", "function": {"name": "a", "parameters": parameters}}]}


@pytest.mark.parametrize(
    "change",
    [
        offering(nested(50)),
        calling_with('{"a":' * 900 + "1" + "}" * 900),
        calling_with('{"a":' * 90_000 + "1" + "}" * 90_000),
    ],
)  # fmt: skip
async def test_what_is_nested_too_deeply_to_travel_is_refused(change: dict[str, Any]) -> None:
    async with served() as at:
        response = await at.post(body=HELLO | change)
        assert response.status_code == 400 and not at.calls, response.text


async def test_every_schema_that_is_taken_can_be_read_at_the_other_end() -> None:
    async with served() as at:
        statuses = [(await at.post(body=HELLO | offering(nested(levels)))).status_code for levels in range(25, 40)]
        assert {*statuses} == {200, 400}, statuses
        for call in at.calls:
            pb.RunEpisodeResponse.FromString(pb.RunEpisodeResponse(call=call).SerializeToString())


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, 10**400], ids=["nan", "inf", "-inf", "long"])
async def test_a_schema_with_a_number_that_cannot_travel_is_refused(number: float) -> None:
    body = json.dumps(HELLO | offering({"properties": {"a": {"maximum": number}}})).encode()
    async with served() as at:
        response = await at.post(body=body)
        assert response.status_code == 400 and not at.calls, response.text
    assert "finite numbers" in response.json()["error"]["message"], response.text


@pytest.mark.parametrize("count", [b"\xb2", b"-1", b"x", b"", b"0" * 5000])
async def test_a_count_of_retries_that_is_no_number_is_none(count: bytes) -> None:
    async with served() as at:
        response = await at.post(body=HELLO, x_stainless_retry_count=count)
    assert response.status_code == 200, response.text


async def test_half_a_character_in_a_request_is_replaced() -> None:
    async with served() as at:
        for half in (b"\\ud83d", b"\xed\xa0\xbd", b"\xff"):
            at.calls.clear()
            response = await at.post(body=b'{"messages": [{"role": "user", "content": "a%s"}]}' % half)
            assert response.status_code == 200, response.text
            assert at.calls[0].messages[0].content.rstrip("?\ufffd") == "a"
