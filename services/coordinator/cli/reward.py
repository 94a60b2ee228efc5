"""`shoal reward ...`: score completions as a run would, and list the verifiers."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import typer

from services.coordinator.cli.shared.exit_codes import ExitCode
from services.coordinator.cli.shared.options import OutputOption, Overrides, command_group
from services.coordinator.cli.shared.output import Output, print_json, print_table
from shoal.visible_text import visible

app = command_group("Score completions without a run, and list the verifiers.")

_MAX_TEXT_CHARS = 60
"""Maximum number of characters of a completion in a row of the table."""
_MAX_LINES = 5
"""Maximum number of lines that are named for one cause."""


@app.command()
def score(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE.jsonl",
            help="File of rows with completion, ground_truth and verifier (or dataset), and optionally prompt, "
            "finish_reason, token_ids and weight.",
        ),
    ],
    config: Annotated[
        Path | None, typer.Option("--config", metavar="CONFIG", help="Take the table [reward] from this configuration.")
    ] = None,
    overrides: Overrides = None,
    tokenize: Annotated[
        bool, typer.Option("--tokenize", help="Make token_ids with the tokenizer of CONFIG for rows without token_ids.")
    ] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Score completions as a run would.

    Shows outcome, reward, its parts and each verifier's value. The command needs no service. It exits with code 1 if a
    verifier failed on a row, or if no row has a reward.
    """
    from services.coordinator.cli.reward_process import score_file

    rows, scores, judge = score_file(file, config, overrides or [], tokenize=tokenize)
    code = _exit_code(scores)
    summary = _summary(scores)
    if judge:
        summary["judge"] = judge
    if output is Output.JSON:
        print_json({"rows": scores, "summary": summary})
        raise typer.Exit(code)
    print_table(
        ("line", "outcome", "reward", "parts", "verifiers", "completion"),
        [_table_row(where, completion, row_score) for (where, completion), row_score in zip(rows, scores, strict=True)],
    )
    for cause in _causes([where for where, _ in rows], scores):
        print(cause)
    print(json.dumps(summary))
    raise typer.Exit(code)


@app.command("list")
def list_verifiers(
    config: Annotated[
        Path | None,
        typer.Option("--config", metavar="CONFIG", help="Also describe the verifiers of this configuration."),
    ] = None,
    overrides: Overrides = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Describe every verifier. States what it reads, what it returns, and whether it can work here."""
    from services.coordinator.cli.reward_process import describe_verifiers

    verifiers = describe_verifiers(config, overrides or [])
    if output is Output.JSON:
        print_json(verifiers)
        return
    for verifier in verifiers:
        print(f"{verifier['name']} (reads {verifier['reads']})")
        if verifier["unavailable"]:
            print(f"    unavailable here: {verifier['unavailable']}")
        if verifier["code_digest"]:
            print(f"    code {verifier['code_digest']}")
        for line in verifier["description"].splitlines():
            print(f"    {line}".rstrip())


def _exit_code(scores: Sequence[Mapping[str, Any]]) -> ExitCode:
    outcomes = {score["outcome"] for score in scores}
    return ExitCode.FAILED if "failed" in outcomes or "scored" not in outcomes else ExitCode.OK


def _causes(positions: Sequence[str], scores: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns why rows have no reward: each cause once, in full, with the lines of its rows."""
    lines: dict[str, list[str]] = {}
    for where, score in zip(positions, scores, strict=True):
        for part in score["verifiers"]:
            if part["value"] is None:
                cause = (
                    f"{part['verifier']} {part['outcome']}: {visible(part['detail']) or 'the verifier gave no reason'}"
                )
                lines.setdefault(cause, []).append(where.rpartition(":")[2])
    return [f"{_line_numbers(numbers)}: {cause}" for cause, numbers in lines.items()]


def _line_numbers(numbers: Sequence[str]) -> str:
    if len(numbers) == 1:
        return f"line {numbers[0]}"
    more = f" and {len(numbers) - _MAX_LINES} more" if len(numbers) > _MAX_LINES else ""
    return f"lines {', '.join(numbers[:_MAX_LINES])}{more}"


def _summary(scores: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    outcomes = Counter(score["outcome"] for score in scores)
    scored = [score for score in scores if score["reward"] is not None]
    parts = sorted({name for score in scored for name in score["parts"]})
    return {
        "num_rows": len(scores),
        "outcomes": dict(sorted(outcomes.items())),
        "mean_reward": fmean(score["reward"] for score in scored) if scored else None,
        "mean_parts": {name: fmean(score["parts"].get(name, 0.0) for score in scored) for name in parts},
    }


def _table_row(where: str, completion: str, score: Mapping[str, Any]) -> tuple[str, ...]:
    text = " ".join(completion.split())
    return (
        where.rpartition(":")[2],
        score["outcome"],
        "" if score["reward"] is None else f"{score['reward']:g}",
        " ".join(f"{name}={value:g}" for name, value in score["parts"].items()),
        " ".join(map(_verdict, score["verifiers"])),
        _shortened(text),
    )


def _verdict(part: Mapping[str, Any]) -> str:
    if part["value"] is not None:
        return f"{part['verifier']}={part['value']:g}"
    return f"{part['verifier']}={part['outcome']}"


def _shortened(text: str) -> str:
    return text if len(text) <= _MAX_TEXT_CHARS else f"{text[: _MAX_TEXT_CHARS - 1]}…"
