"""What the service asks of whatever samples."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from shoal.rollout import FinishReason, Float32Array, Int32Array, SamplingParams, VersionSpan, WeightVersion
from shoal.weights.manifest import Manifest, TensorHash
from shoal.weights.rendezvous import Rendezvous


@dataclass(frozen=True)
class Sample:
    """One sampled answer."""

    token_ids: Int32Array
    """[T] with the stop token, or the tokens of the stop string, if one was sampled."""
    logprobs: Float32Array
    """[T] log-probability of each token under the distribution it was drawn from."""
    finish_reason: FinishReason
    version_spans: tuple[VersionSpan, ...]
    """Cover 0..T in order, without gaps."""


@dataclass(frozen=True)
class LoadReport:
    """What a load of weights came to."""

    hashes: tuple[TensorHash, ...]
    """Of the received bytes, in manifest order."""
    receive_s: float
    """Receiving, hashes included; of the slowest rank."""
    load_s: float
    """Putting what was received into the model; of the slowest rank."""


class Engine(Protocol):
    """An inference engine with replaceable weights.

    Calls may overlap, except that the caller keeps loads and changes of the group apart. Every call raises
    `Unavailable` with reason ENGINE_DEAD once the engine has died.
    """

    @property
    def num_weight_ranks(self) -> int:
        """Ranks that it takes up in a broadcast group."""

    @property
    def max_model_len(self) -> int:
        """Longest prompt plus completion, in tokens."""

    @property
    def vocab_size(self) -> int:
        """Token ids are below it; others may kill the engine, so the caller refuses them."""

    async def sample(self, prompt_token_ids: Sequence[int], sampling: SamplingParams, seed: int) -> Sample:
        """Samples one completion; cancelling aborts it. While paused, it waits.

        Raises `InvalidArgument` for what the engine refuses, and `Aborted` when it was dropped by `abort_all`.
        """

    async def score(self, token_ids: Sequence[int]) -> Float32Array:
        """[P - 1] log-probability of each token but the first, at temperature 1. While paused, it waits."""

    async def abort_all(self) -> None:
        """Drops every request in flight."""

    async def pause(self, *, clear_cache: bool) -> None:
        """Stops sampling where it is. `clear_cache` has the requests in flight recompute their cache later."""

    async def resume(self) -> None:
        """Goes on sampling."""

    async def sleep(self) -> None:
        """Stops sampling where it is and gives the GPU's memory back, weights included.

        Raises `FailedPrecondition` when the engine was not started with `generator.sleep_while_training`.
        """

    async def wake(self) -> None:
        """Takes the memory again, with the weights it had, and goes on sampling."""

    async def check_manifest(self, manifest: Manifest) -> None:
        """Raises `InvalidArgument` when the tensors are not those of the model."""

    async def join_group(self, rendezvous: Rendezvous, rank_offset: int, manifest: Manifest) -> None:
        """Takes its places in a broadcast group, leaving an earlier one. Returns when all members have met.

        Raises `DeadlineExceeded` and `Unavailable`.
        """

    async def abort_group(self, reason: str) -> None:
        """Gives up the group it is in, for all members: what waits in it fails soon. Safe at any time."""

    async def leave_group(self) -> None:
        """Leaves the group it is in, if any."""

    async def load_weights(self, version: WeightVersion, on_ready: Callable[[], None]) -> LoadReport:
        """Receives and loads one version over the group, while paused.

        Calls `on_ready` once every rank is receiving. Raises `Unavailable`, `DeadlineExceeded` and `DataLoss`;
        then the weights are a mixture, and must not sample until a later load has succeeded.
        """

    async def died(self) -> str:
        """Returns when the engine has died without being closed, with what is known about it."""

    async def close(self) -> None:
        """Ends the engine and its processes."""
