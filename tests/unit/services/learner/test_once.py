import asyncio

import pytest

from services.learner.once import MAX_RESULTS, Once


class Begun:
    def __init__(self, error: Exception | None = None) -> None:
        self.count = 0
        self._error = error

    def __call__(self) -> "asyncio.Future[int]":
        self.count += 1
        command = asyncio.get_running_loop().create_future()
        command.set_exception(self._error) if self._error else command.set_result(self.count)
        return command


async def test_a_command_that_is_sent_again_gets_the_first_result() -> None:
    once, begin = Once[int](), Begun()
    assert [await once.begin_once("a", begin) for _ in range(3)] == [1, 1, 1]
    assert await once.begin_once("b", begin) == 2


async def test_a_command_that_failed_is_begun_again() -> None:
    once, begin = Once[int](), Begun()
    with pytest.raises(ValueError):
        await once.begin_once("a", Begun(ValueError("failed")))
    assert await once.begin_once("a", begin) == 1


async def test_a_command_whose_result_no_longer_holds_is_begun_again() -> None:
    once, begin = Once[int](), Begun()
    results = [await once.begin_once("a", begin, lambda result: result != 1) for _ in range(3)]
    assert results == [1, 2, 2]


async def test_the_newest_results_alone_are_kept() -> None:
    once, begin = Once[int](), Begun()
    for number in range(MAX_RESULTS + 1):
        await once.begin_once(str(number), begin)
    assert await once.begin_once("0", begin) == MAX_RESULTS + 2, "the oldest result was kept"
    assert await once.begin_once(str(MAX_RESULTS), begin) == MAX_RESULTS + 1
