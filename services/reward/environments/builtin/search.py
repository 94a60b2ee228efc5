"""The environment `search`."""

from collections.abc import Callable, Mapping
from typing import Any

from services.reward.environments.builtin.web import WebTool, shortened
from shoal.environment import ToolError

Results = list[tuple[str, str, str]]
"""The title, address and text of each result."""


class Search(WebTool):
    """A search engine, which the policy asks with the tool `search`.

    `service` is the form of the requests: "serper", "s2" (Semantic Scholar's snippets), or "plain", for your own
    server, which gets {"query": ..., "num_results": ...} and answers {"results": [{"title", "url", "text"}]}.

    The environment gives no rewards: the verifiers of the data give them.
    """

    def __init__(
        self, service: str = "plain", num_results: int = 5, max_chars: int = 5000, tool: str = "search", **endpoint: Any
    ) -> None:
        if service not in _SERVICES:
            raise ValueError(f"service must be one of {', '.join(_SERVICES)} (given: {service!r})")
        if num_results < 1 or max_chars < 1:
            raise ValueError(f"num_results and max_chars must be at least 1 (given: {num_results}, {max_chars})")
        route, self._body, self._read, request = _SERVICES[service]
        self._num_results, self._max_chars = num_results, max_chars
        super().__init__(endpoint, route, expected="list of results", **request)

        async def search(query: str) -> str:
            """Search for pages. Returns the title, the address and an excerpt of each.

            Args:
                query: what to search for
            """
            return await self._search(query)

        search.__name__ = tool
        self.tools = (search,)

    async def _search(self, query: str) -> str:
        if not query.strip():
            raise ToolError("the query is empty")
        results = await self.ask(self._body(query, self._num_results), self._read)
        found = [_written(number, *result) for number, result in enumerate(results[: self._num_results], start=1)]
        return shortened("\n\n".join(found), self._max_chars) if found else "Nothing was found."


def _read_serper(answer: Any) -> Results:
    found = answer.get("organic", ())
    results = [(_text(item, "title"), _text(item, "link"), _text(item, "snippet")) for item in found]
    box = answer.get("answerBox") or {}
    direct = _text(box, "answer") or _text(box, "snippet")
    return [(_text(box, "title") or "Answer", _text(box, "link"), direct), *results] if direct else results


def _read_s2(answer: Any) -> Results:
    return [
        (_text(item.get("paper") or {}, "title"), "", _text(item.get("snippet") or {}, "text"))
        for item in answer["data"]
    ]


def _read_plain(answer: Any) -> Results:
    return [(_text(item, "title"), _text(item, "url"), _text(item, "text")) for item in answer["results"]]


def _text(item: Mapping[str, Any], key: str) -> str:
    value = item.get(key)
    return value.strip() if isinstance(value, str) else ""


def _written(number: int, title: str, url: str, text: str) -> str:
    return "\n".join(line for line in (f"{number}. {title}".strip(), url, text) if line)


_Service = tuple[str, Callable[[str, int], Mapping[str, Any]], Callable[[Any], Results], dict[str, Any]]
_SERVICES: dict[str, _Service] = {
    "serper": ("/search", lambda query, number: {"q": query, "num": number}, _read_serper, {"key_header": "X-API-KEY"}),
    "s2": (
        "/graph/v1/snippet/search",
        lambda query, number: {"query": query, "limit": number},
        _read_s2,
        {"key_header": "x-api-key", "method": "GET"},
    ),
    "plain": ("", lambda query, number: {"query": query, "num_results": number}, _read_plain, {}),
}
