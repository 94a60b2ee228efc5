"""Verifiers of other servers that offer `shoal.v1.RewardService`."""

import asyncio
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import grpc.aio

from services.reward.common.scorer import ListedVerifier
from shoal.config.tables.custom_verifiers import RewardServerConfig
from shoal.config.tables.verifiers import BUILT_IN_VERIFIERS
from shoal.error_reasons import ErrorReason
from shoal.errors import (
    Aborted,
    DeadlineExceeded,
    FailedPrecondition,
    InvalidArgument,
    ResourceExhausted,
    ShoalError,
    Unauthenticated,
    Unavailable,
)
from shoal.rollout import GroundTruth, Prompt
from shoal.rpc.auth import credentials as auth
from shoal.rpc.channel import connect
from shoal.scores import MAX_REWARD, ScoreOutcome, VerifierScore
from shoal.v1 import reward_pb2, rollout_pb2
from shoal.v1.reward_pb2_grpc import RewardServiceStub
from shoal.wire import ground_truth_to_wire, prompt_to_wire, score_from_wire

_SERVICE = "shoal.v1.RewardService"
_LIST_TIMEOUT_S = 10.0
_MIN_PAUSE_S, _MAX_PAUSE_S = 0.2, 5.0
_MAX_DETAIL_CHARACTERS = 500
_NO_TOKEN = (
    "; this service shows its token only to servers that its operator names: start it with --allow-reward-server "
    "HOST:PORT"
)


class RewardServer:
    """A connection to one server."""

    def __init__(self, name: str, config: RewardServerConfig, *, gets_token: bool) -> None:
        """With `gets_token` the server gets this process's token, if there is one."""
        self._field = f"reward.servers.{name}"
        self._config = config
        self._slots = asyncio.Semaphore(config.max_concurrent)
        credentials = auth.current() if gets_token else replace(auth.current(), token=None)
        self._hint = "" if gets_token or auth.current().token is None else _NO_TOKEN
        self._channel: grpc.aio.Channel = connect(config.address, _SERVICE, credentials)
        self._stub = RewardServiceStub(self._channel)
        self._checks_labels = True

    async def close(self) -> None:
        await self._channel.close()

    async def list_verifiers(self, patience_s: float) -> dict[str, reward_pb2.VerifierInfo]:
        """Returns the server's verifiers that the configuration uses, by name in lower case. Raises
        `FailedPrecondition` if it does not answer within `patience_s`, and `InvalidArgument` if it lacks a verifier."""
        give_up = time.monotonic() + patience_s
        while True:
            try:
                request = reward_pb2.ListVerifiersRequest()
                response = await self._stub.ListVerifiers(request, timeout=_LIST_TIMEOUT_S)
                break
            except ShoalError as error:
                if not isinstance(error, Unavailable) or time.monotonic() >= give_up:
                    hint = self._hint if isinstance(error, Unauthenticated) else ""
                    raise FailedPrecondition(
                        f"{self._field}.address: {self._config.address} does not list its verifiers: {error.message}"
                        f"{hint}",
                        reason=ErrorReason.NO_REWARD_SERVER,
                    ) from None
                await asyncio.sleep(_MIN_PAUSE_S)
        listed = {info.name.lower(): info for info in response.verifiers}
        if missing := [name for name in self._config.verifiers if name not in listed]:
            raise InvalidArgument(
                f"{self._field}.verifiers: {self._config.address} has no verifier {missing[0]!r}; it has: "
                f"{', '.join(sorted(listed)) or 'none'}"
            )
        if not self._config.verifiers and (taken := sorted(BUILT_IN_VERIFIERS & listed.keys())):
            raise InvalidArgument(
                f"{self._field}.verifiers: {self._config.address} has {taken[0]!r}, which is also the name of a "
                f"built-in verifier: list only the verifiers to use; the server has {', '.join(sorted(listed))}"
            )
        return {name: listed[name] for name in self._config.verifiers or listed}

    async def score(
        self, verifier: str, truth: GroundTruth, prompt: Prompt, completion: rollout_pb2.Completion
    ) -> VerifierScore:
        """Scores one completion. Never raises, except when canceled: an error is an outcome."""
        started = time.perf_counter()
        try:
            async with self._slots:
                requests = _requests(replace(truth, verifier=verifier, weight=1.0), prompt, completion)
                responses = await self._responses(requests)
            score = self._single_score(responses, completion.sample_index)
        except ShoalError as error:
            is_late = isinstance(error, DeadlineExceeded)
            why = f"no score within timeout_s ({self._config.timeout_s:g} s)" if is_late else error.message
            detail = f"{self._field} ({self._config.address}): {why}"[:_MAX_DETAIL_CHARACTERS]
            score = VerifierScore(truth.verifier, ScoreOutcome.FAILED, detail=detail)
        return replace(score, verifier=truth.verifier, duration_s=time.perf_counter() - started)

    async def label_problem(self, verifier: str, truth: GroundTruth) -> str:
        """Returns why the server cannot judge by a label; empty if it can, or does not check the label."""
        if not self._checks_labels:
            return ""
        label = ground_truth_to_wire(replace(truth, verifier=verifier))
        try:
            async with self._slots:
                request = reward_pb2.CheckLabelsRequest(ground_truths=[label])
                response = await self._stub.CheckLabels(request, timeout=self._config.timeout_s)
        except ShoalError as error:
            self._checks_labels = isinstance(error, Unavailable | DeadlineExceeded)
            return ""
        reasons = [problem.reason for problem in response.problems]
        return f"{self._field} ({self._config.address}): {reasons[0]}"[:_MAX_DETAIL_CHARACTERS] if reasons else ""

    async def _responses(self, requests: list[reward_pb2.ScoreGroupRequest]) -> list[reward_pb2.ScoreGroupResponse]:
        """Returns all responses of a call. Retries while the server is away or busy and time is left."""
        give_up = time.monotonic() + self._config.timeout_s
        attempt = 1
        while True:
            try:
                left_s = max(give_up - time.monotonic(), 0.001)
                return [response async for response in self._stub.ScoreGroup(iter(requests), timeout=left_s)]
            except (Unavailable, ResourceExhausted, Aborted) as error:
                retry_after_s = error.retry_after_s if isinstance(error, ResourceExhausted) else None
                pause_s = retry_after_s or min(_MIN_PAUSE_S * 2 ** (attempt - 1), _MAX_PAUSE_S)
                if attempt >= self._config.max_attempts or time.monotonic() + pause_s >= give_up:
                    raise
                await asyncio.sleep(pause_s)
                attempt += 1

    @staticmethod
    def _single_score(responses: list[reward_pb2.ScoreGroupResponse], sample_index: int) -> VerifierScore:
        """Returns the score of the verifier. Raises `InvalidArgument` unless there is exactly one score, a number."""
        if len(responses) != 1:
            raise InvalidArgument(f"the server sent {len(responses)} scores for one completion")
        score = score_from_wire(responses[0].score)
        if score.sample_index != sample_index:
            raise InvalidArgument(f"the server sent the sample_index {score.sample_index}, not {sample_index}")
        if len(score.verifier_scores) > 1:
            raise InvalidArgument(f"the server sent {len(score.verifier_scores)} verifier_scores for one verifier")
        part = (*score.verifier_scores, VerifierScore("", score.outcome, score.reward))[0]
        if part.outcome is ScoreOutcome.SCORED and not abs(part.value) <= MAX_REWARD:
            raise InvalidArgument(f"the server sent the value {part.value}, not from -{MAX_REWARD:g} to {MAX_REWARD:g}")
        return part


class ServerScorer:
    """The verifiers of all servers of a configuration. Belongs to one event loop."""

    def __init__(self, config: Mapping[str, RewardServerConfig], token_servers: Collection[str] = ()) -> None:
        """`token_servers` has the addresses that get this process's token."""
        self._token_servers = frozenset(token_servers)
        self._config = dict(sorted(config.items()))  # A Struct has no order, but messages should be stable.
        self._servers: list[RewardServer] = []
        self._verifiers: dict[str, tuple[RewardServer, reward_pb2.VerifierInfo]] = {}

    @property
    def names(self) -> Collection[str]:
        return self._verifiers.keys()

    def unavailable(self, name: str) -> str:
        return ""  # The server itself answers FAILED.

    async def find(self, taken: Mapping[str, str], patience_s: float) -> None:
        """Lists the verifiers of each server. `taken` maps used names to their owners. Raises `FailedPrecondition` and
        `InvalidArgument` that name the table to change."""
        self._servers = [
            RewardServer(name, config, gets_token=config.address in self._token_servers)
            for name, config in self._config.items()
        ]
        listed = await asyncio.gather(*(server.list_verifiers(patience_s) for server in self._servers))
        check_owners(dict(zip(self._config, listed, strict=True)), taken)
        for server, verifiers in zip(self._servers, listed, strict=True):
            self._verifiers |= {name: (server, info) for name, info in verifiers.items()}

    async def start(self) -> None:
        """Does nothing: `find` has connected."""

    async def close(self) -> None:
        for server in self._servers:
            await server.close()

    async def score(self, truth: GroundTruth, prompt: Prompt, completion: rollout_pb2.Completion) -> VerifierScore:
        server, info = self._verifiers[truth.verifier]
        return await server.score(info.name, truth, prompt, completion)

    async def label_problem(self, truth: GroundTruth) -> str:
        server, info = self._verifiers[truth.verifier]
        return await server.label_problem(info.name, truth)

    async def describe(self) -> Sequence[ListedVerifier]:
        return [
            ListedVerifier(name, "what its server reads", info.description, info.unavailable, info.code_digest)
            for name, (_, info) in self._verifiers.items()
        ]


def check_owners(listed: Mapping[str, Collection[str]], taken: Mapping[str, str]) -> None:
    """Raises `InvalidArgument` if two tables have verifiers with the same name. `listed` has the names of each server's
    verifiers; `taken` maps the names of all other verifiers to their owners."""
    owners = dict(taken)
    for name, verifiers in listed.items():
        for verifier in verifiers:
            if verifier in owners:
                raise InvalidArgument(
                    f"reward.servers.{name}.verifiers: {verifier!r} is already a verifier of {owners[verifier]}: list "
                    "only other verifiers of this server"
                )
            owners[verifier] = f"reward.servers.{name}"


def _requests(
    truth: GroundTruth, prompt: Prompt, completion: rollout_pb2.Completion
) -> list[reward_pb2.ScoreGroupRequest]:
    """Returns the messages of a call: the prompt with only this verifier, and the parts of the completion that
    verifiers read."""
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
