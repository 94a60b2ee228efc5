"""open-instruct's tools and environments by name, with Shoal's counterparts."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from shoal.parsing import parse_json
from shoal.translate.open_instruct.dr_tulu import DR_TULU, SETTINGS_REFUSED, dr_tulu_table
from shoal.translate.shared.draft import Draft, Source

GAMES = ("counter", "guess_number", "wordle")
"""Environments that define the task of each row of the data."""
_KIB = {"k": 1, "m": 1024, "g": 1024**2}
_LONGEST = 65_536
"""The most characters of a page or of a list of results, as of an observation. open-instruct has no limit."""


@dataclass(frozen=True)
class Tool:
    """A tool of a script: its name in open-instruct's registry, the name that the policy calls, its settings."""

    name: str
    call_name: str
    settings: dict[str, Any]


def read_tools(source: Source, draft: Draft) -> list[Tool]:
    """Returns the tools of a script that have a counterpart. Refuses other tools, and conflicting flags."""
    names, call_names, configs = source["tools"] or [], source["tool_call_names"], source["tool_configs"]
    if not names:
        for flag in ("tool_call_names", "tool_configs"):
            source.note_unused(flag, why="changes nothing without tools")
        return []
    configs = configs if isinstance(configs, list | tuple) else [configs] if configs else []
    for flag, values in (("tool_call_names", call_names), ("tool_configs", configs)):
        if values and len(values) != len(names):
            draft.refuse(flag, values, f"must have one entry per tool ({len(names)})", cure="environments")
            return []
    tools = []
    for index, name in enumerate(names):
        settings = _settings(configs[index] if configs else {})
        if settings is None:
            draft.refuse("tool_configs", configs[index], f"the settings of {name} must be a table, as JSON")
            return []
        if name in _MADE:
            tools.append(Tool(name, call_names[index] if call_names else name, settings))
            continue
        reason = _REASONS.get(name, f"Shoal supports only {', '.join(_MADE)}")
        draft.refuse("tools", name, f"{reason}; declare the tool with --set environments=...", cure="environments")
    return tools


def tool_table(tool: Tool, draft: Draft) -> dict[str, Any]:
    """Returns a tool's table: an environment that comes with Shoal, and its settings. Refuses unknown settings."""
    # The size of a pool of actors does not matter here, since processes share episodes.
    settings = {key: value for key, value in tool.settings.items() if key != "pool_size"}
    table = _MADE[tool.name](settings, tool.call_name)
    for key, value in settings.items():
        if key in _NOTED:
            draft.notes.append(f"tool_configs: {key} = {value} of {tool.name} changes nothing here: {_NOTED[key]}")
        else:
            reason, cure = SETTINGS_REFUSED.get((tool.name, key), ("this setting has no counterpart", "environments"))
            draft.refuse("tool_configs", f"{tool.name}: {key} = {value}", reason, cure=cure)
    if variable := table.get("api_key_env"):
        draft.notes.append(f"{tool.name} needs its key in the environment variable {variable} of the reward service")
    if url := table.get("url"):
        draft.notes.append(f"{tool.name} asks the MCP server at {url}: start the server before the run")
    return {key: value for key, value in table.items() if value is not None}


def _settings(config: Any) -> dict[str, Any] | None:
    if isinstance(config, str):
        try:
            config = parse_json(config)
        except ValueError:
            return None
    return dict(config) if isinstance(config, Mapping) else None


def _web(source: str, service: str, base_url: str, key: str, timeout_s: float) -> Callable[..., dict[str, Any]]:
    def made(settings: dict[str, Any], call_name: str) -> dict[str, Any]:
        seconds = settings.pop("timeout", timeout_s)
        table = {"source": source, "service": service, "base_url": base_url, "api_key_env": key, "tool": call_name}
        if source == "search":
            table["num_results"] = settings.pop("num_results", 10 if service == "s2" else 5)
        # As in open-instruct, allow an attempt and three retries.
        return table | {"max_chars": _LONGEST, "timeout_s": seconds, "total_timeout_s": 4 * seconds}

    return made


def _python(settings: dict[str, Any], call_name: str) -> dict[str, Any]:
    return {"source": "python", "tool": call_name, "timeout_s": settings.pop("timeout", 3)}


def _mcp(settings: dict[str, Any], call_name: str) -> dict[str, Any]:
    table: dict[str, Any] = {"source": "mcp", "timeout_s": settings.pop("timeout", 60)}
    if settings.get("transport", "http") == "stdio":
        table["command"] = [settings.pop("command", ""), *settings.pop("args", [])]
    else:
        table["url"] = settings.pop("server_url", None)
    if settings.get("transport") != "sse":
        settings.pop("transport", None)
    if name := settings.pop("tool_name", None):
        table["tools"] = [name]
    return table


def _sandbox(settings: dict[str, Any], call_name: str) -> dict[str, Any]:
    memory = re.fullmatch(r"(\d+)([kmg])b?", str(settings.get("mem_limit", "4g")).lower())
    if memory:
        settings.pop("mem_limit", None)
    return {
        "source": "sandbox",
        "penalty": settings.pop("penalty", -0.05),
        "timeout_s": settings.pop("timeout", 300),
        "memory_mib": max(1, int(memory[1]) * _KIB[memory[2]] // 1024) if memory else None,
    }


def _same(source: str, *names: str) -> Callable[..., dict[str, Any]]:
    def made(settings: dict[str, Any], call_name: str) -> dict[str, Any]:
        return {"source": source} | {name: settings.pop(name) for name in names if name in settings}

    return made


_MADE: dict[str, Callable[..., dict[str, Any]]] = {
    "python": _python,
    "jina_browse": _web("browse", "jina", "https://r.jina.ai", "JINA_API_KEY", 30),
    "s2_search": _web("search", "s2", "https://api.semanticscholar.org", "S2_API_KEY", 60),
    "serper_search": _web("search", "serper", "https://google.serper.dev", "SERPER_API_KEY", 10),
    "generic_mcp": _mcp,
    DR_TULU: dr_tulu_table,
    "generic_sandbox": _sandbox,
    "counter": _same("counter", "target"),
    "guess_number": _same("guess_number", "min_val", "max_val"),
    "wordle": _same("wordle", "max_guesses", "error_allowance"),
}
_REASONS = {
    "crawl4ai_browse": "open-instruct reads its address from an environment variable; in Shoal it is the environment "
    'browse, with service = "crawl4ai" and base_url'
}
_NOTED = {
    "api_endpoint": "programs run in the sandbox of the reward service",
    "backend": "commands run in the sandbox of the reward service",
    "image": "commands use the programs on the reward service's machine",
    "write_prompt_file": "the policy reads the prompt, which is not written to a file",
    "max_retries": "Shoal calls an MCP server once, and tells the policy of a failure",
    "retry_backoff": "Shoal calls an MCP server once, and tells the policy of a failure",
}
