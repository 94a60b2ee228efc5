"""A process of the pool: `python -m services.reward.pool_worker PARENT_PID`.

Reads jobs from stdin and answers on stdout, one at a time, until stdin ends or the parent dies. Whatever hangs
in here is ended by the parent with SIGKILL.
"""

import logging
import math
import os
import resource
import signal
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, BinaryIO

from services.reward.frames import Message, encode_frame, read_frame
from services.reward.registry import VERIFIERS
from services.reward.verdict import Unscorable
from shoal.rollout import ScoreOutcome
from shoal.worker.parent import die_with_parent

# A completion can make a computer algebra system build numbers without end; this ends it before the machine does.
MEMORY_LIMIT_BYTES = 4 << 30
_MAX_DETAIL_CHARACTERS = 500


def main() -> None:
    die_with_parent(parent_pid=int(sys.argv[1]))
    # A signal to the process group is for the parent: it drains first, and this process with it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT_BYTES, MEMORY_LIMIT_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    logging.disable(logging.ERROR)
    warnings.simplefilter("ignore")
    jobs, answers = _take_pipes()
    answers.write(encode_frame({"event": "ready"}))
    loaded: set[str] = set()
    options: dict[str, Message] = {}
    while (job := read_frame(jobs)) is not None:
        if "options" in job:
            options = job["options"]
            continue
        name = job["verifier"]
        if name not in loaded:
            answers.write(encode_frame({"event": "loading"}))
            VERIFIERS[name].load()
            loaded.add(name)
            answers.write(encode_frame({"event": "loaded"}))
        verdict = judge(name, job["completion"], job["label"], job["token_ids"], options.get(name, {}))
        answers.write(encode_frame(verdict))


def _take_pipes() -> tuple[BinaryIO, BinaryIO]:
    """Jobs and answers, moved away from stdin and stdout so that nothing a verifier reads or prints meets them."""
    jobs = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    return jobs, answers


def judge(
    verifier: str,
    completion: str,
    label: Any,
    token_ids: Sequence[int] = (),
    options: Mapping[str, Any] = MappingProxyType({}),
) -> Message:
    """The answer to one job: outcome, value, detail and duration_s."""
    started = time.perf_counter()
    outcome, value, detail = ScoreOutcome.FAILED, 0.0, ""
    steps: list[list[float]] = []
    try:
        verdict = VERIFIERS[verifier].judge(completion, label, token_ids, options)
        if math.isfinite(verdict.value) and all(math.isfinite(step.value) for step in verdict.step_scores):
            outcome, value, detail = ScoreOutcome.SCORED, verdict.value, verdict.detail
            steps = [[step.end_char, step.value] for step in verdict.step_scores]
        else:
            detail = f"the verifier returned {verdict.value}, steps {[step.value for step in verdict.step_scores]}"
    except Unscorable as error:
        outcome, detail = ScoreOutcome.UNSCORABLE, str(error)
    except (Exception, SystemExit) as error:
        detail = f"the verifier raised {type(error).__name__}: {error}"
    return {
        "event": "judged",
        "outcome": outcome.value,
        "value": value,
        # It goes into a protobuf string, which lone surrogates must not reach.
        "detail": detail[:_MAX_DETAIL_CHARACTERS].encode("utf-8", "replace").decode("utf-8"),
        "steps": steps,
        "duration_s": time.perf_counter() - started,
    }


if __name__ == "__main__":
    main()
