"""Verifiers of other servers that offer `shoal.v1.RewardService`."""

import asyncio
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

import grpc.aio

from shoal.config.own_verifiers import RewardServerConfig
from shoal.errors import (
    Aborted,
    DeadlineExceeded,
    FailedPrecondition,
    InvalidArgument,
    ResourceExhausted,
    ShoalError,
    Unavailable,
)
from shoal.rollout import GroundTruth, Prompt, ScoreOutcome, VerifierScore
from shoal.rpc.channel import connect
from shoal.v1 import reward_pb2, rollout_pb2
from shoal.v1.reward_pb2_grpc import RewardServiceStub
from shoal.verifiers import BUILT_IN_VERIFIERS
from shoal.wire import ground_truth_to_wire, prompt_to_wire, score_from_wire

_SERVICE = "shoal.v1.RewardService"
_LIST_TIMEOUT_S = 10.0
_MIN_PAUSE_S, _MAX_PAUSE_S = 0.2, 5.0
_MAX_DETAIL_CHARACTERS = 500


@dataclass(frozen=True)
class ServedVerifier:
    """A verifier of another server."""

    server: "RewardServer"
    name: str
    """As the server spells it."""
    description: str
    code_digest: str


class RewardServer:
    """One server."""

    def __init__(self, name: str, config: RewardServerConfig) -> None:
        self._field = f"reward.servers.{name}"
        self._config = config
        self._slots = asyncio.Semaphore(config.max_concurrent)
        self._channel: grpc.aio.Channel = connect(config.address, _SERVICE)
        self._stub = RewardServiceStub(self._channel)
        self._looks_at_labels = True

    async def close(self) -> None:
        await self._channel.close()

    async def ask(self, patience_s: float) -> dict[str, ServedVerifier]:
        """Its verifiers that are to be used, by name in lower case.

        Raises `FailedPrecondition` for a server that does not answer within `patience_s`, `InvalidArgument` for one
        that lacks a verifier.
        """
        give_up = time.monotonic() + patience_s
        while True:
            try:
                request = reward_pb2.ListVerifiersRequest()
                response = await self._stub.ListVerifiers(request, timeout=_LIST_TIMEOUT_S)
                break
            except ShoalError as error:
                if not isinstance(error, Unavailable) or time.monotonic() >= give_up:
                    raise FailedPrecondition(
                        f"{self._field}.address: {self._config.address} does not list its verifiers: {error.message}",
                        reason="NO_REWARD_SERVER",
                    ) from None
                await asyncio.sleep(_MIN_PAUSE_S)
        listed = {
            info.name.lower(): ServedVerifier(self, info.name, info.description, info.code_digest)
            for info in response.verifiers
        }
        if missing := [name for name in self._config.verifiers if name not in listed]:
            raise InvalidArgument(
                f"{self._field}.verifiers: {self._config.address} has no verifier {missing[0]!r}; it has: "
                f"{', '.join(sorted(listed)) or 'none'}"
            )
        if not self._config.verifiers and (taken := sorted(BUILT_IN_VERIFIERS & listed.keys())):
            raise InvalidArgument(
                f"{self._field}.verifiers: {self._config.address} has {taken[0]!r}, which is the name of a verifier "
                f"that comes with Shoal as well: name those of it that are wanted, of {', '.join(sorted(listed))}"
            )
        return {name: listed[name] for name in self._config.verifiers or listed}

    async def score(
        self, verifier: str, truth: GroundTruth, prompt: Prompt, completion: rollout_pb2.Completion
    ) -> VerifierScore:
        """What the server says of one completion. Never raises but for cancellation: what goes wrong is an outcome."""
        started = time.perf_counter()
        try:
            async with self._slots:
                said = await self._asked(_requests(replace(truth, verifier=verifier, weight=1.0), prompt, completion))
            score = self._one_value(said, completion.sample_index)
        except ShoalError as error:
            is_late = isinstance(error, DeadlineExceeded)
            what = f"no score within timeout_s ({self._config.timeout_s:g} s)" if is_late else error.message
            detail = f"{self._field} ({self._config.address}): {what}"[:_MAX_DETAIL_CHARACTERS]
            score = VerifierScore(truth.verifier, ScoreOutcome.FAILED, detail=detail)
        return replace(score, verifier=truth.verifier, duration_s=time.perf_counter() - started)

    async def label_problem(self, verifier: str, truth: GroundTruth) -> str:
        """What the server finds wrong with a label; empty also where it looks at none, or cannot now."""
        if not self._looks_at_labels:
            return ""
        asked = ground_truth_to_wire(replace(truth, verifier=verifier))
        try:
            async with self._slots:
                request = reward_pb2.CheckLabelsRequest(ground_truths=[asked])
                response = await self._stub.CheckLabels(request, timeout=self._config.timeout_s)
        except ShoalError as error:
            self._looks_at_labels = isinstance(error, Unavailable | DeadlineExceeded)
            return ""
        said = [problem.reason for problem in response.problems]
        return f"{self._field} ({self._config.address}): {said[0]}"[:_MAX_DETAIL_CHARACTERS] if said else ""

    async def _asked(self, requests: list[reward_pb2.ScoreGroupRequest]) -> list[reward_pb2.ScoreGroupResponse]:
        """All responses of a call, made again while the server is away or busy and there is time."""
        give_up = time.monotonic() + self._config.timeout_s
        attempt = 1
        while True:
            try:
                left_s = max(give_up - time.monotonic(), 0.001)
                return [response async for response in self._stub.ScoreGroup(iter(requests), timeout=left_s)]
            except (Unavailable, ResourceExhausted, Aborted) as error:
                told = error.retry_after_s if isinstance(error, ResourceExhausted) else None
                pause_s = told or min(_MIN_PAUSE_S * 2 ** (attempt - 1), _MAX_PAUSE_S)
                if attempt >= self._config.max_attempts or time.monotonic() + pause_s >= give_up:
                    raise
                await asyncio.sleep(pause_s)
                attempt += 1

    @staticmethod
    def _one_value(said: list[reward_pb2.ScoreGroupResponse], sample_index: int) -> VerifierScore:
        """The one verifier's score in it. Raises `InvalidArgument` where there is not exactly one, or no number."""
        if len(said) != 1:
            raise InvalidArgument(f"it answered {len(said)} scores to one completion")
        score = score_from_wire(said[0].score)
        if score.sample_index != sample_index:
            raise InvalidArgument(f"it answered sample_index {score.sample_index} to {sample_index}")
        if len(score.verifier_scores) > 1:
            raise InvalidArgument(f"it answered {len(score.verifier_scores)} verifier_scores to one verifier")
        part = (*score.verifier_scores, VerifierScore("", score.outcome, score.reward))[0]
        if part.outcome is ScoreOutcome.SCORED and not math.isfinite(part.value):
            raise InvalidArgument(f"it answered the value {part.value}")
        return part


class RewardServers:
    """All of a configuration. Belongs to one event loop."""

    def __init__(self, config: Mapping[str, RewardServerConfig]) -> None:
        self._config = dict(sorted(config.items()))  # A Struct has no order, and messages should not change.
        self._servers: list[RewardServer] = []
        self.verifiers: dict[str, ServedVerifier] = {}
        """By name."""

    async def start(self, taken: Mapping[str, str], patience_s: float) -> None:
        """Asks each server what it has. `taken` are names that are others', and whose.

        Raises `FailedPrecondition` and `InvalidArgument` that name the table to change.
        """
        owners = dict(taken)
        self._servers = [RewardServer(name, config) for name, config in self._config.items()]
        listed = await asyncio.gather(*(server.ask(patience_s) for server in self._servers))
        for name, verifiers in zip(self._config, listed, strict=True):
            for verifier in verifiers:
                if verifier in owners:
                    raise InvalidArgument(
                        f"reward.servers.{name}.verifiers: {verifier!r} is that of {owners[verifier]} already: name "
                        "those of this server that are wanted"
                    )
                owners[verifier] = f"reward.servers.{name}"
            self.verifiers |= verifiers

    async def close(self) -> None:
        for server in self._servers:
            await server.close()


def _requests(
    truth: GroundTruth, prompt: Prompt, completion: rollout_pb2.Completion
) -> list[reward_pb2.ScoreGroupRequest]:
    """The prompt with this verifier alone, and what verifiers read of the completion."""
    read = rollout_pb2.Completion(
        sample_index=completion.sample_index,
        token_ids=completion.token_ids,
        finish_reason=completion.finish_reason,
        text=completion.text,
    )
    return [
        reward_pb2.ScoreGroupRequest(prompt=prompt_to_wire(replace(prompt, ground_truths=(truth,)))),
        reward_pb2.ScoreGroupRequest(completion=read),
    ]
