from typing import Any

import pytest

from services.reward.environments.builtin.mcp import offered_tools
from shoal.conversation import ToolDefinition

SEARCH = ToolDefinition(
    "web_search",
    "Finds pages.",
    {
        "type": "object",
        "properties": {
            "country": {"type": "string"},
            "query": {"type": "string"},
            "limit": {"type": "integer"},
            "backend": {"type": "string"},
        },
        "required": ["backend", "query"],
        "patternProperties": {"x-.*": {}},
    },
)
THERE = {"web_search": SEARCH}


def test_a_name_is_the_tool_as_the_server_describes_it() -> None:
    (offered,) = offered_tools(["web_search"]).values()
    assert offered.definition(THERE) == SEARCH
    (renamed,) = offered_tools({"search": {"tool": "web_search"}}).values()
    assert renamed.definition(THERE) == ToolDefinition("search", "Finds pages.", SEARCH.parameters)


def test_what_is_given_for_the_policy_is_not_offered_to_it() -> None:
    (offered,) = offered_tools({"web_search": {"arguments": {"backend": "b"}}}).values()
    shown = offered.definition(THERE).parameters
    assert list(shown["properties"]) == ["country", "query", "limit"] and shown["required"] == ["query"]
    assert shown["additionalProperties"] is False and "patternProperties" not in shown


def test_the_policy_may_give_what_is_named_also_where_there_is_a_value() -> None:
    table = {"tool": "web_search", "parameters": ["query", "limit"], "arguments": {"backend": "b", "limit": 3}}
    (offered,) = offered_tools({"search": table}).values()
    shown = offered.definition(THERE).parameters
    assert list(shown["properties"]) == ["query", "limit"] and shown["required"] == ["query"]


@pytest.mark.parametrize(
    ("tools", "problem"),
    [
        (["find"], "'find'"),
        ({"find": {}}, "'find'"),
        ({"s": {"tool": "web_search", "parameters": ["page"]}}, "tools.s: web_search has no parameter 'page'"),
        ({"s": {"tool": "web_search", "arguments": {"page": 1}}}, "has no parameter 'page'"),
        ({"s": {"tool": "web_search", "parameters": ["query"]}}, "tools.s: web_search needs 'backend'"),
    ],
)
def test_what_the_server_does_not_have_is_named(tools: Any, problem: str) -> None:
    (offered,) = offered_tools(tools).values()
    with pytest.raises(ValueError) as refused:
        offered.definition(THERE)
    assert problem in str(refused.value)


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ("web_search", "tools.s: must be a table"),
        ({"name": "web_search"}, "tools.s: unknown key 'name'"),
        ({"parameters": "query"}, "tools.s.parameters "),
        ({"arguments": ["query"]}, "tools.s.arguments "),
        ({"tool": 3}, "tools.s.tool "),
    ],
)
def test_a_table_that_cannot_be_meant_is_refused(table: Any, problem: str) -> None:
    with pytest.raises(ValueError) as refused:
        offered_tools({"s": table})
    assert problem in str(refused.value)
