"""`shoal env ...`: list environments, play in an environment, and check a new environment."""

from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from services.coordinator.cli.shared.exit_codes import ExitCode
from services.coordinator.cli.shared.options import OutputOption, Overrides, command_group
from services.coordinator.cli.shared.output import Output, print_json, print_pairs
from shoal.quantities import counted
from shoal.visible_text import visible

if TYPE_CHECKING:
    from shoal.v1.environment_pb2 import EnvironmentInfo

app = command_group("List environments, play in them, and check your own.")

_Config = Annotated[
    Path | None, typer.Option("--config", metavar="CONFIG", help="Take [[environments]] from this file.")
]
_Address = Annotated[
    str,
    typer.Option(
        "--address",
        metavar="HOST:PORT",
        help="Address of a reward service or of your own server, which is used instead of a new process here.",
        show_default=False,
    ),
]
_Task = Annotated[str, typer.Option("--task", metavar="JSON", help="The task, as a JSON object.")]
_Tools = Annotated[
    str,
    typer.Option(
        "--tools",
        metavar="JSON",
        help="Names of the tools to offer, as a JSON list; by default all tools.",
        show_default=False,
    ),
]
_Seed = Annotated[
    int, typer.Option("--seed", metavar="N", min=0, help="Seed of everything that the environment draws.")
]
_Settings = Annotated[
    str, typer.Option("--settings", metavar="JSON", help="The settings of the environment, as a JSON object.")
]
_Interpreter = Annotated[
    str,
    typer.Option(
        "--interpreter", metavar="PATH", help="Python interpreter that runs the environment, instead of this one."
    ),
]


@app.command("list")
def list_environments(
    config: _Config = None,
    overrides: Overrides = None,
    address: _Address = "",
    output: OutputOption = Output.TABLE,
) -> None:
    """Describe environments: their tools, tasks and rewards.

    Describes the environments of a file and of Shoal itself, or the environments of a server. An agent is a program
    that calls the policy itself (docs/agents.md).
    """
    from services.coordinator.cli.env.requests import Origin, Origins, listed
    from shoal.wire.json_form import json_form

    environments = listed(Origins(config, overrides or [], address))
    if output is Output.JSON:
        print_json([{**json_form(info), "origin": origin} for origin, info in environments])
        return
    headings = {
        Origin.SERVER: f"Environments of the server {address}",
        Origin.CONFIGURATION: f"Environments of {config or '--set'}",
        Origin.SHOAL: "Environments that come with Shoal",
    }
    for origin, infos in groupby(environments, key=lambda one: one[0]):
        print(f"{headings[origin]}:\n")
        for _, info in infos:
            _describe(info)
        print()


def _describe(info: "EnvironmentInfo") -> None:
    print(visible(f"{info.name}{_kind(info)}"))
    if info.unavailable:
        here = "" if info.unavailable.startswith("needs settings: ") else "unavailable here: "
        print(f"    {here}{visible(info.unavailable)}")
    if info.code_digest:
        print(f"    code {visible(info.code_digest)}")
    for line in info.description.splitlines():
        print(f"    {visible(line)}".rstrip())


def _kind(info: "EnvironmentInfo") -> str:
    if info.is_agent:
        return " (agent)"
    if tools := ", ".join(tool.name for tool in info.tools):
        return f" (tools: {tools})"
    return "" if info.unavailable else " (no tools)"  # The tools of an unavailable environment are unknown.


@app.command()
def play(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help='The environment: a name from `shoal env list`, "file.py:Class", or "package.module:Class".',
        ),
    ],
    task: _Task = "{}",
    tools: _Tools = "",
    seed: _Seed = 0,
    prompt: Annotated[
        str,
        typer.Option(
            "--prompt", metavar="TEXT", help="The prompt, which the policy reads first as a message of the user."
        ),
    ] = "",
    settings: _Settings = "{}",
    interpreter: _Interpreter = "",
    config: _Config = None,
    overrides: Overrides = None,
    address: _Address = "",
) -> None:
    """Play an environment in the terminal, in the place of the policy. Each line is a turn.

    A line "/tool {...}" calls a tool with JSON arguments. The end of the input (Ctrl-D) ends the episode. An agent is
    played as well: each line answers one of its calls. Exits with code 1 if the environment FAILED.
    """
    from services.coordinator.cli.env.play import play_here
    from services.coordinator.cli.env.requests import Game, Origins

    game = Game(name, task, tools, seed, settings, interpreter)
    is_failed = play_here(game, prompt, Origins(config, overrides or [], address))
    raise typer.Exit(ExitCode.FAILED if is_failed else ExitCode.OK)


@app.command()
def check(
    source: Annotated[
        str,
        typer.Argument(
            metavar="FILE:CLASS", help='The environment: "file.py:Class", "package.module:Class", or a built-in name.'
        ),
    ],
    task: _Task = "{}",
    tools: _Tools = "",
    seed: _Seed = 0,
    turns: Annotated[
        list[str] | None,
        typer.Option("--turn", metavar="TEXT", help="Text of the policy in one turn, or /tool {...}. Repeatable."),
    ] = None,
    settings: _Settings = "{}",
    interpreter: _Interpreter = "",
    output: OutputOption = Output.TABLE,
) -> None:
    """Check an environment by playing it.

    Checks whether the environment loads and repeats itself, how long it takes, and what it leaves behind. Plays a few
    episodes in two processes. Without --turn, the command calls each tool, or sends some texts. Exits with code 1 if
    there are problems.
    """
    from services.coordinator.cli.env.requests import Game, checked

    found = checked(Game(source, task, tools, seed, settings, interpreter), turns or [])
    if output is Output.JSON:
        print_json(found)
    else:
        print_pairs(_pairs(found))
        for problem in found["problems"]:
            print(f"problem: {visible(problem)}")
    raise typer.Exit(ExitCode.FAILED if found["problems"] else ExitCode.OK)


def _pairs(found: dict[str, Any]) -> list[tuple[str, str]]:
    left = found["left_behind"]
    says, does = found["is_deterministic"], found["repeats_itself"]
    hint = " (set is_deterministic, if that is always so)" if does and not says else ""
    return [
        ("tools", ", ".join(found["tools"]) or "none"),
        ("is_deterministic", f"{str(says).lower()}; in {counted(found['num_episodes'], 'episode')} it "
         f"{'repeated itself' if does else 'answered differently'}{hint}"),
        ("reset", _time(found["reset_ms"])),
        ("step", f"{_time(found['step_ms'])}, {counted(found['num_turns'], 'turn')}"),
        ("left behind", f"{counted(len(left['processes']), 'process')}, {counted(len(left['files']), 'file')}, "
         f"{counted(left['threads'], 'thread')}, {counted(left['open_files'], 'open file')}"),
        ("memory", f"{left['memory_mib']} MiB"),
    ]  # fmt: skip


def _time(milliseconds: dict[str, float] | None) -> str:
    if milliseconds is None:
        return "never ended"
    return f"{milliseconds['mean']:g} ms on average, {milliseconds['longest']:g} ms at most"
