"""The environment `browse`."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from services.reward.environments.builtin.web import WebTool, shortened
from shoal.environment import ToolError


class Browse(WebTool):
    """A reader of web pages, which the policy asks with the tool `browse`.

    `service` is the form of the requests: "jina", "crawl4ai", or "plain", for your own server, which gets {"url": ...}
    and answers {"title": ..., "text": ...}. Pages of the hosts in `blocked`, and of their subdomains, are refused,
    for example hosts that have the answers.

    The environment gives no rewards: the verifiers of the data give them. If a page cannot be read, the policy reads an
    error.
    """

    def __init__(
        self,
        service: str = "plain",
        max_chars: int = 5000,
        blocked: Sequence[str] = (),
        tool: str = "browse",
        **endpoint: Any,
    ) -> None:
        if service not in _SERVICES:
            raise ValueError(f"service must be one of {', '.join(_SERVICES)} (given: {service!r})")
        if max_chars < 1:
            raise ValueError(f"max_chars must be at least 1 (given: {max_chars})")
        route, self._body, self._read, request = _SERVICES[service]
        self._max_chars, self._blocked = max_chars, [_in_ascii(host.strip(".")) for host in blocked]
        super().__init__(endpoint, route, expected="page", **request)

        async def browse(url: str) -> str:
            """Read a web page. Returns its title and text.

            Args:
                url: address of the page
            """
            return await self._browse(url)

        browse.__name__ = tool
        self.tools = (browse,)

    async def _browse(self, url: str) -> str:
        url = url.strip()
        host = _host_of(url)
        if not host:
            raise ToolError(f"{url[:100]!r} is no address of a page: it must begin with https:// or http://")
        if any(f".{host}".endswith(f".{blocked}") for blocked in self._blocked):
            raise ToolError(f"{host} may not be read")
        title, text = await self.ask(self._body(url), self._read, outage_is_told=True)
        page = f"# {title}\n\n{text}" if title else text
        return shortened(page, self._max_chars) if text else "The page has no text."


def _host_of(url: str) -> str:
    """Returns the host that a browser would ask for a page; empty if the text is not the address of a page."""
    try:
        parts = urlsplit(url)
        host = _in_ascii(parts.hostname or "").rstrip(".")
    except ValueError:
        return ""
    # Browsers read text after a backslash as the path, and decode percent signs.
    is_plain = not {"\\", "%"} & {*parts.netloc}
    return host if parts.scheme in ("http", "https") and is_plain else ""


def _in_ascii(host: str) -> str:
    """Returns the canonical name of a host, which may have several forms in Unicode. Raises `ValueError`."""
    return host.encode("idna").decode().lower()


def _read_jina(answer: Any) -> tuple[str, str]:
    if answer.get("code", 200) != 200:
        raise ToolError(f"the page cannot be read: {answer.get('message') or answer['code']}")
    return str(answer["data"].get("title") or ""), str(answer["data"].get("content") or "")


def _read_crawl4ai(answer: Any) -> tuple[str, str]:
    result = answer["results"][0]
    if not result.get("success"):
        raise ToolError(f"the page cannot be read: {result.get('error_message') or 'the crawler gives no reason'}")
    text = result.get("markdown") or ""
    if isinstance(text, Mapping):
        text = text.get("fit_markdown") or text.get("raw_markdown") or ""
    return str((result.get("metadata") or {}).get("title") or ""), str(text)


def _crawl4ai_body(url: str) -> dict[str, Any]:
    left_out = {"exclude_social_media_links": True, "excluded_tags": ["form", "header", "footer", "nav"]}
    return {
        "urls": [url],
        "browser_config": {"type": "BrowserConfig", "params": {"headless": True}},
        "crawler_config": {
            "type": "CrawlerRunConfig",
            "params": {"cache_mode": "enabled", "exclude_external_links": True, "word_count_threshold": 10, **left_out},
        },
    }


_Service = tuple[str, Callable[[str], Mapping[str, Any]], Callable[[Any], tuple[str, str]], dict[str, Any]]
_JINA_HEADERS = {"Accept": "application/json", "X-Return-Format": "markdown"}
_SERVICES: dict[str, _Service] = {
    "jina": ("/", lambda url: {"url": url}, _read_jina, {"headers": _JINA_HEADERS}),
    "crawl4ai": ("/crawl", _crawl4ai_body, _read_crawl4ai, {"key_header": "x-api-key"}),
    "plain": ("", lambda url: {"url": url}, lambda said: (str(said.get("title") or ""), str(said["text"])), {}),
}
