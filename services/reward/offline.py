"""`python -m services.reward.offline COMMAND`: the pool and the rules of the service, without the service.

The command line, which cannot import a service, runs it. Each command reads one JSON document from stdin,
{"config": the whole RunConfig, ...}, and writes one to stdout:

* `score` also reads "rows": [{"truths": [[verifier, label, weight], ...], "messages": [[role, content], ...],
  "completion", "finish_reason", "token_ids"}, ...], and "prompt", a text, if the row has it. It writes the scores in
  the order of the rows, and the judge's counts.
* `check` also reads "labels": [[verifier, label], ...] and writes the fault of each label, "" if it has none.
* `list` writes the verifiers.
* `try` also reads "examples": {verifier: a row with "where"}, and lets each custom verifier judge its example. It
  writes {verifier: {"digest": of its code, "tried_on": "where", "value": number or null}}.
* `keys` looks for the keys of the judge and of the reward model's server in the environment.
* `ask` also asks both a question, once, and each server of `reward.servers` for its verifiers. It writes {its table:
  the result, or the names of the verifiers}.
"""

import asyncio
import contextlib
import importlib.util
import json
import logging
import os
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from services.reward.common.scorer import ListedVerifier
from services.reward.compose import Composer, Output
from services.reward.judge.judge import Judge, JudgeCounts
from services.reward.model.endpoint import ModelEndpoint
from services.reward.pool import output as verifier_output
from services.reward.reward_servers import RewardServer, check_owners
from services.reward.router import Router
from shoal.config import RunConfig, parse_config
from shoal.config.tables.custom_verifiers import RewardServerConfig
from shoal.config.tables.reward import RewardConfig
from shoal.config.tables.reward_model import RewardModelConfig
from shoal.config.tables.verifiers import BUILT_IN_VERIFIERS, MODEL_VERIFIERS
from shoal.conversation import ChatMessage
from shoal.errors import FailedPrecondition, InvalidArgument, PermissionDenied, ShoalError, Unauthenticated, Unavailable
from shoal.rollout import FinishReason, GroundTruth, Prompt
from shoal.rpc.auth import credentials as auth
from shoal.rpc.auth.credentials import Credentials
from shoal.rpc.auth.tls import TlsFolder
from shoal.scores import Score, ScoreOutcome, VerifierScore
from shoal.v1 import rollout_pb2
from shoal.wire import finish_reason_to_wire, int32_to_wire

_Open = TypeVar("_Open", Router, Judge, ModelEndpoint, RewardServer)

_INVALID, _FAILED, _EXTRA_MISSING = 2, 1, 3
_FROM_HERE = "; asked once, from this machine"
_SERVER_PATIENCE_S = 3.0
"""Short, since a person waits, and a named server should already be up."""


def main() -> int:
    """Runs one command; returns one of the exit codes of `shoal`."""
    command = sys.argv[1]
    if command not in ("try", "keys", "ask") and importlib.util.find_spec("math_verify") is None:
        print("error: scoring needs math_verify: pip install 'shoal[reward]'", file=sys.stderr)
        return _EXTRA_MISSING
    logging.basicConfig(format="%(message)s", stream=sys.stderr)
    logging.getLogger(verifier_output.__name__).setLevel(logging.INFO)
    request = json.load(sys.stdin)
    try:
        config = parse_config(request["config"])
        if command == "ask" and (folder := os.environ.get("SHOAL_TLS_DIR")):
            auth.use(Credentials(TlsFolder(Path(folder))))
        answer: Any
        if command == "list":
            answer = [asdict(one) for one in asyncio.run(_described(config))]
        elif command == "try":
            answer = asyncio.run(try_custom(config, request["examples"]))
        elif command in ("keys", "ask"):
            answer = asyncio.run(try_servers(config.reward, asks=command == "ask"))
        elif command == "check":
            answer = asyncio.run(check_labels(config.reward, request["labels"]))
        else:
            scores, judged = asyncio.run(score_rows(config, request["rows"]))
            answer = {"scores": [_plain(score) for score in scores], "judge": judged and _accounts(judged)}
    except ShoalError as error:
        print(f"error: {error.message}", file=sys.stderr)
        return _INVALID if isinstance(error, InvalidArgument) else _FAILED
    json.dump(answer, sys.stdout)
    return 0


async def try_custom(config: RunConfig, examples: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Loads the custom verifiers, and lets each judge its example. Returns the code digest, row and value of each.
    Raises `InvalidArgument` for verifiers that cannot be used or give no verdict."""
    # Use only the functions: no judge, no server, and no other part of the reward.
    alone = RewardConfig(num_processes=1, timeout_s=config.reward.timeout_s, custom=config.reward.custom)
    async with _closing(Router(alone)) as router:
        await router.find()
        digests = {one.name: one.code_digest for one in await router.describe() if one.name in alone.custom}
    names = list(examples)
    scores, _ = await score_rows(config.model_copy(update={"reward": alone}), list(examples.values()))
    verdicts = {name: score.verifier_scores[0] for name, score in zip(names, scores, strict=True)}
    problems = [
        f"reward.custom.{name}: {verdict.detail} (tried on {examples[name]['where']}, with its label as the completion)"
        for name, verdict in verdicts.items()
        if verdict.outcome is ScoreOutcome.FAILED
    ]
    if problems:
        raise InvalidArgument("; ".join(problems))
    return {name: _tried(digest, examples.get(name), verdicts.get(name)) for name, digest in digests.items()}


def _tried(digest: str, example: Mapping[str, Any] | None, verdict: VerifierScore | None) -> dict[str, Any]:
    value = verdict.value if verdict and verdict.outcome is ScoreOutcome.SCORED else None
    return {"digest": digest, "tried_on": example["where"] if example else "", "value": value}


async def score_rows(config: RunConfig, rows: Sequence[Mapping[str, Any]]) -> tuple[list[Score], JudgeCounts | None]:
    """Scores all rows. Returns the scores in the order of the rows, and the counts of the judge, if there is a judge.
    Raises `InvalidArgument` for a verifier that cannot be used."""
    prompts = [_prompt(number, row) for number, row in enumerate(rows, start=1)]
    async with _closing(Router(config.reward)) as router:
        await router.find(_SERVER_PATIENCE_S)
        return await _scores(config, router, prompts, rows), router.judge_counts


async def _scores(
    config: RunConfig, router: Router, prompts: Sequence[Prompt], rows: Sequence[Mapping[str, Any]]
) -> list[Score]:
    for name in sorted({truth.verifier for prompt in prompts for truth in prompt.ground_truths}):
        if why := router.why_not(name):
            raise InvalidArgument(why)
    composer = Composer.of(config)
    for number, row in enumerate(rows, start=1):
        if composer.reads_tokens and row["completion"] and not row["token_ids"]:
            raise InvalidArgument(
                f"row {number} has no token_ids, which reward.overlong, length, cosine and repetition read: add them, "
                "or make them with --tokenize"
            )

    async def score(index: int) -> Score:
        row, prompt = rows[index], prompts[index]
        completion = _completion(index, row)
        parts = await asyncio.gather(*(router.verify(truth, prompt, completion) for truth in prompt.ground_truths))
        output = Output(row["completion"], FinishReason(row["finish_reason"]), row["token_ids"])
        return composer.score(index, prompt.ground_truths, parts, output)

    await router.start()
    return list(await asyncio.gather(*map(score, range(len(rows)))))


async def _described(config: RunConfig) -> list[ListedVerifier]:
    async with _closing(Router(config.reward)) as router:
        await router.find(_SERVER_PATIENCE_S)
        return await router.describe()


async def check_labels(config: RewardConfig, labels: Sequence[tuple[str, Any]]) -> list[str]:
    """Returns why each label, given with its verifier's name, is unusable; empty if it is usable."""
    # No question is sent, so no key is needed. The labels of custom verifiers and of servers are not checked.
    judge = config.judge.model_copy(update={"api_key_env": ""})
    changes = {"judge": judge, "model": RewardModelConfig(), "custom": {}, "servers": {}}
    async with _closing(Router(config.model_copy(update=changes))) as router:
        await router.start()
        known = [
            (number, label) for number, label in enumerate(labels) if label[0] in BUILT_IN_VERIFIERS - MODEL_VERIFIERS
        ]
        found = await asyncio.gather(*(router.label_problem(GroundTruth(*label)) for _, label in known))
        problems = {number: problem for (number, _), problem in zip(known, found, strict=True)}
        return [problems.get(number, "") for number in range(len(labels))]


async def try_servers(config: RewardConfig, *, asks: bool) -> dict[str, str | list[str]]:
    """Looks for the keys of the judge and of the reward model's server in the environment. With `asks` it also sends
    each a question, once, and asks the other servers for their verifiers. Returns the results by table.

    Raises `InvalidArgument` for a missing key, a server that cannot be reached or refuses, a verifier that its server
    lacks, and a verifier that two tables have.
    """
    found = dict[str, str | list[str]]()
    if config.judge.base_url:
        async with _closing(Judge(config.judge.model_copy(update={"max_attempts": 1}))) as judge:
            if asks:
                found["reward.judge"] = await _ask_judge(judge)
    if config.model.base_url:
        async with _closing(ModelEndpoint(config.model.model_copy(update={"max_attempts": 1}))) as model:
            if asks:
                found["reward.model"] = await _ask_model(model)
    if asks:
        names = sorted(config.servers)
        asked = await asyncio.gather(*(_ask_for_verifiers(name, config.servers[name]) for name in names))
        found |= {f"reward.servers.{name}": answer for name, answer in zip(names, asked, strict=True)}
        listed = {name: answer for name, answer in zip(names, asked, strict=True) if isinstance(answer, list)}
        check_owners(listed, {name: f"reward.custom.{name}" for name in config.custom})
    return found


async def _ask_for_verifiers(name: str, config: RewardServerConfig) -> str | list[str]:
    """Returns the verifiers of a server that are used; or why they are not known, if it wants the token that only the
    reward service has. A token of this environment goes to no address that a configuration names."""
    try:
        async with _closing(RewardServer(name, config, gets_token=False)) as server:
            return sorted(await server.list_verifiers(_SERVER_PATIENCE_S))
    except FailedPrecondition as error:
        if isinstance(error.__context__, Unauthenticated | PermissionDenied):
            return f"{config.address} answers, and lists its verifiers only to the reward service"
        folder = os.environ.get("SHOAL_TLS_DIR")
        tls = f"with SHOAL_TLS_DIR={folder}" if folder else "without TLS, since SHOAL_TLS_DIR is not set"
        raise InvalidArgument(f"{error.message}{_FROM_HERE} (asked {tls})") from None


async def _ask_model(model: ModelEndpoint) -> str:
    try:
        await model.start()
    except Unavailable as error:
        raise InvalidArgument(f"{error.message}{_FROM_HERE}") from None
    return "it answers"


async def _ask_judge(judge: Judge) -> str:
    verdict = await judge.judge("llm_judge", "What is 2 + 3?", "5", "5")
    if verdict.outcome is ScoreOutcome.FAILED:
        raise InvalidArgument(f"reward.judge.base_url: {verdict.detail}{_FROM_HERE}")
    return f"{verdict.outcome.value}: {verdict.detail}"


@contextlib.asynccontextmanager
async def _closing(opened: _Open) -> AsyncIterator[_Open]:
    try:
        yield opened
    finally:
        await opened.close()


def _prompt(number: int, row: Mapping[str, Any]) -> Prompt:
    truths = tuple(GroundTruth(*truth) for truth in row["truths"])
    messages = tuple(ChatMessage(role, content) for role, content in row["messages"])
    return Prompt(f"row:{number}", np.zeros(0, np.int32), row.get("prompt", ""), truths, messages)


def _completion(index: int, row: Mapping[str, Any]) -> rollout_pb2.Completion:
    return rollout_pb2.Completion(
        sample_index=index,
        text=row["completion"],
        token_ids=int32_to_wire(np.array(row["token_ids"], np.int32)),
        finish_reason=finish_reason_to_wire(FinishReason(row["finish_reason"])),
    )


def _accounts(counts: JudgeCounts) -> dict[str, float]:
    return {
        "questions": counts.num_questions,
        "asked": counts.num_asked,
        "input_tokens": counts.input_tokens,
        "output_tokens": counts.output_tokens,
        "cost": counts.cost,
    }


def _plain(score: Score) -> dict[str, Any]:
    return {
        "outcome": score.outcome.value,
        "reward": score.reward if score.outcome is ScoreOutcome.SCORED else None,
        "parts": {part.name: part.value for part in score.parts},
        "verifiers": [
            {
                "verifier": part.verifier,
                "outcome": part.outcome.value,
                "value": part.value if part.outcome is ScoreOutcome.SCORED else None,
                "detail": part.detail,
                "duration_s": part.duration_s,
            }
            for part in score.verifier_scores
        ],
    }


if __name__ == "__main__":
    sys.exit(main())
