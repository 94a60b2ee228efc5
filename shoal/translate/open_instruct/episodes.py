"""open-instruct's flags for tools and environments."""

from typing import Any

from shoal.translate.open_instruct.dr_tulu import PARSER, check_dr_tulu
from shoal.translate.open_instruct.tools import GAMES, read_tools, tool_table
from shoal.translate.shared.draft import Draft, Origin, Source
from shoal.translate.shared.field import Field, choice, composed, ignored, kept, refused, rows

_EARLIER = "an option of open-instruct's earlier tools: give tools and tool_configs instead"
_PARSERS = {
    "legacy": "tag",
    PARSER: "call_tool",
    "vllm_hermes": "hermes",
    "vllm_llama3_json": "llama3_json",
    "vllm_olmo3": "pythonic",
    "vllm_qwen3_coder": "qwen3_xml",
    "vllm_qwen3_xml": "qwen3_xml",
    "vllm_qwen3xml": "qwen3_xml",
}
_INLINE = {"legacy": "<output>\n{result}\n</output>\n", PARSER: "<tool_output>\n{result}\n</tool_output>\n"}
"""Texts of results in the policy's turn, by parser."""
_CALL_S = 1800.0
_EPISODE_S = 4 * _CALL_S
_COLUMN = "env_config"

EPISODES: list[Field] = rows(
    composed("tools", "texts", [], "environments data.sources", why="several tools become a toolbox", accepts=[None]),
    composed(
        "tool_call_names",
        "texts",
        [],
        "environments",
        why="the setting `tool` of search, browse and python",
        accepts=[None],
    ),
    composed(
        "tool_configs",
        "any",
        [],
        "environments",
        why="the settings of each tool; ids of dr_agent_mcp's results come from the episode's seed (its package draws "
        "them at random), and the policy is told of a failed call at once (its package tries three times)",
    ),
    composed(
        "tool_parser_type",
        "text",
        "legacy",
        "episodes.tool_parser episodes.inline_results data.sources",
        why="the form of calls; results are in the policy's turn with legacy and dr_tulu, and with others in turns "
        "that the chat template writes",
        aliases=["tool_parser"],
    ),
    composed(
        "max_steps",
        "integer",
        5,
        "episodes.max_tool_calls episodes.max_turns",
        why="in open-instruct it limits calls of tools, and the turns of a text game",
        aliases=["max_tool_calls"],
    ),
    composed("per_turn_max_tokens", "integer", None, "episodes.max_turn_tokens"),
    composed("pass_tools_to_chat_template", "flag", True, "episodes.tools_in_prompt"),
    composed("reward_aggregator", "text", "last", "episodes.turn_rewards"),
    composed("mask_tool_use", "flag", True, "", why="tokens of the environment are never trained on"),
    ignored("pool_size", "environments.episodes_per_process and max_episodes bound how many episodes run at once"),
    refused(
        "only_reward_good_outputs",
        "flag",
        False,
        "verifiers judge what the policy says in its last turn, whether or not its calls worked",
    ),
    refused("search_api_endpoint code_tool_api_endpoint", "any", None, _EARLIER),
    refused("number_documents_to_search", "any", 3, _EARLIER),
)
_OPTIONS = tuple(row.name for row in EPISODES if row.composed)


def compose_episodes(source: Source, draft: Draft) -> dict[str, str]:
    """Sets `[[environments]]` and `[episodes]`. Returns settings for each source of prompts: its environment.

    A script names tools for every prompt, or only the form of calls if the rows of the data name their environments.
    """
    tools = read_tools(source, draft)
    if not tools and not source.is_set("tool_parser_type"):
        unused = [name for name in _OPTIONS if name not in ("tools", "tool_call_names", "tool_configs")]
        source.note_unused(*unused, why="changes nothing without tools and tool_parser_type")
        return {}
    if not source["mask_tool_use"]:
        draft.refuse("mask_tool_use", False, "must be true: Shoal trains only on tokens that the policy sampled")
    games = [tool for tool in tools if tool.name in GAMES]
    if len(games) > 1:
        draft.refuse(
            "tools",
            [tool.name for tool in games],
            "a prompt has only one environment: name one of them",
            cure="environments",
        )
    check_dr_tulu(source["tools"] or [], source["tool_call_names"], source["tool_parser_type"], draft)
    _limits(source, draft)
    names = [name for name in ("tools", "tool_call_names", "tool_configs") if source.is_set(name)]
    if source["tools"] and not tools:
        return {}  # Each is refused.
    if not tools or games:
        origin = source.origin(*names) if tools else Origin("the games of open-instruct, which rows may name", True)
        tables = [_game(games[0].name, tools, draft)] if games else [{"name": name} for name in GAMES]
        told = {"environment_column": _COLUMN}
        draft.notes.append(
            f"rows name their environment and its task in the column {_COLUMN}, and a row without one is a prompt of "
            "a single turn; leave data.sources.environment_column out for data without this column"
        )
    else:
        origin = source.origin(*names)
        tables = [_tools(tools, draft)]
        told = {"environment": tables[0]["name"]}
        draft.notes.append("a row that names tools in its column `tools` has only these tools, any other row has all")
    draft.set("environments", tables, origin)
    draft.of_sources.update(told)
    return told


def _game(name: str, tools: list[Any], draft: Draft) -> dict[str, Any]:
    """Returns the table of a game. Other tools may be offered with it."""
    tables = [tool_table(tool, draft) for tool in tools]
    game = tables.pop([tool.name for tool in tools].index(name))
    if not tables:
        settings = {key: value for key, value in game.items() if key != "source"}
        return {"name": name} | ({"settings": settings} if settings else {})
    return {"name": name, "source": "toolbox", "settings": {"tools": tables, "environment": game}}


def _tools(tools: list[Any], draft: Draft) -> dict[str, Any]:
    """Returns the table of a tool, or of a toolbox for several tools."""
    tables = [tool_table(tool, draft) for tool in tools]
    if len(tables) > 1:
        return {"name": "tools", "source": "toolbox", "settings": {"tools": tables}}
    source = tables[0].pop("source")
    return {"name": source} | ({"settings": tables[0]} if tables[0] else {})


def _limits(source: Source, draft: Draft) -> None:
    parser, steps = source["tool_parser_type"], source["max_steps"]
    try:
        draft.set("episodes.tool_parser", choice(_PARSERS)(parser), source.origin("tool_parser_type"))
        if parser in _INLINE:
            draft.set("episodes.inline_results", _INLINE[parser], source.origin("tool_parser_type"))
    except ValueError as error:
        draft.refuse("tool_parser_type", parser, str(error), cure="episodes.tool_parser")
    if steps < 1:
        draft.refuse("max_steps", steps, "must be at least 1", cure="episodes.max_tool_calls")
    else:
        source.copy("max_steps", "episodes.max_tool_calls")
        source.copy("max_steps", "episodes.max_turns")
    source.copy("per_turn_max_tokens", "episodes.max_turn_tokens")
    source.copy("pass_tools_to_chat_template", "episodes.tools_in_prompt")
    try:
        how = kept("last", "sum")(source["reward_aggregator"])
        draft.set("episodes.turn_rewards", how, source.origin("reward_aggregator"))
    except ValueError as error:
        draft.refuse("reward_aggregator", source["reward_aggregator"], str(error), cure="episodes.turn_rewards")
    origin = Origin("open-instruct gives each call half an hour", False)
    draft.set("episodes.call_timeout_s", _CALL_S, origin)
    draft.set("episodes.timeout_s", _EPISODE_S, origin)
