"""The drain of a worker that was told to end. For the rest see tests/contract/rpc/test_worker.py."""

import asyncio
import logging

import pytest

from shoal.worker.process import _drain_until


async def test_a_drain_that_fails_is_over_and_its_error_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def drain() -> None:
        raise ValueError("Set of Tasks/Futures is empty.")

    parted = asyncio.create_task(asyncio.Event().wait())
    await asyncio.wait_for(_drain_until(parted, drain), 60)
    parted.cancel()
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert "drain failed" in record.message
    assert record.exc_info is not None and "is empty" in str(record.exc_info[1])


async def test_a_drain_ends_when_the_coordinator_has_parted_with_the_worker(caplog: pytest.LogCaptureFixture) -> None:
    has_ended = asyncio.Event()

    async def drain() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            has_ended.set()

    parted = asyncio.create_task(asyncio.sleep(0))
    await asyncio.wait_for(_drain_until(parted, drain), 60)
    assert has_ended.is_set()
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
