"""A process of the pool: `python -m services.reward.pool_worker PARENT_PID`.

Reads jobs from stdin and answers on stdout, one at a time, until stdin ends or the parent dies. Whatever hangs
in here is ended by the parent with SIGKILL.
"""

import math
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from services.reward.frames import Message, encode_frame, read_frame, take_pipes
from services.reward.own.code import Code
from services.reward.own.held import HeldVerifiers
from services.reward.process_limits import limit_process
from services.reward.registry import VERIFIERS
from services.reward.verdict import Broken, Unscorable, Verdict
from shoal.rollout import ScoreOutcome

_MAX_DETAIL_CHARACTERS = 500
_MAX_TRACEBACK_CHARACTERS = 20_000


def main() -> None:
    limit_process(parent_pid=int(sys.argv[1]))
    jobs, answers = take_pipes()
    answers.write(encode_frame({"event": "ready"}))
    loaded: set[str] = set()
    options: dict[str, Message] = {}
    own = HeldVerifiers()

    def load(name: str, loads: Callable[[], None]) -> None:
        answers.write(encode_frame({"event": "loading"}))
        loads()
        answers.write(encode_frame({"event": "loaded"}))

    while (job := read_frame(jobs)) is not None:
        if "options" in job:
            options = job["options"]
        elif "code" in job:
            own.hold(Code(**job["code"]))
        elif (name := job["verifier"]) in own:
            if not own.is_loaded(name):
                load(name, lambda: own.load(name))
            answers.write(encode_frame(judge_by_own(own, name, job["given"])))
        else:
            if name not in loaded:
                load(name, VERIFIERS[name].load)
                loaded.add(name)
            verdict = judge(name, job["completion"], job["label"], job["token_ids"], options.get(name, {}))
            answers.write(encode_frame(verdict))


def judge(
    verifier: str,
    completion: str,
    label: Any,
    token_ids: Sequence[int] = (),
    options: Mapping[str, Any] = MappingProxyType({}),
) -> Message:
    """The answer to one job: outcome, value, detail and duration_s."""
    return _answer(lambda: VERIFIERS[verifier].judge(completion, label, token_ids, options), _told)


def judge_by_own(own: HeldVerifiers, name: str, given: Mapping[str, Any]) -> Message:
    """The answer of a verifier that does not come with Shoal: also which code it was, the traceback where it raised,
    and why the process should not be used any more."""
    raised: list[str] = []

    def told(error: BaseException) -> str:
        raised.append("".join(traceback.format_exception(error)))
        return own.told(name, error)

    answer = _answer(lambda: own.judge(name, given), told)
    full = "".join(raised)[-_MAX_TRACEBACK_CHARACTERS:]
    return answer | {"code": own.digest(name), "traceback": full, "spent": own.spent}


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _answer(judging: Callable[[], Verdict], told: Callable[[BaseException], str]) -> Message:
    started = time.perf_counter()
    outcome, value, detail = ScoreOutcome.FAILED, 0.0, ""
    steps: list[list[float]] = []
    try:
        verdict = judging()
        if math.isfinite(verdict.value) and all(math.isfinite(step.value) for step in verdict.step_scores):
            outcome, value, detail = ScoreOutcome.SCORED, verdict.value, verdict.detail
            steps = [[step.end_char, step.value] for step in verdict.step_scores]
        else:
            detail = f"the verifier returned {verdict.value}, steps {[step.value for step in verdict.step_scores]}"
    except Unscorable as error:
        outcome, detail = ScoreOutcome.UNSCORABLE, str(error)
    except Broken as error:
        detail = str(error)
    except (Exception, SystemExit) as error:
        detail = f"the verifier raised {told(error)}"
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
