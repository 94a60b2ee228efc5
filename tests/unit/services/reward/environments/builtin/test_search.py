from collections.abc import AsyncIterator
from typing import Any

import pytest

from services.reward.environments.builtin.search import Search
from shoal.environment import Broken
from tests.unit.services.reward.environments.builtin.turns import texts, turn
from tests.unit.services.reward.environments.builtin.web_server import WebServer, web_server

QUERY = ("search", {"query": "tallest"})
PLAIN = {"results": [{"title": "K2", "url": "http://k2", "text": "8611 m"}, {"text": "Everest"}]}


@pytest.fixture
async def server() -> AsyncIterator[WebServer]:
    async with web_server() as server:
        yield server


async def answer(server: WebServer, **settings: Any) -> str:
    search = Search(base_url=server.address, **settings)
    try:
        (text,) = texts(await search.step(turn(QUERY)))
        return text
    finally:
        await search.close()


async def test_a_plain_service_gets_the_query_and_its_results_are_numbered(server: WebServer) -> None:
    server.answers = [(200, PLAIN)]
    assert await answer(server, num_results=7) == "1. K2\nhttp://k2\n8611 m\n\n2.\nEverest"
    assert server.bodies == [{"query": "tallest", "num_results": 7}]
    assert "authorization" not in server.headers[0] and "x-api-key" not in server.headers[0]


async def test_serper_gets_its_form_and_key_and_the_direct_answer_comes_first(
    server: WebServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERPER_API_KEY", "secret")
    organic = [{"title": f"T{i}", "link": f"http://{i}", "snippet": f"s{i}"} for i in range(9)]
    server.answers = [(200, {"organic": organic, "answerBox": {"answer": "Everest"}})]
    text = await answer(server, service="serper", api_key_env="SERPER_API_KEY", num_results=3)
    assert text == "1. Answer\nEverest\n\n2. T0\nhttp://0\ns0\n\n3. T1\nhttp://1\ns1"
    assert (server.paths, server.bodies) == (["/search"], [{"q": "tallest", "num": 3}])
    assert server.headers[0]["x-api-key"] == "secret"


async def test_semantic_scholar_is_asked_by_a_query(server: WebServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("S2_API_KEY", "secret")
    server.answers = [(200, {"data": [{"paper": {"title": "On K2"}, "snippet": {"text": "It is high."}}]})]
    assert await answer(server, service="s2", api_key_env="S2_API_KEY") == "1. On K2\nIt is high."
    assert server.paths == ["/graph/v1/snippet/search?query=tallest&limit=5"]
    assert server.headers[0]["x-api-key"] == "secret"


async def test_a_busy_service_is_asked_again(server: WebServer) -> None:
    server.answers = [(503, {}), (429, {}), (200, PLAIN)]
    assert (await answer(server)).startswith("1. K2")
    assert len(server.bodies) == 3


async def test_long_answers_are_cut_with_a_note_and_none_is_said(server: WebServer) -> None:
    server.answers = [(200, {"results": [{"text": "x" * 100}]})]
    assert await answer(server, max_chars=20) == "1.\n" + "x" * 17 + "\n[cut: 83 more characters]"
    server.answers = [(200, {"results": []})]
    assert await answer(server) == "Nothing was found."


async def test_a_refused_question_is_told_to_the_policy_and_the_key_is_not(
    server: WebServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEARCH_KEY", "secret")
    server.answers = [(400, {"message": "the query of secret is not allowed"})]
    text = await answer(server, api_key_env="SEARCH_KEY")
    assert text.startswith("error: ") and "answered 400" in text and "secret" not in text, text


@pytest.mark.parametrize("status", [503, 401])
async def test_an_outage_fails_the_episode(server: WebServer, status: int) -> None:
    server.answers = [(status, {})]
    with pytest.raises(Broken, match=f"answered {status}"):
        await answer(server, max_attempts=2)
    assert len(server.bodies) == (2 if status == 503 else 1)


@pytest.mark.parametrize(
    ("service", "value"),
    [
        ("serper", None),
        ("serper", {"organic": ["K2"]}),
        ("s2", {"data": [{"paper": "K2"}]}),
        ("plain", {"results": [None]}),
    ],
)
async def test_an_answer_of_another_form_is_an_outage_and_no_words_for_the_policy(
    server: WebServer, service: str, value: Any
) -> None:
    server.answers = [(200, value)]
    with pytest.raises(Broken, match="answered 200 "):
        await answer(server, service=service, max_attempts=2)
    assert len(server.bodies) == 2


async def test_a_call_that_is_none_is_answered_without_asking(server: WebServer) -> None:
    search = Search(base_url=server.address)
    empty, unknown = texts(await search.step(turn(("search", {"query": " "}), ("find", {}))))
    assert empty.startswith("error: ") and unknown.startswith("error: ") and "'find'" in unknown
    await search.close()
    assert not server.bodies


async def test_the_tool_may_have_another_name() -> None:
    search = Search(base_url="http://127.0.0.1:9", tool="google")
    ((name, (described, _)),) = (await search.listed_tools()).items()
    assert name == described.name == "google" and described.parameters["required"] == ["query"]
    await search.close()
