"""DR Tulu's tools against the package `dr-agent`: its own parser and forms of results, and its MCP server, unmodified.

SHOAL_TEST_PYTHON_DR_AGENT names a Python that has the package.
"""

import json
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from services.reward.environments.builtin.dr_tulu_results import dr_tulu_result
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
TOOLS = """
import asyncio, json, sys
from dr_agent.tool_interface import mcp_tools
kinds = {
    "snippet_search": "SemanticScholarSnippetSearchTool",
    "google_search": "SerperSearchTool",
    "massive_serve": "MassiveServeSearchTool",
}
tools = [
    getattr(mcp_tools, kind)(timeout=180, name=name, tool_parser="v20250824", number_documents_to_search=10)
    for name, kind in kinds.items()
]
page = {"use_docker_version": True, "use_ai2_config": True}
tools += [mcp_tools.Crawl4AIBrowseTool(timeout=180, name="browse_webpage", tool_parser="v20250824", **page)]
"""
CALLS = """
tools = [tool for tool in tools if tool.name != "massive_serve"]
calls = [
    [[tool.get_mcp_tool_name(), tool.get_mcp_params(tool.parse_call(text))] for tool in tools
     if tool.tool_parser.has_calls(text, tool.name)]
    for text in json.loads(sys.argv[1])
]
print(json.dumps({"calls": calls, "stops": tools[0].stop_sequences}))
"""
RESULTS = """
async def written(tool, answer):
    async def answered(*_):
        return answer
    tool._execute_mcp_call, tool._fetch_mcp_tool_schema = answered, answered
    tool._generate_call_id = lambda: "1a2b3c4d"
    output = await tool(f'<call_tool name="{tool.name}">https://example.com/a</call_tool>')
    return [tool.get_mcp_tool_name(), tool.tool_parser.format_result(tool._format_output(output), output)]
by_name = {tool.name: tool for tool in tools}
print(json.dumps([asyncio.run(written(by_name[name], answer)) for name, answer in json.loads(sys.argv[1])]))
"""
_PAPER = {"title": " On GRPO ", "corpusId": "1"}
ANSWERS = [
    ("snippet_search", {"data": []}),
    ("snippet_search", {"error": "429 Too Many Requests", "data": []}),
    ("snippet_search", {
        "data": [
            {"snippet": {"snippetKind": "body", "text": " A <b>passage</b>.\n"}, "paper": _PAPER, "score": 0.5},
            {"snippet": {"snippetKind": "title", "text": "On GRPO"}, "paper": _PAPER},
            {"snippet": {"text": "Of no paper."}},
            {"snippet": {"text": ""}, "paper": {"title": ""}},
            {"paper": _PAPER},
            "what is no table",
        ]
    }),
    ("google_search", {
        "organic": [
            {"title": "A page", "link": "https://example.com/a", "snippet": "Words.", "position": 1},
            {"title": "", "link": "https://example.com/b", "snippet": ""},
            {"title": "No address"},
            {},
        ],
        "answerBox": {"answer": "42"},
    }),
    ("google_search", {}),
    ("massive_serve", {"data": [{"passage": " It is. ", "score": 1.5, "doc_id": 3}, {"passage": ""}, {"score": 1.0}]}),
    ("browse_webpage", {"success": True, "markdown": "# Words\n\nMore.", "fit_markdown": None}),
    ("browse_webpage", {"success": True, "markdown": "All of it.", "fit_markdown": "What matters."}),
    ("browse_webpage", {"success": True, "markdown": "word " * 900}),
    ("browse_webpage", {"success": True, "markdown": "x" * 1999 + " yz"}),
    ("browse_webpage", {"success": True, "markdown": "", "html": "<p>Only HTML.</p>"}),
    ("browse_webpage", {"success": False, "error": "404", "markdown": "Not found"}),
    ("browse_webpage", {"error": "MCP call timed out after 180 seconds", "data": []}),
]  # fmt: skip
"""By the name that the policy calls, what the server of the package says."""
DEFAULTS = {"bm25_query": None, "bypass_cache": True, "ignore_links": True, "include_html": False, "use_pruning": False}
"""What the package says although its server takes the same by default."""


async def test_calls_reach_the_server_of_the_package_as_the_package_sends_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python, port = interpreter_with("dr_agent"), free_port()
    variables = os.environ | {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    theirs = _said_by_the_package(python, variables, CALLS, TEXTS)
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


def test_results_are_written_as_the_package_writes_them() -> None:
    python, variables = interpreter_with("dr_agent"), os.environ | {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    theirs = _said_by_the_package(python, variables, RESULTS, ANSWERS)
    for (_, answer), (tool, written) in zip(ANSWERS, theirs, strict=True):
        text, _ = dr_tulu_result(tool, json.dumps(answer), "1a2b3c4d", "https://example.com/a")
        assert f"<tool_output>{text}</tool_output>" == written, (tool, answer)


def _said_by_the_package(python: str, variables: dict[str, str], program: str, given: Any) -> Any:
    command = [python, "-c", TOOLS + program, json.dumps(given)]
    asked = subprocess.run(command, check=True, capture_output=True, text=True, env=variables)
    return json.loads(asked.stdout.splitlines()[-1])


def _without_defaults(given: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if name not in DEFAULTS or DEFAULTS[name] != value}
