"""Tests of a reward model's process that dies, hangs or does not start. A script replaces the model."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from services.reward.common.verdict import Unscorable
from services.reward.model import model_process
from services.reward.model.model_process import ModelProcess
from services.reward.model.question import Answer, ModelFailed
from shoal.config.tables.reward_model import RewardModelConfig
from shoal.errors import InvalidArgument, ResourceExhausted, Unavailable

Make = Callable[..., ModelProcess]
Result = Answer | BaseException


@pytest.fixture
async def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Make]:
    monkeypatch.setattr(model_process, "_RUNNER", "tests.unit.services.reward.model.scripted_model_runner")
    monkeypatch.setattr(model_process, "_BACKOFF_S", (0.01, 30.0))
    models: list[ModelProcess] = []

    def make_model(**settings: Any) -> ModelProcess:
        models.append(ModelProcess(RewardModelConfig(path=str(tmp_path), **settings)))
        return models[-1]

    yield make_model
    for model in models:
        await model.close()
        assert not model.pid or not psutil.pid_exists(model.pid), f"process {model.pid} is left behind"


async def ask(model: ModelProcess, *texts: str) -> list[Result]:
    async with asyncio.timeout(120):
        return await asyncio.gather(*(model.answer({"text": text}) for text in texts), return_exceptions=True)


def logits(results: list[Result]) -> list[float | str]:
    return [result.logits[0] if isinstance(result, Answer) else type(result).__name__ for result in results]


async def test_waiting_questions_form_batches_up_to_the_batch_size(make: Make, tmp_path: Path) -> None:
    model = make(batch_size=4)
    assert await model.start() == 0
    results = await ask(model, *("x" * number for number in range(1, 11)))
    assert logits(results) == list(range(1, 11))
    sizes = [int(line) for line in (tmp_path / "batches").read_text().split()]
    assert sizes == [1, 4, 4, 1], f"batches of {sizes}"


async def test_a_question_without_a_logit_is_unscorable_or_failed(make: Make) -> None:
    model = make()
    await model.start()
    results = await ask(model, "refuse", "raise", "abc")
    assert logits(results) == ["Unscorable", "ModelFailed", 3]
    assert isinstance(results[0], Unscorable) and "too long" in str(results[0])
    assert model.num_restarts == 0


async def test_questions_whose_process_died_are_retried_once(make: Make) -> None:
    model = make(batch_size=4)
    await model.start()
    assert logits(await ask(model, "a", "bb", "once", "ddd", "e")) == [1, 2, 4, 3, 1]
    assert model.num_restarts == 1


async def test_a_question_that_kills_the_process_fails_alone(make: Make, tmp_path: Path) -> None:
    model = make(batch_size=4)
    await model.start()
    results = await ask(model, "a", "bb", "die", "dddd", "e")
    assert logits(results) == [1, 2, "ModelFailed", 4, 1]
    assert "died (exit code 1)" in str(results[2]), results[2]
    assert model.num_restarts == 2
    sizes = [int(line) for line in (tmp_path / "batches").read_text().split()]
    assert sizes == [1, 4, 1, 1, 1, 1], f"batches of {sizes}: each of the four is retried alone"


async def test_a_process_killed_from_outside_costs_no_score(make: Make) -> None:
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
    assert model.num_restarts == 2, "the first was killed while working, the second while starting"


async def test_a_hanging_process_is_replaced_and_its_question_fails_at_the_timeout(make: Make) -> None:
    model = make(batch_size=2, timeout_s=1.0)
    await model.start()
    results = await ask(model, "hang", "bb", "ccc")
    assert logits(results) == ["ModelFailed", 2, 3]
    assert "reward.model.timeout_s (1 s)" in str(results[0]), results[0]
    assert model.num_restarts == 1


async def test_a_refused_model_is_an_error_of_the_start(make: Make, tmp_path: Path) -> None:
    (tmp_path / "start").write_text("refuse")
    model = make()
    with pytest.raises(InvalidArgument, match="not to my taste"):
        await model.start()


async def test_a_model_that_memory_is_too_small_for_is_no_invalid_setting(make: Make, tmp_path: Path) -> None:
    (tmp_path / "start").write_text("full")
    with pytest.raises(ResourceExhausted, match="not to my taste"):
        await make().start()


async def test_a_process_that_exits_during_the_start_is_an_error_of_the_start(make: Make, tmp_path: Path) -> None:
    (tmp_path / "start").write_text("die")
    with pytest.raises(Unavailable, match="exit code 3"):
        await make().start()


async def test_questions_fail_until_a_new_process_starts(make: Make, tmp_path: Path) -> None:
    model = make()
    await model.start()
    (tmp_path / "start").write_text("refuse")
    results = await ask(model, "die", "bb")
    assert logits(results) == ["ModelFailed", "ModelFailed"], results
    assert all("not to my taste" in str(result) for result in results), results
    (tmp_path / "start").unlink()
    async with asyncio.timeout(120):
        while isinstance((await ask(model, "ccc"))[0], ModelFailed):
            pass
    assert logits(await ask(model, "dddd")) == [4]


async def test_questions_that_are_open_at_close_fail(make: Make) -> None:
    model = make()
    await model.start()
    waiting = asyncio.create_task(ask(model, "hang", "bb"))
    await asyncio.sleep(0.1)
    await model.close()
    assert logits(await waiting) == ["ModelFailed", "ModelFailed"]
    assert logits(await ask(model, "c")) == ["ModelFailed"]


async def test_a_canceled_start_leaves_no_process(make: Make) -> None:
    model = make()
    starting = asyncio.create_task(model.start())
    while not model.pid:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    starting.cancel()
    await asyncio.wait([starting])
    await model.close()
    assert not psutil.pid_exists(model.pid)


async def test_a_canceled_question_is_not_sent(make: Make, tmp_path: Path) -> None:
    model = make(batch_size=1)
    await model.start()
    first = asyncio.create_task(model.answer({"text": "a"}))
    canceled = asyncio.create_task(model.answer({"text": "bb"}))
    await asyncio.sleep(0)
    canceled.cancel()
    await asyncio.wait([canceled, first])
    assert logits(await ask(model, "ccc")) == [3]
    assert (tmp_path / "batches").read_text().split() == ["1", "1"]
