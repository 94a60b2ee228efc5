"""`shoal reward score` and `list`: what a completion would be paid, before a GPU is spent on it."""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import typer

from services.coordinator.cli.output import Output
from services.coordinator.cli.tables import print_json, print_table
from shoal.config import RunConfig, dump_config, load_config, parse_config
from shoal.config.data import SourceConfig
from shoal.config.load import apply_override
from shoal.config.own_verifiers import find_files
from shoal.data.conversation import ground_truths_of, messages_of
from shoal.data.files import read_file
from shoal.data.load import check_verifier_names
from shoal.data.rows import Row
from shoal.errors import InvalidArgument
from shoal.models import load_tokenizer
from shoal.rollout import MOST_WEIGHT, FinishReason
from shoal.verifiers import JUDGE_VERIFIERS, MODEL_VERIFIERS

_TEXT_CHARS = 60


def score(file: Path, config_file: Path | None, overrides: Sequence[str], *, tokenize: bool, output: Output) -> None:
    """Scores the rows of a file. Raises `InvalidArgument` that names the line at fault."""
    config = _config(file, config_file, overrides)
    if tokenize and config_file is None:
        raise InvalidArgument("--tokenize counts tokens with the configuration's tokenizer: give --config")
    check_verifier_names(config.reward, config.reward.known_verifiers)
    rows = read_file(SourceConfig(path=str(file))).rows
    asked = [_asked(row, config) for row in rows]
    if tokenize:
        tokenizer = load_tokenizer(config.model)
        for item in asked:
            item["token_ids"] = item["token_ids"] or tokenizer.encode(item["completion"], add_special_tokens=False)
    answer = ask_reward("score", {"config": dump_config(config), "rows": asked})
    scores, summary = answer["scores"], _summary(answer["scores"])
    if answer["judge"]:
        summary["judge"] = answer["judge"]
    if output == "json":
        print_json({"rows": scores, "summary": summary})
        return
    print_table(
        ("line", "outcome", "reward", "parts", "verifiers", "completion"),
        [_line(row, item, given) for row, item, given in zip(rows, asked, scores, strict=True)],
    )
    print(json.dumps(summary))


def list_verifiers(config_file: Path | None, overrides: Sequence[str], *, output: Output) -> None:
    """Describes every verifier, those of a configuration too, and says which cannot work here."""
    config = _config(Path("unused"), config_file, overrides)
    verifiers = ask_reward("list", {"config": dump_config(config)})
    if output == "json":
        print_json(verifiers)
        return
    for verifier in verifiers:
        print(f"{verifier['name']} (reads {verifier['reads']})")
        if verifier["unavailable"]:
            print(f"    UNAVAILABLE HERE: {verifier['unavailable']}")
        if verifier["code_digest"]:
            print(f"    code {verifier['code_digest']}")
        for line in verifier["description"].splitlines():
            print(f"    {line}".rstrip())


def _config(file: Path, config_file: Path | None, overrides: Sequence[str]) -> RunConfig:
    if config_file is not None:
        return load_config(config_file, overrides)
    # What is not asked of a reward needs some value.
    values: dict[str, Any] = {"model": {"path": "unused"}, "data": {"sources": [{"path": str(file)}]}}
    for override in overrides:
        apply_override(values, override)
    find_files(values, Path.cwd())
    return parse_config(values)


def _asked(row: Row, config: RunConfig) -> dict[str, Any]:
    """What the reward's process is told of a row."""
    values = row.values
    column = "verifier" if "verifier" in values else "dataset"
    weight = values.get("weight", 1.0)
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight <= MOST_WEIGHT:
        raise InvalidArgument(
            f"{row.where}: weight must be a positive number, at most {MOST_WEIGHT:g} (found: {weight!r:.80})"
        )
    source = SourceConfig(path="unused", verifier_column=column, weight=float(weight))
    truths = ground_truths_of(row, source, config.reward.known_verifiers, config.reward)
    completion, finish = values.get("completion"), values.get("finish_reason", "stop")
    if not isinstance(completion, str):
        raise InvalidArgument(f"{row.where}: completion must be a text (found: {type(completion).__name__})")
    if not completion.isascii() and completion != completion.encode("utf-8", "replace").decode("utf-8"):
        raise InvalidArgument(f"{row.where}: completion is not valid Unicode: it has lone surrogates")
    if finish not in (FinishReason.STOP, FinishReason.LENGTH):
        raise InvalidArgument(f"{row.where}: finish_reason must be 'stop' or 'length' (found: {finish!r:.80})")
    prompt = values.get("prompt")
    for names, who in ((JUDGE_VERIFIERS, "a judge"), (MODEL_VERIFIERS, "a reward model")):
        if not prompt and any(truth.verifier in names for truth in truths):
            raise InvalidArgument(
                f"{row.where}: {who} needs a prompt, a question or a list of messages (found: {prompt!r})"
            )
    token_ids = values.get("token_ids") or []
    if not isinstance(token_ids, list) or not all(type(token) is int and 0 <= token < 2**31 for token in token_ids):
        raise InvalidArgument(f"{row.where}: token_ids must be a list of integers from 0 to 2^31 - 1")
    return {
        "truths": [[truth.verifier, truth.label, truth.weight] for truth in truths],
        "messages": [[turn.role, turn.content] for turn in messages_of(row, prompt, "prompt")] if prompt else [],
        "completion": completion,
        "finish_reason": finish,
        "token_ids": token_ids,
    }


def ask_reward(what: str, question: Mapping[str, Any]) -> Any:
    """Asks a process of the reward service; it has said on standard error what it refuses."""
    asked = subprocess.run(
        [sys.executable, "-m", "services.reward.offline", what],
        input=json.dumps(question), stdout=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    if asked.returncode:
        raise typer.Exit(asked.returncode if asked.returncode > 0 else 1)
    return json.loads(asked.stdout)


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


def _line(row: Row, asked: Mapping[str, Any], score: Mapping[str, Any]) -> tuple[str, ...]:
    text = " ".join(asked["completion"].split())
    return (
        row.where.rpartition(":")[2],
        score["outcome"],
        "" if score["reward"] is None else f"{score['reward']:g}",
        " ".join(f"{name}={value:g}" for name, value in score["parts"].items()),
        " ".join(map(_judgement, score["verifiers"])),
        text if len(text) <= _TEXT_CHARS else f"{text[: _TEXT_CHARS - 1]}…",
    )


def _judgement(part: Mapping[str, Any]) -> str:
    if part["value"] is not None:
        return f"{part['verifier']}={part['value']:g}"
    return f"{part['verifier']}={part['outcome']} ({part['detail'][:_TEXT_CHARS]})"
