"""Calls that steer runs are in the coordinator's log and in the run's events, with who made them."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from services.coordinator.audit import record_call
from services.coordinator.store.events import EventLog
from shoal.errors import NotFound
from shoal.rpc.audit import AUDITED, OperatorCall
from shoal.rpc.auth.permissions import Caller, Role
from shoal.v1 import coordinator_pb2 as pb
from tests.support.secured import PATIENCE_S, Tokens, call, secured_server
from tests.support.watched_events import past

PAUSE = "/shoal.v1.CoordinatorService/PauseRun"
LOG = "services.coordinator.audit"


class OneRun:
    """The runs of a coordinator whose active run is "sums"."""

    def __init__(self, folder: Path) -> None:
        self.events = EventLog(folder / "events.jsonl")

    def active(self, run_id: str) -> Any:
        if run_id not in ("", "sums"):
            raise NotFound("there is no such run")
        return SimpleNamespace(events=self.events)

    def told(self) -> list[tuple[str, str]]:
        return [(event.kind, event.message) for event in past(self.events)]


@asynccontextmanager
async def audited(folder: Path) -> AsyncIterator[tuple[Tokens, OneRun, grpc.aio.Channel]]:
    tokens, runs = Tokens(folder), OneRun(folder)
    async with (
        secured_server(tokens.server(None), partial(record_call, runs)) as address,  # type: ignore[arg-type]
        grpc.aio.insecure_channel(address) as channel,
    ):
        yield tokens, runs, channel


async def test_the_log_and_the_events_name_who_steered_a_run_and_what_came_of_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger=LOG)
    async with audited(tmp_path) as (tokens, runs, channel):
        request = pb.PauseRunRequest(run_id="sums").SerializeToString()
        header = (("authorization", f"Bearer {tokens.of[Role.OPERATOR]}"),)
        await channel.unary_unary(PAUSE)(request, metadata=header, timeout=PATIENCE_S)
        await call(channel, PAUSE, token=tokens.of[Role.VIEWER])
        await call(channel, PAUSE, token="nobody's token here")
        await call(channel, "/shoal.v1.CoordinatorService/GetRun", token=tokens.of[Role.OPERATOR])
    told = [(each.caller, each.rpc, each.run_id, each.code, each.levelname) for each in caplog.records]  # type: ignore[attr-defined]
    assert told == [
        ("operator/test-operator", "PauseRun", "sums", "OK", "INFO"),
        ("viewer/test-viewer", "PauseRun", "", "PERMISSION_DENIED", "WARNING"),
        ("", "PauseRun", "", "UNAUTHENTICATED", "WARNING"),
    ]
    assert runs.told() == [("operator_call", "operator/test-operator called PauseRun: OK")], "refused calls fill it"
    everything = caplog.text + (tmp_path / "events.jsonl").read_text()
    assert not [token for token in tokens.of.values() if token in everything]


async def test_a_call_for_a_run_that_is_not_active_is_in_the_log_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger=LOG)
    runs = OneRun(tmp_path)
    who = Caller(Role.OPERATOR, "anna")
    for run_id in ("other", "sums"):
        record_call(runs, OperatorCall("StopRun", run_id, who, "ipv4:127.0.0.1:1", grpc.StatusCode.OK))  # type: ignore[arg-type]
    assert [each.run_id for each in caplog.records] == ["other", "sums"]  # type: ignore[attr-defined]
    assert len(runs.told()) == 1


def test_every_call_that_steers_a_run_is_recorded() -> None:
    names = {method.rpartition("/")[2] for method in AUDITED}
    assert names == {
        "StartRun", "PauseRun", "ResumeRun", "StopRun", "SaveCheckpoint", "Evaluate", "ProfileRun",
        "UpdateRunConfig",
    }  # fmt: skip
