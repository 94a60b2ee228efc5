"""The translation of DR Tulu's tools against the package `dr-agent`: its own parser, and its MCP server, unmodified.

SHOAL_TEST_PYTHON_DR_AGENT names a Python that has the package.
"""

import json
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from services.reward.environments.builtin.mcp import Mcp
from shoal.environment import Turn
from shoal.episodes.tool_calls import check_tools, make_parser, stop_strings
from shoal.translate import translate_arguments
from tests.support.interpreters import interpreter_with
from tests.support.local_stack import free_port
from tests.support.open_instruct_scripts import flags_of
from tests.support.real_environments import serving

TEXTS = [
    '<think>I look.</think><call_tool name="google_search">solar efficiency</call_tool>',
    '<call_tool name="snippet_search" limit="8" year="2021-2025" fieldsOfStudy="Medicine, Law">evaluation</call_tool>',
    '<call_tool name="browse_webpage">https://example.com/a</call_tool>',
    '<call_tool name="google_search" gl="de" num_results="4">\n  a < b & c > d \n</call>',
    '<think>More: <call_tool name="google_search">GRPO</call_tool>',
    'A <call_tool> tag is <call_tool name="massive_serve">not offered</call_tool>',
    "<call_tool  name='google_search' >GRPO</call_tool>",
]
PACKAGE = """
import json, sys
from dr_agent.tool_interface import mcp_tools
kinds = {"snippet_search": "SemanticScholarSnippetSearchTool", "google_search": "SerperSearchTool"}
tools = [
    getattr(mcp_tools, kind)(timeout=180, name=name, tool_parser="v20250824", number_documents_to_search=10)
    for name, kind in kinds.items()
]
page = {"use_docker_version": True, "use_ai2_config": True}
tools += [mcp_tools.Crawl4AIBrowseTool(timeout=180, name="browse_webpage", tool_parser="v20250824", **page)]
calls = [
    [[tool.get_mcp_tool_name(), tool.get_mcp_params(tool.parse_call(text))] for tool in tools
     if tool.tool_parser.has_calls(text, tool.name)]
    for text in json.loads(sys.argv[1])
]
print(json.dumps({"calls": calls, "stops": tools[0].stop_sequences}))
"""
DEFAULTS = {"bm25_query": None, "bypass_cache": True, "ignore_links": True, "include_html": False, "use_pruning": False}
"""What the package says although its server takes the same by default."""


async def test_calls_reach_the_server_of_the_package_as_the_package_sends_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python, port = interpreter_with("dr_agent"), free_port()
    variables = os.environ | {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    theirs = _said_by_the_package(python, variables)
    flags = [flag.replace("8000", str(port)) for flag in flags_of("debug/tools/dr_tulu_parser_debug.sh")]
    values = translate_arguments("open-instruct", flags, skip=["all"]).values
    (table,) = values["environments"]
    server = [python, "-m", "dr_agent.mcp_backend.main", "--port", str(port), "--no-cache"]
    sent: list[list[Any]] = []

    async def record(name: str, arguments: dict[str, Any]) -> Any:
        """In place of the server, which would ask the services of others."""
        sent.append([name, arguments])
        return SimpleNamespace(content=[], structured_content={}, is_error=False)

    with serving(server, table["settings"]["url"], tmp_path / "log", tmp_path, variables):
        environment = Mcp(**table["settings"])
        try:
            tools = await environment.tools()
            check_tools(tools)
            form = values["episodes"]["tool_parser"]
            assert list(stop_strings(form, tools)) == theirs["stops"]
            monkeypatch.setattr(environment._client, "call_tool", record)
            for text, calls in zip(TEXTS, theirs["calls"], strict=True):
                sent.clear()
                await environment.step(Turn(1, "", make_parser(form)(text, tools, 1).calls))
                assert sent == [[name, _without_defaults(given)] for name, given in calls], text
        finally:
            await environment.close()
    assert [len(calls) for calls in theirs["calls"]] == [1, 1, 1, 1, 1, 0, 0]


def _said_by_the_package(python: str, variables: dict[str, str]) -> Any:
    command = [python, "-c", PACKAGE, json.dumps(TEXTS)]
    asked = subprocess.run(command, check=True, capture_output=True, text=True, env=variables)
    return json.loads(asked.stdout.splitlines()[-1])


def _without_defaults(given: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if name not in DEFAULTS or DEFAULTS[name] != value}
