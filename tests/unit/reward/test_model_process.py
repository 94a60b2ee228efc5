"""A reward model's process that dies, hangs and does not come up, with a script in the model's place."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from services.reward.model import process
from services.reward.model.answer import Answer, ModelFailed
from services.reward.model.process import ModelProcess
from services.reward.verdict import Unscorable
from shoal.config.reward_model import RewardModelConfig
from shoal.errors import InvalidArgument, Unavailable

Make = Callable[..., ModelProcess]
Told = Answer | BaseException


@pytest.fixture
async def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Make]:
    monkeypatch.setattr(process, "_RUNNER", "tests.unit.reward.scripted_model_runner")
    monkeypatch.setattr(process, "_MIN_BACKOFF_S", 0.01)
    made: list[ModelProcess] = []

    def one(**settings: Any) -> ModelProcess:
        made.append(ModelProcess(RewardModelConfig(path=str(tmp_path), **settings)))
        return made[-1]

    yield one
    for model in made:
        await model.close()
        assert not model.pid or not psutil.pid_exists(model.pid), f"process {model.pid} is left behind"


async def ask(model: ModelProcess, *texts: str) -> list[Told]:
    async with asyncio.timeout(30):
        return await asyncio.gather(*(model.answer({"text": text}) for text in texts), return_exceptions=True)


def logits(told: list[Told]) -> list[float | str]:
    return [one.logits[0] if isinstance(one, Answer) else type(one).__name__ for one in told]


async def test_what_waits_goes_together_and_no_more_than_may(make: Make, tmp_path: Path) -> None:
    model = make(batch_size=4)
    assert await model.start() == 0
    told = await ask(model, *("x" * number for number in range(1, 11)))
    assert logits(told) == list(range(1, 11))
    sizes = [int(line) for line in (tmp_path / "batches").read_text().split()]
    assert sizes == [1, 4, 4, 1], f"batches of {sizes}"


async def test_an_answer_that_is_none_is_unscorable_or_failed(make: Make) -> None:
    model = make()
    await model.start()
    told = await ask(model, "refuse", "raise", "abc")
    assert logits(told) == ["Unscorable", "ModelFailed", 3]
    assert isinstance(told[0], Unscorable) and "too long" in str(told[0])
    assert model.num_restarts == 0


async def test_questions_whose_process_died_are_asked_once_more(make: Make) -> None:
    model = make(batch_size=4)
    await model.start()
    assert logits(await ask(model, "a", "bb", "once", "ddd", "e")) == [1, 2, 4, 3, 1]
    assert model.num_restarts == 1


async def test_a_question_that_kills_fails_alone(make: Make, tmp_path: Path) -> None:
    model = make(batch_size=4)
    await model.start()
    told = await ask(model, "a", "bb", "die", "dddd", "e")
    assert logits(told) == [1, 2, "ModelFailed", 4, 1]
    assert "died (exit code 1)" in str(told[2]), told[2]
    assert model.num_restarts == 2
    sizes = [int(line) for line in (tmp_path / "batches").read_text().split()]
    assert sizes == [1, 4, 1, 1, 1, 1], f"batches of {sizes}: each of four is tried again alone"


async def test_a_process_killed_from_outside_costs_nobody_a_score(make: Make) -> None:
    model = make(batch_size=2)
    await model.start()
    first = model.pid
    waiting = asyncio.create_task(ask(model, *("x" * number for number in range(1, 501))))
    await asyncio.sleep(0)
    os.kill(first, signal.SIGKILL)
    while model.pid in (0, first):  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    os.kill(model.pid, signal.SIGKILL)
    assert logits(await waiting) == list(range(1, 501))
    assert model.num_restarts == 2, "one was killed at work, the next as it started"


async def test_a_process_that_hangs_is_replaced_and_its_questions_fail_in_time(make: Make) -> None:
    model = make(batch_size=2, timeout_s=0.5)
    await model.start()
    told = await ask(model, "hang", "bb", "ccc")
    assert logits(told) == ["ModelFailed", 2, 3]
    assert "reward.model.timeout_s (0.5 s)" in str(told[0]), told[0]
    assert model.num_restarts == 1


async def test_a_model_that_is_refused_is_an_error_of_the_start(make: Make, tmp_path: Path) -> None:
    (tmp_path / "start").write_text("refuse")
    model = make()
    with pytest.raises(InvalidArgument, match="not to my taste"):
        await model.start()


async def test_a_process_that_ends_as_it_starts_is_an_error_of_the_start(make: Make, tmp_path: Path) -> None:
    (tmp_path / "start").write_text("die")
    with pytest.raises(Unavailable, match="exit code 3"):
        await make().start()


async def test_as_long_as_no_process_comes_up_questions_fail_and_then_they_are_answered(
    make: Make, tmp_path: Path
) -> None:
    model = make()
    await model.start()
    (tmp_path / "start").write_text("refuse")
    told = await ask(model, "die", "bb")
    assert logits(told) == ["ModelFailed", "ModelFailed"], told
    assert all("not to my taste" in str(one) for one in told), told
    (tmp_path / "start").unlink()
    async with asyncio.timeout(30):
        while isinstance((await ask(model, "ccc"))[0], ModelFailed):
            pass
    assert logits(await ask(model, "dddd")) == [4]


async def test_what_is_open_when_the_model_is_closed_fails(make: Make) -> None:
    model = make()
    await model.start()
    waiting = asyncio.create_task(ask(model, "hang", "bb"))
    await asyncio.sleep(0.1)
    await model.close()
    assert logits(await waiting) == ["ModelFailed", "ModelFailed"]
    assert logits(await ask(model, "c")) == ["ModelFailed"]


async def test_a_start_that_is_given_up_leaves_no_process(make: Make) -> None:
    model = make()
    starting = asyncio.create_task(model.start())
    while not model.pid:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    starting.cancel()
    await asyncio.wait([starting])
    await model.close()
    assert not psutil.pid_exists(model.pid)


async def test_a_question_that_is_given_up_is_not_asked(make: Make, tmp_path: Path) -> None:
    model = make(batch_size=1)
    await model.start()
    first = asyncio.create_task(model.answer({"text": "a"}))
    given_up = asyncio.create_task(model.answer({"text": "bb"}))
    await asyncio.sleep(0)
    given_up.cancel()
    await asyncio.wait([given_up, first])
    assert logits(await ask(model, "ccc")) == [3]
    assert (tmp_path / "batches").read_text().split() == ["1", "1"]
