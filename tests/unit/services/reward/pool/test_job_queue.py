"""Tests of the order in which waiting completions are judged, without processes."""

import asyncio

from services.reward.pool.job_queue import Job, JobQueue
from shoal.scores import ScoreOutcome, VerifierScore


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def job(verifier: str) -> Job:
    return Job(verifier, "5", "5", asyncio.get_running_loop().create_future())


def slow_queue(num_processes: int) -> tuple[JobQueue, Clock]:
    """Returns a queue that knows `code` as slow (seconds) and `math` as quick, and its clock."""
    clock = Clock()
    queue = JobQueue(num_processes, clock)
    queue.took("code", 8.0)
    queue.took("math", 0.003)
    return queue, clock


async def test_the_oldest_job_comes_first_and_a_job_that_was_put_back_before_it() -> None:
    queue = JobQueue(2)
    jobs = [job("math"), job("gsm8k"), job("math"), job("gsm8k")]
    for one in jobs:
        queue.add(one)
    assert len(queue) == 4
    first = queue.take([])
    assert first is jobs[0]
    queue.put_back(first)
    assert [queue.take([]) for _ in range(5)] == [*jobs, None]


async def test_a_job_whose_caller_has_gone_is_skipped() -> None:
    queue = JobQueue(2)
    canceled, waiting = job("math"), job("math")
    queue.add(canceled)
    queue.add(waiting)
    canceled.done.cancel()
    assert queue.take([]) is waiting


async def test_one_process_is_reserved_for_quick_verifiers_while_they_are_in_use() -> None:
    queue, clock = slow_queue(2)
    programs, answer = [job("code") for _ in range(3)], job("math")
    queue.add(answer)
    for one in programs:
        queue.add(one)
    assert [queue.take([]), queue.take(["math"])] == [answer, programs[0]]
    assert queue.take(["code"]) is None, "the second of two processes would hang as well"
    queue.add(answer)
    assert queue.take(["code"]) is answer
    clock.now = 61.0
    assert queue.take(["code"]) is programs[1], "no quick job arrived for a minute"


async def test_two_slow_verifiers_share_the_processes_that_one_may_use() -> None:
    queue, _ = slow_queue(3)
    queue.took("code_stdio", 8.0)
    for verifier in ("math", "code", "code_stdio"):
        queue.add(job(verifier))
    queue.take([])
    assert queue.take(["code", "code_stdio"]) is None


async def test_a_slow_verifier_waits_neither_without_quick_ones_nor_for_the_only_process() -> None:
    queue, _ = slow_queue(2)
    alone = [job("code"), job("code")]
    for one in alone:
        queue.add(one)
    assert [queue.take([]), queue.take(["code"])] == alone
    single, _ = slow_queue(1)
    single.add(job("math"))
    single.take([])
    program = job("code")
    single.add(program)
    assert single.take([]) is program


async def test_a_verifier_that_has_become_quick_again_uses_every_process() -> None:
    queue, _ = slow_queue(2)
    queue.add(job("math"))
    queue.take([])
    program = job("code")
    queue.add(program)
    assert queue.take(["code"]) is None
    for _ in range(100):
        queue.took("code", 0.01)
    assert queue.take(["code"]) is program


async def test_fail_all_fails_every_waiting_job_and_keeps_existing_answers() -> None:
    queue = JobQueue(2)
    answered, waiting = job("math"), job("code")
    queue.add(answered)
    queue.add(waiting)
    answered.done.set_result(VerifierScore("math", ScoreOutcome.SCORED, 1.0))
    queue.fail_all("the pool was closed")
    assert answered.done.result().value == 1.0
    assert (waiting.done.result().outcome, waiting.done.result().detail) == (ScoreOutcome.FAILED, "the pool was closed")
    assert queue.take([]) is None
