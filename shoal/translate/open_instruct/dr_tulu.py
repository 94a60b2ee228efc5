"""Translates open-instruct's tool dr_agent_mcp: the tools of DR Tulu's package, which calls an MCP server.

The package sends the server the policy's text and its own settings. From a call it reads only the number of results.
"""

from collections.abc import Sequence
from typing import Any

from shoal.translate.shared.draft import Draft

DR_TULU = "dr_agent_mcp"
PARSER = "dr_tulu"
"""open-instruct's parser of the tool's calls, which leaves the calls to the package."""
_FORM = "v20250824"
"""The package's name of the form that Shoal calls `call_tool`."""
_TRANSPORT = "StreamableHttpTransport"
_ALL_ADDRESSES = ("0.0.0.0", "::")
"""Addresses at which a server listens, but which a client cannot use."""
_TOOLS = {
    "snippet_search": ("semantic_scholar_snippet_search", ["query", "limit"], "limit"),
    "google_search": ("serper_google_webpage_search", ["query", "num_results"], "num_results"),
    "massive_serve": ("massive_serve_search", ["query"], "n_docs"),
    "browse_webpage": ("crawl4ai_docker_fetch_webpage_content", ["url"], ""),
}
"""By the name that the policy calls: the server's tool, the policy's arguments, and the parameter for `num_results`."""
_WITH_ADDRESS = ("massive_serve", "browse_webpage")
"""Tools whose server asks another server, at `base_url`."""
_NOTE = (
    "dr_agent_mcp puts its results into <tool_output>, with ids of snippets; open-instruct's parser adds another "
    '<tool_output> around them, and so does Shoal; to leave it out, --set episodes.inline_results="{result}"'
)
_OWN_SERVER = "for another server, give --set environments=..."
SETTINGS_REFUSED = {
    (DR_TULU, "parser_name"): (
        f"Shoal supports only {_FORM}; for another form of calls, give --set episodes.tool_parser=..., and the strings "
        "that end a call by --set sampling.stop_strings=... (docs/tool-calls.md)",
        "episodes.tool_parser",
    ),
    (DR_TULU, "tool_names"): (f"must be names from {', '.join(_TOOLS)}, with commas; {_OWN_SERVER}", "environments"),
    (DR_TULU, "transport_type"): (f"Shoal supports only {_TRANSPORT}; {_OWN_SERVER}", "environments"),
}
"""Settings of a tool that may have no counterpart: the reason, and the field of Shoal that resolves the refusal."""


def dr_tulu_table(settings: dict[str, Any], call_name: str) -> dict[str, Any]:
    """Returns the table of the MCP server. Removes each setting that has a counterpart from `settings`."""
    timeout_s, num_results = settings.pop("timeout", 180), settings.pop("num_results", 10)
    host, port = settings.pop("host", None) or _ALL_ADDRESSES[0], settings.pop("port", None) or 8000
    of_address = {"base_url": address} if (address := settings.pop("base_url", None)) else {}
    names = [name.strip() for name in str(settings.setdefault("tool_names", "")).split(",") if name.strip()]
    if names and {*names} <= {*_TOOLS}:
        del settings["tool_names"]
    if settings.setdefault("parser_name", "") == _FORM:
        del settings["parser_name"]
    if settings.get("transport_type") in (None, _TRANSPORT):
        settings.pop("transport_type", None)
    tools = {}
    for name in [name for name in names if name in _TOOLS]:
        tool, parameters, count = _TOOLS[name]
        own = {count: num_results} if count else {"use_ai2_config": True, "timeout_ms": int(1000 * (timeout_s - 1))}
        arguments = own | (of_address if name in _WITH_ADDRESS else {})
        tools[name] = {"tool": tool, "parameters": parameters, "arguments": arguments}
    url = f"http://{'127.0.0.1' if host in _ALL_ADDRESSES else host}:{port}/mcp"
    return {"source": "mcp", "url": url, "timeout_s": timeout_s, "results": "dr_tulu", "tools": tools}


def check_dr_tulu(names: Sequence[str], call_names: Sequence[str] | None, parser: str, draft: Draft) -> None:
    """Refuses combinations of DR Tulu's tools and parser that do not work in open-instruct."""
    if DR_TULU not in names and parser != PARSER:
        return
    if list(names) != [DR_TULU] or parser != PARSER:
        reason = f"the parser {PARSER} needs {DR_TULU} as the only tool, and {DR_TULU} needs this parser"
        draft.refuse("tool_parser_type", parser, reason, cure="episodes.tool_parser")
    elif call_names and list(call_names) != [DR_TULU]:
        reason = f"the parser {PARSER} finds only calls of {DR_TULU}: leave tool_call_names out"
        draft.refuse("tool_call_names", call_names, reason, cure="environments")
    else:
        draft.notes.append(_NOTE)
