"""Tests of the order in which waiting completions are judged, without processes."""

import asyncio

from services.reward.pool.job_queue import Job, JobQueue
from shoal.scores import ScoreOutcome, VerifierScore


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def job(verifier: str, group: str = "") -> Job:
    return Job(verifier, "5", "5", asyncio.get_running_loop().create_future(), group=group, can_stop=True)


def add(queue: JobQueue, *jobs: Job) -> JobQueue:
    for one in jobs:
        queue.add(one)
    return queue


def judged(queue: JobQueue, one: Job, duration_s: float) -> None:
    """Ends a job as a process does that has judged it."""
    queue.took(one, duration_s, ScoreOutcome.SCORED)
    one.done.set_result(VerifierScore(one.verifier, ScoreOutcome.SCORED, 1.0))


def slow_queue(num_processes: int) -> tuple[JobQueue, Clock]:
    """Returns a queue that knows `code` as slow (seconds) and `math` as quick, and its clock."""
    clock = Clock()
    queue = JobQueue(num_processes, clock)
    queue.took(job("code"), 8.0, ScoreOutcome.SCORED)
    queue.took(job("math"), 0.003, ScoreOutcome.SCORED)
    return queue, clock


async def test_the_oldest_job_comes_first_and_a_job_that_was_put_back_before_it() -> None:
    jobs = [job("math"), job("gsm8k"), job("math"), job("gsm8k")]
    queue = add(JobQueue(2), *jobs)
    assert len(queue) == 4
    first = queue.take([])
    assert first is jobs[0]
    queue.put_back(first)
    assert [queue.take([]) for _ in range(5)] == [*jobs, None]


async def test_a_job_whose_caller_has_gone_is_skipped() -> None:
    canceled, waiting = job("math"), job("math")
    queue = add(JobQueue(2), canceled, waiting)
    canceled.done.cancel()
    assert queue.take([]) is waiting


async def test_one_process_is_reserved_for_quick_verifiers_while_they_are_in_use() -> None:
    queue, clock = slow_queue(2)
    programs, answer = [job("code") for _ in range(3)], job("math")
    add(queue, answer, *programs)
    assert [queue.take([]), queue.take([job("math")])] == [answer, programs[0]]
    assert queue.take([job("code")]) is None, "the second of two processes would hang as well"
    queue.add(answer)
    assert queue.take([job("code")]) is answer
    clock.now = 61.0
    assert queue.take([job("code")]) is programs[1], "no quick job arrived for a minute"


async def test_two_slow_verifiers_share_the_processes_that_one_may_use() -> None:
    queue, _ = slow_queue(3)
    queue.took(job("code_stdio"), 8.0, ScoreOutcome.SCORED)
    add(queue, job("math"), job("code"), job("code_stdio")).take([])
    assert queue.take([job("code"), job("code_stdio")]) is None


async def test_a_slow_verifier_waits_neither_without_quick_ones_nor_for_the_only_process() -> None:
    queue, _ = slow_queue(2)
    alone = [job("code"), job("code")]
    add(queue, *alone)
    assert [queue.take([]), queue.take([job("code")])] == alone
    single, _ = slow_queue(1)
    add(single, job("math")).take([])
    program = job("code")
    assert add(single, program).take([]) is program


async def test_a_verifier_that_has_become_quick_again_uses_every_process() -> None:
    queue, _ = slow_queue(2)
    add(queue, job("math")).take([])
    program = job("code")
    assert add(queue, program).take([job("code")]) is None
    for _ in range(100):
        queue.took(job("code"), 0.01, ScoreOutcome.SCORED)
    assert queue.take([job("code")]) is program


async def test_fail_all_fails_every_waiting_job_and_keeps_existing_answers() -> None:
    answered, waiting = job("math"), job("code")
    queue = add(JobQueue(2), answered, waiting)
    answered.done.set_result(VerifierScore("math", ScoreOutcome.SCORED, 1.0))
    queue.fail_all("the pool was closed")
    assert answered.done.result().value == 1.0
    assert (waiting.done.result().outcome, waiting.done.result().detail) == (ScoreOutcome.FAILED, "the pool was closed")
    assert queue.take([]) is None


async def test_late_completions_are_stopped_while_others_wait_and_then_judged_behind_them() -> None:
    bomb, other = job("math"), job("math")
    queue = add(JobQueue(2), bomb, other)
    assert queue.take([]) is bomb
    assert queue.to_stop([bomb]) == [], "its slice is not over"
    queue.overran(bomb)
    assert queue.to_stop([bomb]) == [bomb]
    queue.took(bomb, 0.05)
    queue.put_off(bomb)
    later = job("math")
    queue.add(later)
    assert [queue.take([]), queue.take([]), queue.take([]), queue.take([])] == [other, later, bomb, None]
    assert queue.to_stop([bomb]) == [], "nobody waits"


async def test_a_completion_that_cannot_be_stopped_keeps_its_process() -> None:
    custom = job("custom")
    custom.can_stop = False
    queue = add(JobQueue(2), custom, job("custom"))
    assert queue.take([]) is custom
    queue.overran(custom)
    assert queue.to_stop([custom]) == []


async def test_a_group_of_late_completions_waits_behind_others_until_most_are_in_time() -> None:
    flood, answers = ([job("math", group) for _ in range(3)] for group in ("flood", "answers"))
    queue = add(JobQueue(2), *flood, *answers)
    assert queue.take([]) is flood[0]
    queue.overran(flood[0])
    assert queue.take([flood[0]]) is answers[0], "the group has a late completion and none in time"
    judged(queue, answers[0], 0.01)
    assert queue.take([flood[0]]) is answers[1]
    judged(queue, flood[0], 5.0)  # Which uses up the share of late ones.
    assert queue.take([]) is answers[2]
    assert queue.take([answers[2]]) is flood[1], "nobody else waits"
    judged(queue, flood[1], 0.01)
    queue.add(job("math"))
    assert queue.take([]) is flood[2], "as many in time as late: the group has its place again"


async def test_late_completions_get_a_quarter_of_the_time_while_others_wait() -> None:
    queue = add(JobQueue(2), *(job("math") for _ in range(1000)))
    for _ in range(100):
        bomb = job("math")
        queue.add(bomb)
        queue.overran(bomb)
        queue.put_off(bomb)
    spent = {True: 0.0, False: 0.0}
    for _ in range(400):
        one = queue.take([])
        assert one is not None
        seconds = 5.0 if one.is_late else 0.1
        spent[one.is_late] += seconds
        judged(queue, one, seconds)
    share = spent[True] / sum(spent.values())
    assert 0.2 < share < 0.4, f"{share:.0%}, with steps of 5 s"


async def test_one_late_completion_at_a_time_keeps_one_of_two_processes() -> None:
    bombs = [job("math"), job("math")]
    queue = add(JobQueue(2), *bombs)
    assert [queue.take([]), queue.take([])] == bombs
    for bomb in bombs:
        queue.overran(bomb)
        queue.put_off(bomb)
    assert [queue.take([]), queue.take([bombs[0]])] == bombs, "nobody else waits"
    queue.add(job("math"))
    assert queue.to_stop(bombs) == [bombs[1]]


async def test_a_flood_does_not_change_what_its_verifier_usually_takes() -> None:
    queue = JobQueue(2)
    answer = job("math")
    queue.took(answer, 0.02, ScoreOutcome.SCORED)
    before = queue.slice_s(answer)
    assert before == 0.08
    for outcome in (ScoreOutcome.UNSCORABLE, ScoreOutcome.FAILED, None):
        queue.took(answer, 5.0, outcome)
    assert queue.slice_s(answer) == before


async def test_the_verifier_on_which_least_time_was_spent_comes_first() -> None:
    flood, answer, later = [job("code", str(index)) for index in range(3)], job("math"), job("math")
    queue = add(JobQueue(2), *flood, answer, later)
    assert queue.take([]) is flood[0], "the oldest, of verifiers on which nothing was spent"
    judged(queue, flood[0], 3.0)
    assert queue.take([]) is answer, "although two of the flood came before it"
    judged(queue, answer, 0.01)
    assert queue.take([]) is later
