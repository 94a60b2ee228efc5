"""A process of the pool: `python -m services.reward.pool.worker PARENT_PID`.

Reads jobs from stdin and answers on stdout, one at a time, until stdin ends or the parent dies. The parent ends a job
that hangs with SIGKILL.
"""

import hashlib
import logging
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from types import FrameType, MappingProxyType
from typing import Any

from services.reward.common.deadline import is_running
from services.reward.common.text import clean
from services.reward.common.verdict import Broken, Unscorable, Verdict
from services.reward.custom.code import Code
from services.reward.custom.loading import LoadedVerifiers
from services.reward.pool.output import MARK
from services.reward.process.frames import Message, encode_frame, read_frame, take_pipes
from services.reward.process.limits import limit_process
from services.reward.verifiers.registry import VERIFIERS
from shoal.scores import MAX_REWARD, ScoreOutcome

_MAX_DETAIL_CHARACTERS = 500
_MAX_ANSWER_CHARACTERS = 200
_MAX_TRACEBACK_CHARACTERS = 20_000


def main() -> None:
    limit_process(parent_pid=int(sys.argv[1]))
    signal.signal(signal.SIGUSR1, _stop)
    jobs, answers = take_pipes(shows_output=True)
    answers.write(encode_frame({"event": "ready"}))
    loaded: set[str] = set()
    options: dict[str, Message] = {}
    keep_thoughts: list[str] = []
    custom = LoadedVerifiers()

    def load(loads: Callable[[], None]) -> None:
        answers.write(encode_frame({"event": "loading"}))
        loads()
        answers.write(encode_frame({"event": "loaded"}))

    speaking = ""
    while (job := read_frame(jobs)) is not None:
        if job.get("verifier", speaking) != speaking:
            speaking = job["verifier"]
            with suppress(OSError):  # A verifier may have closed the stream.
                os.write(2, MARK + speaking.encode() + b"\n")
        if "options" in job:
            options, keep_thoughts = job["options"], job["keep_thoughts"]
        elif "code" in job:
            custom.use(Code(**job["code"]))
        elif (name := job["verifier"]) in custom:
            if not custom.is_loaded(name):
                with _logging():
                    load(lambda: custom.load(name))
            with _logging():
                verdict = judge_custom(custom, name, job["arguments"])
            with suppress(Exception):  # A verifier may have closed or replaced the stream.
                sys.stdout.flush()
            answers.write(encode_frame(verdict))
        else:
            if name not in loaded:
                load(VERIFIERS[name].load)
                loaded.add(name)
            try:
                verdict = judge(
                    name,
                    job["completion"],
                    job["label"],
                    job["token_ids"],
                    options.get(name, {}),
                    keep_thoughts=name in keep_thoughts,
                )
            except _Stop:
                verdict = {"event": "stopped"}
            answers.write(encode_frame(verdict))


class _Stop(BaseException):
    """Derives from BaseException, since computer algebra would catch an Exception and continue."""


def _stop(number: int, frame: FrameType | None) -> None:
    """Handles SIGUSR1: ends `judge`, and does nothing outside of it.

    If the signal were ignored there, programs that the process starts would ignore it too.
    """
    if is_running(judge.__code__, frame):
        raise _Stop


@contextmanager
def _logging() -> Iterator[None]:
    """Lets custom code log. Libraries of the built-in verifiers may not, since their warnings are irrelevant."""
    before = logging.root.manager.disable
    logging.disable(logging.NOTSET)
    try:
        yield
    finally:
        logging.disable(before)


def judge(
    verifier: str,
    completion: str,
    label: Any,
    token_ids: Sequence[int] = (),
    options: Mapping[str, Any] = MappingProxyType({}),
    *,
    keep_thoughts: bool = False,
) -> Message:
    """Answers a job with outcome, value, detail and duration_s."""
    judging = partial(VERIFIERS[verifier].judge, completion, label, token_ids, options, keep_thoughts=keep_thoughts)
    return _answer(judging, lambda error: f"{type(error).__name__}: {error}")


def judge_custom(custom: LoadedVerifiers, name: str, arguments: Mapping[str, Any]) -> Message:
    """Answers with a custom verifier. Adds the digest of its code, the traceback if it raised, and a reason to replace
    the process."""
    raised: list[str] = []

    def error_line(error: BaseException) -> str:
        raised.append("".join(traceback.format_exception(error)))
        return custom.error_line(name, error)

    answer = _answer(lambda: custom.judge(name, arguments), error_line)
    full = "".join(raised)[-_MAX_TRACEBACK_CHARACTERS:]
    return answer | {"code": custom.digest(name), "traceback": full, "why_replace": custom.why_replace}


def _short(answer: str) -> str:
    """Returns an answer, or the digest of a long answer, which is the same for equal answers."""
    return answer if len(answer) <= _MAX_ANSWER_CHARACTERS else hashlib.sha256(answer.encode()).hexdigest()


def _answer(judging: Callable[[], Verdict], error_line: Callable[[BaseException], str]) -> Message:
    started = time.perf_counter()
    outcome, value, detail = ScoreOutcome.FAILED, 0.0, ""
    found: str | None = None
    steps: list[list[float]] = []
    try:
        verdict = judging()
        if all(abs(value) <= MAX_REWARD for value in (verdict.value, *(step.value for step in verdict.step_scores))):
            outcome, value, detail, found = ScoreOutcome.SCORED, verdict.value, verdict.detail, verdict.answer
            steps = [[step.end_char, step.value] for step in verdict.step_scores]
        else:
            detail = (
                f"the verifier returned the value {verdict.value} and the steps "
                f"{[step.value for step in verdict.step_scores]}: all must be from -{MAX_REWARD:g} to {MAX_REWARD:g}"
            )
    except Unscorable as error:
        outcome, detail = ScoreOutcome.UNSCORABLE, str(error)
    except Broken as error:
        detail = str(error)
    except (Exception, SystemExit) as error:
        detail = f"the verifier raised {error_line(error)}"
    return {
        "event": "judged",
        "outcome": outcome.value,
        "value": value,
        # Protobuf strings cannot have lone surrogates.
        "detail": clean(detail[:_MAX_DETAIL_CHARACTERS]),
        "answer": None if found is None else _short(clean(found)),
        "steps": steps,
        "duration_s": time.perf_counter() - started,
    }


if __name__ == "__main__":
    main()
