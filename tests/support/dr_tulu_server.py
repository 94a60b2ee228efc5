"""An MCP server with the tools and arguments of DR Tulu's, at the port that is given. Each finds what it was given, in
the form of the service that DR Tulu's asks."""

import json
import logging
import sys
from typing import Any

from mcp.server.mcpserver import MCPServer

server = MCPServer("research")


@server.tool()
def semantic_scholar_snippet_search(
    query: str, year: str | None = None, paper_ids: str | None = None, venue: str | None = None, limit: int = 10
) -> str:
    """Finds passages of papers."""
    got = _got(query=query, year=year, paper_ids=paper_ids, venue=venue, limit=limit)
    return json.dumps({"data": [{"snippet": {"text": got}, "paper": {"title": "A paper"}}] * limit})


@server.tool()
def serper_google_webpage_search(query: str, num_results: int = 10, gl: str = "us", hl: str = "en") -> str:
    """Finds pages."""
    got = _got(query=query, num_results=num_results, gl=gl, hl=hl)
    return json.dumps({"organic": [{"title": "A page", "link": "https://example.com/a", "snippet": got}]})


@server.tool()
def crawl4ai_docker_fetch_webpage_content(
    url: str,
    base_url: str | None = None,
    api_key: str | None = None,
    use_ai2_config: bool = False,
    bypass_cache: bool = True,
    ignore_links: bool = True,
    use_pruning: bool = False,
    bm25_query: str | None = None,
    timeout_ms: int = 80_000,
    include_html: bool = False,
) -> str:
    """Reads a page."""
    got = _got(url=url, base_url=base_url, use_ai2_config=use_ai2_config, timeout_ms=timeout_ms)
    return json.dumps({"url": url, "success": True, "markdown": got})


@server.tool()
def massive_serve_search(query: str, n_docs: int = 10, domains: str = "wiki", base_url: str | None = None) -> str:
    """Finds passages of an encyclopedia."""
    got = _got(query=query, n_docs=n_docs, domains=domains, base_url=base_url)
    return json.dumps({"data": [{"passage": got}]})


def _got(**arguments: Any) -> str:
    return json.dumps(arguments)


logging.disable(logging.CRITICAL)
if __name__ == "__main__":
    server.run("streamable-http", port=int(sys.argv[1]))
