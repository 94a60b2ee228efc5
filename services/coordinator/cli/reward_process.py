"""Requests to `python -m services.reward.offline`, which runs the reward service's code without a server.

The command line may not import a service, since each service has its own dependencies.
"""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from shoal.config import RunConfig, dump_config, load_config, parse_config
from shoal.config.load import apply_override
from shoal.config.tables.custom_verifiers import find_files
from shoal.config.tables.data import SourceConfig
from shoal.config.tables.verifiers import JUDGE_VERIFIERS, MODEL_VERIFIERS
from shoal.conversation import words_of
from shoal.data.conversation import Conversation, ground_truths_of
from shoal.data.files import read_files
from shoal.data.load import check_verifier_names, first_conversations
from shoal.data.messages import messages_of
from shoal.data.rows import Row
from shoal.errors import InvalidArgument
from shoal.models.model_folder import load_tokenizer
from shoal.rollout import MAX_WEIGHT, FinishReason


def score_file(
    file: Path, config_file: Path | None, overrides: Sequence[str], *, tokenize: bool
) -> tuple[list[tuple[str, str]], list[dict[str, Any]], dict[str, Any] | None]:
    """Scores the rows of a file.

    Returns each row's position ("FILE:LINE") and completion, each row's score, and the judge's counts if there is a
    judge. Raises `InvalidArgument`, whose message names the line at fault.
    """
    config = _reward_config(file, config_file, overrides)
    if tokenize and config_file is None:
        raise InvalidArgument("--tokenize needs the tokenizer of a configuration: name the configuration with --config")
    check_verifier_names(config.reward, config.reward.known_verifiers)
    if not file.is_file():
        raise InvalidArgument(f"there is no file {file}: name a .jsonl or .parquet file of completions")
    rows = read_files(SourceConfig(path=str(file))).rows
    items = [_item(row, config) for row in rows]
    if tokenize:
        tokenizer = load_tokenizer(config.model)
        for item in items:
            item["token_ids"] = item["token_ids"] or tokenizer.encode(item["completion"], add_special_tokens=False)
    answer = call_reward_process("score", {"config": dump_config(config), "rows": items})
    positions = [(row.where, item["completion"]) for row, item in zip(rows, items, strict=True)]
    return positions, answer["scores"], answer["judge"]


def describe_verifiers(config_file: Path | None, overrides: Sequence[str]) -> list[dict[str, Any]]:
    """Describes every verifier, including those of the configuration. States why a verifier cannot work here."""
    config = _reward_config(Path("unused"), config_file, overrides)
    verifiers: list[dict[str, Any]] = call_reward_process("list", {"config": dump_config(config)})
    return verifiers


def check_custom_verifiers(config: RunConfig) -> dict[str, dict[str, Any]]:
    """Loads every custom verifier on this machine, and calls the verifier for the first row that names it.

    The label of that row serves as the completion. Returns a table for each verifier, by name: the `digest` of its
    code, `tried_on` (the row; empty if no row names the verifier), and `value` (None for an unscorable completion).

    Raises `InvalidArgument` for malformed data. Exits if a file is missing, cannot be imported or lacks the function,
    or if the function takes unknown arguments, raises, hangs or returns no number. Before the exit, the reward
    service's code prints the reason.
    """
    custom = config.reward.custom
    if not custom:
        return {}
    sources = (*config.data.sources, *config.evaluation.sources)
    environments = [environment.name for environment in config.environments]
    first = first_conversations(sources, custom.keys(), config.reward, environments)
    examples = {name: _example(name, conversation) for name, conversation in first.items()}
    tried: dict[str, dict[str, Any]] = call_reward_process("try", {"config": dump_config(config), "examples": examples})
    return tried


def check_reward_servers(config: RunConfig, *, asks: bool) -> dict[str, str | list[str]]:
    """Looks for the keys of the judge and of the reward model's server in this environment.

    With `asks`, also sends a question to the judge and to the reward model's server, and asks `reward.servers` for
    their verifiers. Returns the results by table. Exits if a key is missing, or if a server does not answer or lacks a
    verifier that its table names. Before the exit, the reward service's code prints the reason.
    """
    if not (config.reward.judge.base_url or config.reward.model.base_url or (asks and config.reward.servers)):
        return {}
    found: dict[str, str | list[str]] = call_reward_process("ask" if asks else "keys", {"config": dump_config(config)})
    return found


def call_reward_process(command: str, request: Mapping[str, Any]) -> Any:
    """Runs one command of `services.reward.offline`.

    If the command fails, it prints the error, and this function exits with its code.
    """
    done = subprocess.run(
        [sys.executable, "-m", "services.reward.offline", command],
        input=json.dumps(request), stdout=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise typer.Exit(done.returncode if done.returncode > 0 else 1)
    return json.loads(done.stdout)


def _reward_config(file: Path, config_file: Path | None, overrides: Sequence[str]) -> RunConfig:
    if config_file is not None:
        return load_config(config_file, overrides)
    # Required fields that scoring does not read.
    values: dict[str, Any] = {"model": {"path": "unused"}, "data": {"sources": [{"path": str(file)}]}}
    for override in overrides:
        apply_override(values, override)
    find_files(values, Path.cwd())
    return parse_config(values)


def _example(verifier: str, conversation: Conversation) -> dict[str, Any]:
    label = next(truth.label for truth in conversation.ground_truths if truth.verifier == verifier)
    completion = label if isinstance(label, str) else json.dumps(label, ensure_ascii=False)
    return {
        "where": conversation.where,
        "truths": [[verifier, label, 1.0]],
        "messages": [[message.role, words_of(message)] for message in conversation.messages],
        "completion": completion,
        "finish_reason": FinishReason.STOP,
        "token_ids": list(completion.encode()),  # Any tokens are good enough, and no tokenizer is loaded yet.
    }


def _item(row: Row, config: RunConfig) -> dict[str, Any]:
    """Makes the item of a `score` request from a row. Raises `InvalidArgument`, whose message names the row."""
    values = row.values
    completion, finish = values.get("completion"), values.get("finish_reason", "stop")
    truths = _truths(row, config)
    if "completion" not in values:
        raise InvalidArgument(f"{row.where}: there is no column 'completion'; the row has: {', '.join(values)}")
    if not isinstance(completion, str):
        raise InvalidArgument(f"{row.where}: completion must be a text (found: {type(completion).__name__})")
    if not completion.isascii() and completion != completion.encode("utf-8", "replace").decode("utf-8"):
        raise InvalidArgument(f"{row.where}: completion is not valid Unicode: remove its lone surrogates")
    if finish not in (FinishReason.STOP, FinishReason.LENGTH):
        raise InvalidArgument(f"{row.where}: finish_reason must be 'stop' or 'length' (found: {finish!r:.80})")
    prompt = values.get("prompt")
    for names, judged_by in ((JUDGE_VERIFIERS, "a judge"), (MODEL_VERIFIERS, "a reward model")):
        if not prompt and any(verifier in names for verifier, _, _ in truths):
            raise InvalidArgument(
                f"{row.where}: {judged_by} needs a prompt: give a question or a list of messages (found: {prompt!r})"
            )
    token_ids = values.get("token_ids") or []
    if not isinstance(token_ids, list) or not all(type(token) is int and 0 <= token < 2**31 for token in token_ids):
        raise InvalidArgument(f"{row.where}: token_ids must be a list of integers from 0 to 2^31 - 1")
    return {
        "truths": truths,
        "prompt": prompt if isinstance(prompt, str) else "",
        "messages": [[turn.role, words_of(turn)] for turn in messages_of(row, prompt, "prompt")[0]] if prompt else [],
        "completion": completion,
        "finish_reason": finish,
        "token_ids": token_ids,
    }


def _truths(row: Row, config: RunConfig) -> list[tuple[str, str, float]]:
    """Returns verifier, label, and weight of each ground truth of a row."""
    column = "verifier" if "verifier" in row.values else "dataset"
    weight = row.values.get("weight", 1.0)
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight <= MAX_WEIGHT:
        raise InvalidArgument(
            f"{row.where}: weight must be a positive number, at most {MAX_WEIGHT:g} (found: {weight!r:.80})"
        )
    source = SourceConfig(path="unused", verifier_column=column, weight=float(weight))
    truths = ground_truths_of(row, source, config.reward.known_verifiers, config.reward)
    return [(truth.verifier, truth.label, truth.weight) for truth in truths]
