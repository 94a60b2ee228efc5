"""Tests of the translation of open-instruct's tools and environments."""

import json
from typing import Any

import pytest

from shoal.config import RunConfig
from shoal.translate import Translation, translate_arguments
from tests.support.translations import parsed

API = json.dumps({"api_endpoint": "https://127.0.0.1/execute", "timeout": 3})
THREE = ("--tools", "python", "serper_search", "jina_browse", "--tool_call_names", "code", "search", "browse")
THREE = (*THREE, "--tool_configs", API, "{}", "{}")
DR_TULU = ("--tool_parser_type", "dr_tulu")
HERMES = ("--tool_parser_type", "vllm_hermes")


def _translate(*flags: str, **options: Any) -> Translation:
    return translate_arguments("open-instruct", ["--model_name_or_path", "m", *flags], **options)


def _config(*flags: str, **options: Any) -> RunConfig:
    return parsed(_translate(*flags, **options))


def _refusals(*flags: str) -> dict[str, str]:
    return {refusal.name: refusal.reason for refusal in _translate(*flags).blocking}


def test_several_tools_are_a_toolbox_in_which_each_has_the_name_that_the_policy_calls() -> None:
    config = _config(*THREE, *HERMES, "--max_steps", "7")
    (environment,) = config.environments
    assert (environment.name, environment.source) == ("tools", "toolbox")
    python, search, browse = environment.settings["tools"]
    assert python == {"source": "python", "tool": "code", "timeout_s": 3}
    assert search["service"] == "serper" and search["tool"] == "search" and search["api_key_env"] == "SERPER_API_KEY"
    assert (search["num_results"], search["timeout_s"]) == (5, 10)
    assert (browse["source"], browse["service"], browse["tool"]) == ("browse", "jina", "browse")
    assert {(source.environment, source.tools_column) for source in config.data.sources} == {("tools", "tools")}
    notes = _translate(*THREE, *HERMES).notes
    assert any("column `tools`" in note for note in notes)
    for tool, variable in (("serper_search", "SERPER_API_KEY"), ("jina_browse", "JINA_API_KEY")):
        assert any(note.startswith(f"{tool} ") and variable in note for note in notes), notes
    episodes = config.episodes
    assert (episodes.tool_parser, episodes.max_tool_calls, episodes.max_turns) == ("hermes", 7, 7)
    assert (episodes.turn_rewards, episodes.call_timeout_s, episodes.tools_in_prompt) == ("last", 1800, True)


def test_one_tool_is_its_environment() -> None:
    weather = {"server_url": "http://localhost:8765/mcp", "transport": "http", "timeout": 30, "tool_name": "forecast"}
    config = _config("--tools", "generic_mcp", "--tool_configs", json.dumps(weather), *HERMES)
    (environment,) = config.environments
    assert environment.name == "mcp" and config.data.sources[0].environment == "mcp"
    assert environment.settings == {"url": weather["server_url"], "timeout_s": 30, "tools": ["forecast"]}
    started = {"transport": "stdio", "command": "/bin/server", "args": ["--quiet"]}
    (environment,) = _config("--tools", "generic_mcp", "--tool_configs", json.dumps(started)).environments
    assert environment.settings["command"] == ["/bin/server", "--quiet"]


def test_a_sandbox_has_the_penalty_the_time_and_the_memory_of_the_script() -> None:
    config = json.dumps({"mem_limit": "512m", "timeout": 20, "image": "python:3.12-slim", "pool_size": 4})
    (environment,) = _config("--tools", "generic_sandbox", "--tool_configs", config, *HERMES).environments
    assert environment.name == "sandbox"
    assert environment.settings == {"penalty": -0.05, "timeout_s": 20, "memory_mib": 512}
    assert any(
        "image = python:3.12-slim" in note
        for note in _translate("--tools", "generic_sandbox", "--tool_configs", config).notes
    )
    assert _config("--tools", "generic_sandbox").environments[0].settings["memory_mib"] == 4096


def test_a_script_without_tools_lets_rows_name_their_game() -> None:
    config = _config(*HERMES, "--max_steps", "20", "--dataset_mixer_list", "hamishivi/rlenv-counter-nothink", "1.0")
    assert [environment.name for environment in config.environments] == ["counter", "guess_number", "wordle"]
    assert config.data.sources[0].environment_column == "env_config"
    assert any("env_config" in note for note in _translate(*HERMES).notes)


def test_a_game_of_the_script_has_the_task_of_the_row() -> None:
    config = _config("--tools", "wordle", "--tool_configs", '{"max_guesses": 4, "pool_size": 8}', *HERMES)
    assert (config.environments[0].name, config.environments[0].settings) == ("wordle", {"max_guesses": 4})
    assert config.data.sources[0].environment_column == "env_config"


def test_a_game_may_have_tools_beside_it() -> None:
    (environment,) = _config("--tools", "wordle", "python", *HERMES).environments
    assert (environment.name, environment.source) == ("wordle", "toolbox")
    assert environment.settings["environment"] == {"source": "wordle"}
    assert [tool["source"] for tool in environment.settings["tools"]] == ["python"]
    names = ("--tool_call_names", "wordle", "quick", "slow")
    settings = ("--tool_configs", "{}", "{}", '{"timeout": 60}')
    (environment,) = _config("--tools", "wordle", "python", "python", *names, *settings, *HERMES).environments
    tools = [(tool["tool"], tool["timeout_s"]) for tool in environment.settings["tools"]]
    assert tools == [("quick", 3), ("slow", 60)], "one tool may be there twice"


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("legacy", "tag"),
        ("vllm_hermes", "hermes"),
        ("vllm_olmo3", "pythonic"),
        ("vllm_llama3_json", "llama3_json"),
        ("vllm_qwen3_xml", "qwen3_xml"),
        ("vllm_qwen3xml", "qwen3_xml"),
        ("vllm_qwen3_coder", "qwen3_xml"),
    ],
)
def test_each_form_of_calls_has_its_parser(theirs: str, ours: str) -> None:
    assert _config("--tools", "python", "--tool_parser_type", theirs).episodes.tool_parser == ours


def test_limits_and_rewards_are_taken_over() -> None:
    flags = ("--max_tool_calls", "3", "--per_turn_max_tokens", "50", "--reward_aggregator", "sum")
    episodes = _config("--tools", "python", *flags, "--pass_tools_to_chat_template", "false").episodes
    assert (episodes.max_tool_calls, episodes.max_turn_tokens, episodes.turn_rewards) == (3, 50, "sum")
    assert not episodes.tools_in_prompt and episodes.tool_parser == "tag", "legacy is open-instruct's default"


@pytest.mark.parametrize(
    ("flags", "name", "reason"),
    [
        (("--tools", "crawl4ai_browse"), "tools", 'service = "crawl4ai"'),
        (("--tools", "python", "--tool_parser_type", "dr_tulu"), "tool_parser_type", "as the only tool"),
        (("--tools", "dr_agent_mcp"), "tool_parser_type", "as the only tool"),
        (("--tools", "dr_agent_mcp", "python", *DR_TULU), "tool_parser_type", "as the only tool"),
        (("--tools", "dr_agent_mcp", *DR_TULU), "tool_configs", "supports only v20250824"),
        (("--tools", "dr_agent_mcp", *DR_TULU, "--tool_call_names", "x"), "tool_call_names", "calls of dr_agent_mcp"),
        (("--tools", "python", "--tool_parser_type", "json"), "tool_parser_type", "supports only legacy"),
        (("--tools", "python", "--mask_tool_use", "false"), "mask_tool_use", "must be true"),
        (("--tools", "python", "--max_steps", "0"), "max_steps", "at least 1"),
        (("--tools", "python", "--reward_aggregator", "mean"), "reward_aggregator", "supports only last, sum"),
        (("--tools", "python", "--tool_configs", "{}", "{}"), "tool_configs", "one entry per tool (1)"),
        (("--tools", "python", "--tool_call_names", "a", "b"), "tool_call_names", "one entry per tool (1)"),
        (("--tools", "python", "--tool_configs", "{"), "tool_configs", "a table, as JSON"),
        (("--tools", "python", "--tool_configs", '{"memory": 3}'), "tool_configs", "no counterpart"),
        (("--tools", "generic_mcp", "--tool_configs", '{"transport": "sse"}'), "tool_configs", "no counterpart"),
        (("--tools", "counter", "wordle"), "tools", "only one environment"),
        (("--only_reward_good_outputs", "true"), "only_reward_good_outputs", "last turn"),
        (("--search_api_endpoint", "http://127.0.0.1"), "search_api_endpoint", "earlier tools"),
    ],
)
def test_what_has_no_counterpart_is_refused_by_name(flags: tuple[str, ...], name: str, reason: str) -> None:
    assert reason in _refusals(*flags).get(name, ""), _refusals(*flags)


def test_an_environment_of_ones_own_resolves_what_is_refused() -> None:
    mine = ['environments=[{name = "research", source = "mcp", settings = {url = "http://127.0.0.1:8000/mcp"}}]']
    mine += ['data.sources=[{path = "d.jsonl", environment = "research"}]', 'episodes.tool_parser="regex"']
    mine += ["episodes.tool_pattern='<call name=\"(?P<name>[a-z_]+)\">(?P<argument>.*?)</call>'"]
    flags = ("--tools", "crawl4ai_browse", "--tool_parser_type", "calls", "--pass_tools_to_chat_template", "false")
    config = _config(*flags, overrides=mine)
    assert (config.environments[0].name, config.episodes.tool_parser) == ("research", "regex")
    assert config.data.sources[0].environment == "research"


def test_flags_of_tools_change_nothing_in_a_script_without_tools() -> None:
    translation = _translate("--max_tool_calls", "5", "--pool_size", "4", "--mask_tool_use", "false")
    config = parsed(translation)
    assert not config.environments and config.episodes.max_tool_calls == 64
    assert any(note.startswith("max_tool_calls = 5: ") for note in translation.notes)


def test_results_are_in_the_policys_turn_with_the_parsers_that_put_them_there() -> None:
    assert _config(*THREE, "--tool_parser_type", "legacy").episodes.inline_results == "<output>\n{result}\n</output>\n"
    assert _config(*THREE).episodes.inline_results == "<output>\n{result}\n</output>\n", "legacy is the default"
    assert _config(*THREE, *HERMES).episodes.inline_results == ""
