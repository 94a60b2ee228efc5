"""Calls to the learner, in the types of the run."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from services.coordinator.store import long_work
from services.coordinator.store.events import EventLog
from services.coordinator.workers.deadlines import Pace, train_step_timeout_s
from services.coordinator.workers.fleet import Fleet
from services.coordinator.workers.hand_over import HandOver
from services.coordinator.workers.member import Member
from shoal.arrays import Float32Array, Int32Array
from shoal.config import RunConfig
from shoal.config.live import LiveConfig
from shoal.config.load import config_struct
from shoal.error_reasons import ErrorReason
from shoal.errors import DeadlineExceeded, FailedPrecondition, Internal, Unavailable
from shoal.quantities import counted
from shoal.rollout import Support, TrainBatch, WeightVersion
from shoal.v1 import learner_pb2, weights_pb2
from shoal.weights.manifest import num_bytes_of
from shoal.wire import batch_to_wire, float32_from_wire, int32_to_wire, version_from_wire, version_to_wire

ResultT = TypeVar("ResultT")

CONTROL_TIMEOUT_S = 30.0
"""Timeout of calls that do not run a model."""
MAX_CALLS = 5
"""Maximum number of times that a call is made if its connection breaks and the learner still serves."""
PAUSE_S = 1.0

NUM_TOKENS_A_CALL = 2**18
"""Maximum tokens of sequences and supports in one call for log-probabilities: 1 MiB each way, and seconds of work."""


@dataclass(frozen=True)
class StepResult:
    """The result of a train step."""

    applied: bool
    skip_reason: str
    version: WeightVersion
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class Profile:
    """The train steps that the learner has recorded."""

    paths: Sequence[str]
    """The trace file of each rank, by rank, on the learner's storage."""
    first_step: int
    last_step: int
    is_partial: bool
    """Whether the traces end early, within the last step or after it."""


class LearnerClient:
    """Calls the learner's rank 0."""

    def __init__(self, fleet: Fleet, config: LiveConfig, events: EventLog) -> None:
        self._fleet = fleet
        self._events = events
        self._config = config
        self.hand_over = HandOver(fleet)
        self._pace = Pace()
        """The pace of the train steps."""
        self._publish_timeout_s = 0.0
        """The timeout of publishes to the current group."""

    async def _call(self, call: Callable[[Any], Awaitable[ResultT]], *, is_repeatable: bool = True) -> ResultT:
        """Makes a call with the learner's stub. Repeats it if the connection broke and the learner still serves.

        Raises `FailedPrecondition` (LEARNER_LOST) once it is known that the learner no longer serves, or that it
        exceeded the deadline of a repeatable call. Raises the call's error otherwise.
        """
        member = self._fleet.learner
        for calls_left in reversed(range(MAX_CALLS)):
            try:
                return await call(member.stub)
            except DeadlineExceeded as error:
                if not is_repeatable or error.reason != error.default_reason:
                    raise
                # It hangs, and ends itself by the same deadline (services/learner/torch_thread.py).
                await self._fleet.report_lost(member, error)
                raise self._lost(member) from error
            except (Unavailable, Internal, FailedPrecondition) as error:
                if not await self._fleet.still_serves(member):
                    raise self._lost(member) from error
                if not (is_repeatable and calls_left and isinstance(error, Unavailable)):
                    raise
            await asyncio.sleep(PAUSE_S)
        raise AssertionError("the last call returns or raises")

    @staticmethod
    def _lost(member: Member) -> FailedPrecondition:
        return FailedPrecondition(f"the learner is lost: {member.record.loss_reason}", reason=ErrorReason.LEARNER_LOST)

    @property
    def _storage_timeout_s(self) -> float:
        """Timeout of calls that write or read a whole model."""
        return self._config().checkpoint.timeout_s

    async def version(self) -> WeightVersion:
        """Returns the version of the learner's weights."""
        request = learner_pb2.LearnerServiceGetStatusRequest()
        status = await self._call(lambda stub: stub.GetStatus(request, timeout=CONTROL_TIMEOUT_S))
        return version_from_wire(status.version)

    async def train_step(self, batch: TrainBatch) -> StepResult:
        """Takes one step. Repeats the call if the connection breaks; the step's id prevents a second step.

        Only names the groups that were handed over. If the learner does not hold one of them, sends all of them.
        """
        num_tokens, began = batch.num_tokens, time.monotonic()
        timeout_s = train_step_timeout_s(self._config(), self._pace, num_tokens)

        async def call(held: Mapping[str, str]) -> learner_pb2.TrainStepResponse:
            return await self._call(lambda stub: stub.TrainStep(_messages(batch, held), timeout=timeout_s))

        async with self._shown_alive(f"training on {counted(len(batch.groups), 'group')}", long_work.SLOW_STEP_S):
            try:
                response = await call(self.hand_over.begin_step(batch))
            except FailedPrecondition as error:
                if error.reason != ErrorReason.GROUPS_MISSING:
                    raise
                response = await call({})
        self._pace.observe(num_tokens, time.monotonic() - began)
        return StepResult(
            applied=response.applied,
            skip_reason=response.skip_reason,
            version=version_from_wire(response.version),
            metrics=dict(response.metrics),
        )

    async def reference_logprobs(
        self, sequences: Sequence[Int32Array], temperature: float, supports: Sequence[Support] = ()
    ) -> tuple[Float32Array, ...]:
        """Computes the log-probabilities of each sequence under the reference model, for all tokens but the first.

        With `supports` (one for each sequence), computes them only for the sequence's last tokens, over their supports.
        """
        result: list[list[Float32Array]] = [[] for _ in sequences]
        for part in _parts(sequences, supports):
            response = await self._compute_logprobs(_request(part, temperature))
            for piece, data in zip(part, response.logprobs, strict=True):
                result[piece.index].append(float32_from_wire(data, "logprobs"))
        return tuple(np.concatenate(values) for values in result)

    async def set_hyperparameters(self, run_id: str, config: RunConfig) -> None:
        """Replaces the learner's configuration between two steps."""
        request = learner_pb2.SetHyperparametersRequest(run_id=run_id, config=config_struct(config))
        await self._call(lambda stub: stub.SetHyperparameters(request, timeout=CONTROL_TIMEOUT_S))

    async def _compute_logprobs(
        self, request: learner_pb2.ComputeLogprobsRequest
    ) -> learner_pb2.ComputeLogprobsResponse:
        timeout_s = train_step_timeout_s(self._config(), self._pace, NUM_TOKENS_A_CALL)
        return await self._call(lambda stub: stub.ComputeLogprobs(request, timeout=timeout_s))

    async def create_weight_group(
        self, epoch: int, world_size: int
    ) -> tuple[weights_pb2.WeightRendezvous, weights_pb2.Manifest]:
        """Creates the broadcast group of an epoch; returns where to join it, and the tensors to expect."""
        request = learner_pb2.CreateWeightGroupRequest(epoch=epoch, world_size=world_size)
        response = await self._call(lambda stub: stub.CreateWeightGroup(request, timeout=CONTROL_TIMEOUT_S))
        self._publish_timeout_s = self._config().weights.timeout_for(num_bytes_of(response.manifest))
        return response.rendezvous, response.manifest

    async def publish_weights(
        self, epoch: int, canary: weights_pb2.Canary, within_s: float
    ) -> learner_pb2.PublishWeightsResponse:
        """Broadcasts the current weights within `within_s` seconds."""
        request = learner_pb2.PublishWeightsRequest(epoch=epoch, canary=canary)
        request.timeout.FromNanoseconds(round(within_s * 1e9))
        # The learner enforces the deadline itself; this one is for a learner that does not answer at all.
        timeout_s = self._publish_timeout_s + CONTROL_TIMEOUT_S
        # A repeat would be another pass of collectives, which needs another epoch.
        response = await self._call(lambda stub: stub.PublishWeights(request, timeout=timeout_s), is_repeatable=False)
        assert isinstance(response, learner_pb2.PublishWeightsResponse)
        return response

    async def write_checkpoint(self, checkpoint_id: str, version: WeightVersion, keep: Sequence[str]) -> None:
        """Writes the state of a version. Returns once the next step may be taken, before the files are on disk.

        Once the files are on disk, the learner deletes the earlier checkpoints that `keep` does not name.
        """
        await self._save_checkpoint(checkpoint_id, version, keep, return_when_written=True)

    async def finish_checkpoint(
        self, checkpoint_id: str, version: WeightVersion, keep: Sequence[str]
    ) -> Sequence[learner_pb2.FileDigest]:
        """Waits until the files of a checkpoint are on disk. The arguments are those of `write_checkpoint`."""
        response = await self._save_checkpoint(checkpoint_id, version, keep, return_when_written=False)
        return response.files

    async def _save_checkpoint(
        self, checkpoint_id: str, version: WeightVersion, keep: Sequence[str], *, return_when_written: bool
    ) -> learner_pb2.LearnerServiceSaveCheckpointResponse:
        request = learner_pb2.LearnerServiceSaveCheckpointRequest(
            checkpoint_id=checkpoint_id,
            keep_checkpoint_ids=keep,
            expected_version=version_to_wire(version),
            return_when_written=return_when_written,
        )
        async with self._shown_alive(f"writing checkpoint {checkpoint_id}"):
            response = await self._call(lambda stub: stub.SaveCheckpoint(request, timeout=self._storage_timeout_s))
        assert isinstance(response, learner_pb2.LearnerServiceSaveCheckpointResponse)
        return response

    async def load_checkpoint(
        self, checkpoint_id: str, files: Sequence[learner_pb2.FileDigest], attempt: int
    ) -> WeightVersion:
        """Restores a checkpoint."""
        request = learner_pb2.LoadCheckpointRequest(checkpoint_id=checkpoint_id, files=files, attempt=attempt)
        async with self._shown_alive(f"restoring {checkpoint_id or 'the model of the configuration'}"):
            response = await self._call(lambda stub: stub.LoadCheckpoint(request, timeout=self._storage_timeout_s))
        return version_from_wire(response.version)

    async def export_model(self, export_name: str = "", keep: Sequence[str] = ()) -> str:
        """Writes the trained model, or an export if it has a name. Returns its folder on the learner's machine.

        Deletes the earlier exports that `keep` does not name, but never the trained model.
        """
        request = learner_pb2.ExportModelRequest(export_name=export_name, keep_export_names=keep)
        async with self._shown_alive(f"writing export {export_name}" if export_name else "writing the trained model"):
            response = await self._call(lambda stub: stub.ExportModel(request, timeout=self._storage_timeout_s))
        return str(response.path)

    async def profile(self, num_steps: int, within_s: float) -> Profile:
        """Records the next train steps, and waits at most `within_s` for the files. A cancellation drops them."""
        request = learner_pb2.ProfileRequest(num_steps=num_steps)
        # A repeat would record other steps.
        response = await self._call(lambda stub: stub.Profile(request, timeout=within_s), is_repeatable=False)
        return Profile(
            tuple(response.paths),
            response.first_version.policy_version + 1,
            response.version.policy_version,
            response.is_partial,
        )

    def _shown_alive(self, work: str, first_after_s: float | None = None) -> AbstractAsyncContextManager[None]:
        """Shows long work of the learner by the status that it sends with its heartbeats."""
        record = self._fleet.learner.record
        return long_work.shown_alive(
            self._events, work, lambda: record.status.message or "the learner is at work", first_after_s=first_after_s
        )


async def _messages(batch: TrainBatch, held: Mapping[str, str]) -> AsyncIterator[learner_pb2.TrainStepRequest]:
    for message in batch_to_wire(batch, held):
        yield message


@dataclass(frozen=True)
class _Piece:
    """A request for one sequence, by its index, in one call."""

    index: int
    token_ids: Int32Array
    support: Support | None

    @property
    def num_numbers(self) -> int:
        of_support = 0 if self.support is None else len(self.support.token_ids) + len(self.support.counts)
        return len(self.token_ids) + of_support


def _request(part: Sequence[_Piece], temperature: float) -> learner_pb2.ComputeLogprobsRequest:
    with_support = [piece.support for piece in part if piece.support is not None]
    return learner_pb2.ComputeLogprobsRequest(
        token_ids=[int32_to_wire(piece.token_ids) for piece in part],
        temperature=temperature,
        model=learner_pb2.MODEL_REFERENCE,
        support_token_ids=[int32_to_wire(support.token_ids) for support in with_support],
        support_counts=[int32_to_wire(support.counts) for support in with_support],
    )


def _parts(sequences: Sequence[Int32Array], supports: Sequence[Support]) -> Iterator[Sequence[_Piece]]:
    """Yields the pieces of each call."""
    part: list[_Piece] = []
    for piece in _pieces(sequences, supports):
        if part and sum(other.num_numbers for other in part) + piece.num_numbers > NUM_TOKENS_A_CALL:
            yield part
            part = []
        part.append(piece)
    if part:
        yield part


def _pieces(sequences: Sequence[Int32Array], supports: Sequence[Support]) -> Iterator[_Piece]:
    """Yields a piece for each sequence; if a support is too large for one call, a piece for each part of it."""
    if not supports:
        yield from (_Piece(index, sequence, None) for index, sequence in enumerate(sequences))
        return
    for index, (sequence, support) in enumerate(zip(sequences, supports, strict=True)):
        first = len(sequence) - len(support.counts)
        number_T = np.cumsum(support.counts) // (NUM_TOKENS_A_CALL // 2)
        for number in np.unique(number_T):
            start, end = np.searchsorted(number_T, [number, number + 1])
            yield _Piece(index, sequence[: first + end], support.part(int(start), int(end)))
