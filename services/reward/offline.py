"""`python -m services.reward.offline score|list`: scoring without a service, by the same pool and the same rules.

`score` reads one JSON document from stdin, {"config": the whole RunConfig, "rows": [{"truths": [[verifier, label,
weight], ...], "messages": [[role, content], ...], "completion", "finish_reason", "token_ids"}, ...]}, and writes the
scores in the rows' order; `list` writes the verifiers. For the command line, which cannot import a service.
"""

import asyncio
import importlib.util
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from services.reward.compose import Composer, Output
from services.reward.judge.judge import MISSING, Judge
from services.reward.judge.labels import JUDGED_LABELS
from services.reward.judge.rubric import DESCRIPTION as RUBRIC_DESCRIPTION
from services.reward.pool import VerifierPool
from services.reward.registry import ALL_VERIFIERS, VERIFIERS, Verifier
from shoal.config import RunConfig, parse_config
from shoal.errors import InvalidArgument, ShoalError
from shoal.rollout import ChatMessage, FinishReason, GroundTruth, Score, ScoreOutcome, VerifierScore, question_of
from shoal.verifiers import JUDGE_VERIFIERS

_INVALID, _FAILED, _EXTRA_MISSING = 2, 1, 3


def main() -> int:
    """Exit codes are those of `shoal`."""
    if importlib.util.find_spec("math_verify") is None:
        print("error: scoring needs math_verify: pip install 'shoal[reward]'", file=sys.stderr)
        return _EXTRA_MISSING
    try:
        answer: Any
        if sys.argv[1:] == ["list"]:
            answer = [_described(name, verifier) for name, verifier in ALL_VERIFIERS.items()]
            answer += [_described_judge(name) for name in sorted(JUDGE_VERIFIERS)]
        else:
            request = json.load(sys.stdin)
            scores = asyncio.run(score_rows(parse_config(request["config"]), request["rows"]))
            answer = [_plain(score) for score in scores]
    except ShoalError as error:
        print(f"error: {error.message}", file=sys.stderr)
        return _INVALID if isinstance(error, InvalidArgument) else _FAILED
    json.dump(answer, sys.stdout)
    return 0


async def score_rows(config: RunConfig, rows: Sequence[Mapping[str, Any]]) -> list[Score]:
    """The scores of all rows, in their order. Raises `InvalidArgument` for a verifier that is not installed."""
    truths = [tuple(GroundTruth(*truth) for truth in row["truths"]) for row in rows]
    for name in sorted({truth.verifier for row in truths for truth in row}):
        if name in JUDGE_VERIFIERS and not config.reward.judge.base_url:
            raise InvalidArgument(f"the verifier {name!r} needs a judge; {MISSING}")
        if name not in VERIFIERS and name not in JUDGE_VERIFIERS:
            raise InvalidArgument(f"the verifier {name!r} is not installed here: {_missing(name)}")
    composer = Composer.of(config)
    for number, row in enumerate(rows, start=1):
        if composer.reads_tokens and row["completion"] and not row["token_ids"]:
            raise InvalidArgument(
                f"row {number} has no token_ids, which reward.overlong, length, cosine and repetition read: give them, "
                "or make them with --tokenize"
            )
    pool = VerifierPool(
        num_processes=config.reward.num_processes,
        timeout_s=config.reward.timeout_s,
        options=config.reward.verifiers.model_dump(),
    )

    judge = Judge(config.reward.judge) if config.reward.judge.base_url else None

    async def verified(truth: GroundTruth, row: Mapping[str, Any]) -> VerifierScore:
        if truth.verifier in JUDGE_VERIFIERS:
            assert judge is not None
            return await judge.judge(truth.verifier, _question(row), row["completion"], truth.label)
        return await pool.judge(truth.verifier, row["completion"], truth.label, row["token_ids"])

    async def score(index: int) -> Score:
        row = rows[index]
        judged = [verified(truth, row) for truth in truths[index]]
        output = Output(row["completion"], FinishReason(row["finish_reason"]), row["token_ids"])
        return composer.score(index, truths[index], await asyncio.gather(*judged), output)

    try:
        await pool.start()
        return list(await asyncio.gather(*map(score, range(len(rows)))))
    finally:
        await pool.close()
        if judge is not None:
            await judge.close()


def _question(row: Mapping[str, Any]) -> str:
    return question_of([ChatMessage(role, content) for role, content in row["messages"]])


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


def _described(name: str, verifier: Verifier) -> dict[str, str]:
    why = verifier.unavailable() if name in VERIFIERS else _missing(name)
    return {"name": name, "reads": verifier.reads, "description": verifier.description, "unavailable": why}


def _described_judge(name: str) -> dict[str, str]:
    described = RUBRIC_DESCRIPTION if name == "rubric" else JUDGED_LABELS[name].description
    return {"name": name, "reads": "prompt and text", "description": described, "unavailable": MISSING}


def _missing(name: str) -> str:
    return f"it needs the package {ALL_VERIFIERS[name].module}, which an extra of shoal brings (docs/rewards.md)"


if __name__ == "__main__":
    sys.exit(main())
