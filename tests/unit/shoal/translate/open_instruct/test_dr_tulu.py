"""Translation of DR Tulu's tools; tests/contract/environments/test_runs_with_real_environments.py plays with them."""

import json
from typing import Any

import pytest

from shoal.config import RunConfig
from shoal.translate import Translation, translate_arguments
from tests.support.open_instruct_scripts import flags_of
from tests.support.translations import parsed

GIVEN = {"tool_names": "snippet_search", "parser_name": "v20250824"}


def _translate(*overrides: str, **settings: Any) -> Translation:
    flags = ("--tools", "dr_agent_mcp", "--tool_parser", "dr_tulu", "--tool_configs", json.dumps(GIVEN | settings))
    return translate_arguments("open-instruct", ["--model_name_or_path", "m", *flags], overrides=list(overrides))


def _config(*overrides: str, **settings: Any) -> RunConfig:
    return parsed(_translate(*overrides, **settings))


def test_the_tools_of_the_script_are_those_of_its_server() -> None:
    flags = flags_of("debug/tools/dr_tulu_parser_debug.sh")
    translation = translate_arguments("open-instruct", flags, skip=["all"])
    assert [refusal.name for refusal in translation.refusals] == ["system_prompt_override_file"]
    config = parsed(translation)
    (environment,) = config.environments
    assert (environment.name, environment.source) == ("mcp", "")
    search, web, page = environment.settings.pop("tools").values()
    assert environment.settings == {"url": "http://127.0.0.1:8000/mcp", "timeout_s": 180, "results": "dr_tulu"}
    assert search == {
        "tool": "semantic_scholar_snippet_search",
        "parameters": ["query", "limit"],
        "arguments": {"limit": 10},
    }
    assert (web["tool"], web["arguments"]) == ("serper_google_webpage_search", {"num_results": 10})
    assert page == {
        "tool": "crawl4ai_docker_fetch_webpage_content",
        "parameters": ["url"],
        "arguments": {"use_ai2_config": True, "timeout_ms": 179_000},
    }
    episodes = config.episodes
    assert (episodes.tool_parser, episodes.max_tool_calls, episodes.tools_in_prompt) == ("call_tool", 5, False)
    assert config.has_stop_strings and config.data.sources[0].environment == "mcp"
    assert any("<tool_output>" in note for note in translation.notes)
    assert any("http://127.0.0.1:8000/mcp: " in note for note in translation.notes)


def test_settings_of_the_package_reach_its_server() -> None:
    (environment,) = _config(
        tool_names="massive_serve, browse_webpage", host="10.0.0.8", port=9, timeout=60, num_results=3,
        base_url="http://10.0.0.9", transport_type="StreamableHttpTransport", pool_size=4,
    ).environments  # fmt: skip
    tools = environment.settings["tools"]
    assert (environment.settings["url"], environment.settings["timeout_s"]) == ("http://10.0.0.8:9/mcp", 60)
    assert tools["massive_serve"] == {
        "tool": "massive_serve_search",
        "parameters": ["query"],
        "arguments": {"n_docs": 3, "base_url": "http://10.0.0.9"},
    }
    assert tools["browse_webpage"]["arguments"] == {
        "use_ai2_config": True,
        "timeout_ms": 59_000,
        "base_url": "http://10.0.0.9",
    }


@pytest.mark.parametrize(
    ("settings", "reason", "cure"),
    [
        ({"parser_name": "unified"}, "parser_name = unified: Shoal supports only v20250824", "episodes.tool_parser"),
        ({"tool_names": "snippet_search,scholar"}, "scholar: must be names from snippet_search, ", "environments"),
        ({"transport_type": "FastMCPTransport"}, "supports only StreamableHttpTransport", "environments"),
        ({"cache": True}, "cache = True: this setting has no counterpart", "environments"),
    ],
)
def test_what_is_not_known_is_refused_by_name_with_the_cure(settings: dict[str, Any], reason: str, cure: str) -> None:
    (refusal,) = _translate(**settings).blocking
    assert (refusal.name, refusal.cure) == ("tool_configs", cure)
    assert reason in str(refusal), refusal


def test_a_form_of_ones_own_resolves_a_parser_that_is_not_known() -> None:
    pattern = "episodes.tool_pattern='<tool name=\"(?P<name>[a-z_]+)\">(?P<argument>.*?)</tool>'"
    stop = 'sampling.stop_strings=["</tool>"]'
    config = _config('episodes.tool_parser="regex"', pattern, stop, parser_name="unified")
    assert config.episodes.tool_parser == "regex" and "snippet_search" in config.environments[0].settings["tools"]
