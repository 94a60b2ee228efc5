"""An MCP server with the tools and arguments of DR Tulu's, at the port that is given. Each answers with what it got."""

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
    return _got(query=query, year=year, paper_ids=paper_ids, venue=venue, limit=limit)


@server.tool()
def serper_google_webpage_search(query: str, num_results: int = 10, gl: str = "us", hl: str = "en") -> str:
    """Finds pages."""
    return _got(query=query, num_results=num_results, gl=gl, hl=hl)


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
    return _got(url=url, base_url=base_url, use_ai2_config=use_ai2_config, timeout_ms=timeout_ms)


@server.tool()
def massive_serve_search(query: str, n_docs: int = 10, domains: str = "wiki", base_url: str | None = None) -> str:
    """Finds passages of an encyclopedia."""
    return _got(query=query, n_docs=n_docs, domains=domains, base_url=base_url)


def _got(**arguments: Any) -> str:
    return json.dumps(arguments)


logging.disable(logging.CRITICAL)
if __name__ == "__main__":
    server.run("streamable-http", port=int(sys.argv[1]))
