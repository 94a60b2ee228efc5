"""A check of an environment by playing it: its determinism, its speed, and its leftovers."""

import json
import os
import shlex
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import psutil

from services.reward.custom.code import Unusable
from services.reward.environments.code import read_code
from services.reward.environments.episode import EpisodeFailed, EpisodeHere, Message, Start, digest_of
from services.reward.environments.local import described
from services.reward.environments.pool import EnvironmentPool
from shoal.config.tables.environments import EnvironmentConfig
from shoal.conversation import ChatMessage, ToolCall, ToolCallStatus, ToolDefinition
from shoal.episodes.tool_calls import make_parser
from shoal.episodes.typed_call import typed_call
from shoal.errors import Aborted, InvalidArgument
from shoal.rollout import FinishReason

_CALL_TIMEOUT_S = 60.0
_NUM_EPISODES = 3
"""Number of episodes, with consecutive seeds, in each of two processes."""
_MAX_TURNS = 8
_TEXTS = ("I do not know.", "", "The answer is 42.", "<answer>yes</answer>")
_MAX_SHOWN = 5
_SAMPLES = {"string": "a", "integer": 1, "number": 0.5, "boolean": True, "array": [], "object": {}, "null": None}


@dataclass
class _Played:
    digests: list[tuple[str, str]] = field(default_factory=list)
    """The name of each answer, and its digest."""
    reset_s: list[float] = field(default_factory=list)
    step_s: list[float] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    left: dict[str, Any] = field(default_factory=dict)


async def check(
    config: EnvironmentConfig, task: Message, tools: Sequence[str] | None, seed: int, texts: Sequence[str]
) -> dict[str, Any]:
    """Plays episodes in two processes, one after the other, with the same turns, and compares.

    `tools` has the names of the offered tools, None for all. `texts` are the policy's turns, with "/tool {...}" for a
    call; by default, calls of each tool, or some texts without tools. Raises `InvalidArgument` for code that cannot be
    loaded or cannot work here, an invalid task, an unknown tool, and a call whose arguments are not a JSON object.
    """
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TMPDIR"] = folder  # Shows files that are left there.
        before = _listed(Path.cwd())
        try:
            code = read_code(config)
            pool = EnvironmentPool(code, _NUM_EPISODES + 1)
            try:
                info = await described(pool)
            finally:
                await pool.close()
        except Unusable as error:
            raise InvalidArgument(f"{config.code}: {error}") from None
        if info["is_agent"]:
            raise InvalidArgument(
                f"{config.code} is an agent: an agent calls the policy itself, so the check cannot send turns. "
                f"Play the agent with: shoal env play {shlex.quote(config.code)}"
            )
        if info["unavailable"]:
            raise InvalidArgument(f"{config.code} cannot work here: {info['unavailable']}")
        offered = _offered(info["tools"], tools)
        start = Start("check", task, seed, [], _CALL_TIMEOUT_S, None if tools is None else tuple(tools))
        turns = _turns(texts, offered)
        runs = [await _play(config, start, turns) for _ in range(2)]
        files = sorted(_listed(Path(folder))) + sorted(_listed(Path.cwd()) - before)
    return _report(info, runs, files)


async def _play(config: EnvironmentConfig, start: Start, turns: Sequence[ChatMessage]) -> _Played:
    """Plays the episodes in a new process."""
    pool, played = EnvironmentPool(read_code(config), _NUM_EPISODES + 1), _Played()
    try:
        process = await pool.place()  # Hold the process, so that nothing ends it before its examination.
        seen = psutil.Process(process.pid)
        before = seen.num_threads(), seen.num_fds()
        for number in range(_NUM_EPISODES):
            one = replace(start, episode_id=f"check-{number}", seed=start.seed + number)
            await _play_one(pool, one, turns, played)
        if not process.is_lost:
            played.left = {
                "processes": [" ".join(child.cmdline())[:100] for child in seen.children(recursive=True)],
                "threads": max(0, seen.num_threads() - before[0]),
                "open_files": max(0, seen.num_fds() - before[1]),
                "memory_mib": seen.memory_info().rss >> 20,
            }
        pool.leave(process)
    finally:
        await pool.close()
    return played


async def _play_one(pool: EnvironmentPool, start: Start, turns: Sequence[ChatMessage], played: _Played) -> None:
    # Never replay turns: a process that dies must be reported.
    episode = EpisodeHere(pool, start, is_deterministic=False)
    where = f"seed {start.seed}, reset"
    try:
        started = time.perf_counter()
        observation = await episode.begin()
        played.reset_s.append(time.perf_counter() - started)
        played.digests.append((where, digest_of(observation)))
        for number, message in enumerate(turns, start=1):
            if observation["done"]:
                break
            where = f"seed {start.seed}, turn {number}"
            turn = {
                "number": number,
                "message": asdict(message),
                "finish_reason": FinishReason.STOP.value,
                "num_tokens": len(message.content.split()),
            }
            started = time.perf_counter()
            observation = await episode.step(turn)
            played.step_s.append(time.perf_counter() - started)
            played.digests.append((where, digest_of(observation)))
        where = f"seed {start.seed}, result"
        played.digests.append((where, json.dumps(await episode.result(), sort_keys=True)))
    except (EpisodeFailed, Aborted) as error:
        played.problems.append(f"{where}: {error}")
    finally:
        await episode.close()


def _offered(tools: Sequence[Message], names: Sequence[str] | None) -> list[Message]:
    """Returns the tools with these names; all tools for None. Raises `InvalidArgument` for an unknown name."""
    there = [tool["name"] for tool in tools]
    for name in names or ():
        if name not in there:
            raise InvalidArgument(f"--tools: there is no tool {name!r:.80}; there are: {', '.join(there) or 'none'}")
    return [tool for tool in tools if names is None or tool["name"] in names]


def _turns(texts: Sequence[str], tools: Sequence[Message]) -> list[ChatMessage]:
    if texts or not tools:
        definitions = [ToolDefinition(tool["name"], tool["description"], tool["parameters"]) for tool in tools]
        return [_turn(text, definitions, number) for number, text in enumerate(texts or _TEXTS, start=1)]
    arguments = [json.dumps(_sample_arguments(tool["parameters"])) for tool in tools]
    calls = [
        ToolCall(f"call-{number}", tool["name"], arguments[number], ToolCallStatus.OK, "")
        for number, tool in enumerate(tools)
    ]
    return [ChatMessage("assistant", "", (calls[number % len(calls)],)) for number in range(_MAX_TURNS)]


def _turn(text: str, tools: Sequence[ToolDefinition], number: int) -> ChatMessage:
    """Returns a turn of the policy, with its tool calls, such as "/tool {...}" (the form of `shoal env play`)."""
    try:
        parsed = make_parser("hermes")(typed_call(text, tools), tools, number)
    except InvalidArgument as error:
        raise InvalidArgument(f"--turn {text!r:.80}: {error.message}") from None
    return ChatMessage("assistant", parsed.content, parsed.calls)


def _sample_arguments(schema: Message) -> Message:
    """Returns arguments that fit a simple schema."""
    properties = schema.get("properties", {})
    return {name: _sample(properties.get(name, {})) for name in schema.get("required", [])}


def _sample(schema: Message) -> Any:
    if "enum" in schema:
        return schema["enum"][0]
    if "anyOf" in schema:
        return _sample(schema["anyOf"][0])
    return _SAMPLES.get(schema.get("type", "string"), "a")


def _report(info: Message, runs: Sequence[_Played], files: Sequence[str]) -> dict[str, Any]:
    first, second = runs
    differences = [
        where for (where, digest), (_, other) in zip(first.digests, second.digests, strict=False) if digest != other
    ]
    left = {"files": list(files), **(first.left or {"processes": [], "threads": 0, "open_files": 0, "memory_mib": 0})}
    problems = [
        f"nothing calls or reads {name!r}: rename it if {meant!r} is meant" for name, meant in info["misnamed"].items()
    ]
    problems += dict.fromkeys((*first.problems, *second.problems))
    if differences and info["is_deterministic"]:
        problems.append(
            "is_deterministic is true, but the answers of the environment differ: "
            f"{', '.join(differences[:_MAX_SHOWN])}"
        )
    if left["processes"]:
        problems.append(f"the environment leaves processes behind: {'; '.join(left['processes'][:_MAX_SHOWN])}")
    if left["files"]:
        problems.append(f"the environment leaves files behind: {', '.join(left['files'][:_MAX_SHOWN])}")
    if left["threads"] or left["open_files"] > _NUM_EPISODES:
        problems.append(f"the environment leaves {left['threads']} threads and {left['open_files']} open files behind")
    return {
        "description": info["description"],
        "tools": [tool["name"] for tool in info["tools"]],
        "is_deterministic": info["is_deterministic"],
        "repeats_itself": not differences,
        "num_episodes": 2 * _NUM_EPISODES,
        "num_turns": len(first.step_s) + len(second.step_s),
        "reset_ms": _milliseconds(first.reset_s + second.reset_s),
        "step_ms": _milliseconds(first.step_s + second.step_s),
        "left_behind": left,
        "problems": problems,
    }


def _milliseconds(seconds: Sequence[float]) -> dict[str, float] | None:
    if not seconds:
        return None
    return {"mean": round(fmean(seconds) * 1000, 3), "longest": round(max(seconds) * 1000, 3)}


def _listed(folder: Path) -> set[str]:
    return {str(path) for path in folder.iterdir()}
