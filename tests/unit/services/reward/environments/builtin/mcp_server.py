"""An MCP server with tools of every temper: over stdio, or over HTTP at the port that is given."""

import asyncio
import logging
import os
import sys

from mcp.server.mcpserver import MCPServer

server = MCPServer("tempers")
calls = 0


@server.tool()
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


@server.tool()
def fail(why: str) -> str:
    """Fails."""
    raise ValueError(why)


@server.tool()
def count() -> int:
    """Counts the calls of this server."""
    global calls
    calls += 1
    return calls


@server.tool()
def variable(name: str) -> str:
    """Reads an environment variable."""
    return os.environ.get(name, "unset")


@server.tool()
async def wait() -> str:
    """Never answers."""
    await asyncio.sleep(3600)
    return "late"


@server.tool()
def die() -> str:
    """Ends the server."""
    os._exit(3)


logging.disable(logging.CRITICAL)
if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run("streamable-http", port=int(sys.argv[1]))
    else:
        server.run("stdio")
