from collections.abc import AsyncIterator
from typing import Any

import pytest

from services.reward.environments.builtin.browse import Browse
from shoal.environment import Broken
from tests.unit.services.reward.environments.builtin.turns import texts, turn
from tests.unit.services.reward.environments.builtin.web_server import WebServer, web_server

PAGE = "https://example.com/k2"


@pytest.fixture
async def server() -> AsyncIterator[WebServer]:
    async with web_server() as server:
        yield server


async def read(server: WebServer, url: str = PAGE, **settings: Any) -> str:
    browse = Browse(base_url=server.address, **settings)
    try:
        (text,) = texts(await browse.step(turn(("browse", {"url": url}))))
        return text
    finally:
        await browse.close()


async def test_a_plain_service_gets_the_address_and_title_and_text_come_back(server: WebServer) -> None:
    server.answers = [(200, {"title": "K2", "text": "A mountain."})]
    assert await read(server, f" {PAGE} ") == "# K2\n\nA mountain."
    assert server.bodies == [{"url": PAGE}]


async def test_jina_gets_its_form_and_key(server: WebServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JINA_API_KEY", "secret")
    server.answers = [(200, {"code": 200, "data": {"title": "K2", "content": "A mountain."}})]
    assert await read(server, service="jina", api_key_env="JINA_API_KEY") == "# K2\n\nA mountain."
    assert (server.paths, server.bodies) == (["/"], [{"url": PAGE}])
    headers = server.headers[0]
    assert (headers["authorization"], headers["accept"]) == ("Bearer secret", "application/json")
    server.answers = [(200, {"code": 422, "message": "no such page"})]
    assert (await read(server, service="jina")).endswith(": no such page")


async def test_crawl4ai_gets_its_form_and_key(server: WebServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRAWL_KEY", "secret")
    result = {"success": True, "markdown": {"raw_markdown": "A mountain."}, "metadata": {"title": "K2"}}
    server.answers = [(200, {"results": [result]})]
    assert await read(server, service="crawl4ai", api_key_env="CRAWL_KEY") == "# K2\n\nA mountain."
    assert server.paths == ["/crawl"] and server.bodies[0]["urls"] == [PAGE]
    assert server.headers[0]["x-api-key"] == "secret"
    server.answers = [(200, {"results": [{"success": False, "error_message": "timeout"}]})]
    assert (await read(server, service="crawl4ai")).endswith(": timeout")


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "example.com", "http://", "http://[x", "javascript:alert(1)", ""]
)
async def test_what_is_no_address_of_a_page_is_not_asked_for(server: WebServer, url: str) -> None:
    assert (await read(server, url)).startswith("error: ")
    assert not server.bodies


BLOCKED = (
    "answers.org", "www.answers.org", "ANSWERS.org.", "user@answers.org:80", "\uff21nswers.org", "answers\u3002org",
    "ans\u00adwers.org",
)  # fmt: skip
NO_HOSTS = ("answers.org\\@k2.org", "answers.org\\.k2.org", "answers%2Eorg", "answers..org")
"""Hosts that browsers read in another way."""


@pytest.mark.parametrize("host", [*BLOCKED, *NO_HOSTS])
async def test_blocked_hosts_and_those_below_them_and_what_is_no_host_are_refused(server: WebServer, host: str) -> None:
    text = await read(server, f"https://{host}/k2", blocked=["Answers.org"])
    assert text.startswith("error: ") and ("may not be read" in text) == (host in BLOCKED), text
    assert not server.bodies


async def test_a_host_in_another_script_may_be_read_or_blocked(server: WebServer) -> None:
    server.answers = [(200, {"text": "x"})]
    assert await read(server, "https://m\u00fcnchen.de/a%20b", blocked=["answers.org"]) == "x"
    assert "may not be read" in await read(server, "https://xn--mnchen-3ya.de/", blocked=["M\u00fcnchen.de"])


async def test_a_host_whose_name_only_ends_alike_is_not_blocked(server: WebServer) -> None:
    server.answers = [(200, {"text": "x"})]
    assert await read(server, "https://myanswers.org/", blocked=["answers.org"]) == "x"


async def test_a_page_that_cannot_be_read_is_told_to_the_policy(server: WebServer) -> None:
    server.answers = [(502, {})]
    assert "answered 502" in await read(server, max_attempts=1)
    server.answers = [(200, {"text": ""})]
    assert "no text" in await read(server)


async def test_a_refused_key_fails_the_episode(server: WebServer) -> None:
    server.answers = [(403, {})]
    with pytest.raises(Broken, match="answered 403"):
        await read(server)


async def test_a_long_page_is_cut_with_a_note(server: WebServer) -> None:
    server.answers = [(200, {"text": "x" * 100})]
    assert await read(server, max_chars=10) == "x" * 10 + "\n[cut: 90 more characters]"
