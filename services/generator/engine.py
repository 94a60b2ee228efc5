"""The interface between the service and the engine that samples."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from shoal.arrays import Float32Array
from shoal.error_reasons import ErrorReason
from shoal.errors import Aborted, Unavailable
from shoal.rollout import FinishReason, SamplingParams, WeightVersion
from shoal.token_run import TokenRun
from shoal.weights.manifest import Manifest, TensorHash
from shoal.weights.rendezvous import Rendezvous


@dataclass(frozen=True)
class Sample:
    """A sampled completion."""

    tokens: TokenRun
    """The tokens, including the stop token or the tokens of the stop string, if one was sampled."""
    finish_reason: FinishReason


@dataclass(frozen=True)
class LoadReport:
    """Hashes and times of a load of weights."""

    hashes: tuple[TensorHash, ...]
    """The hashes of the received bytes, in manifest order."""
    receive_s: float
    """Seconds in which the slowest rank received and hashed the tensors."""
    load_s: float
    """Seconds in which the slowest rank put the received tensors into the model. It samples nothing meanwhile."""


class Engine(Protocol):
    """An inference engine with replaceable weights.

    Calls may overlap, except that the caller must not overlap loads with changes of the group. Every call raises
    `Unavailable` with reason ENGINE_DEAD after the engine has died.
    """

    @property
    def loads_while_sampling(self) -> bool:
        """Whether a load needs no pause, because the requests in flight keep the version with which they began."""

    @property
    def num_weight_ranks(self) -> int:
        """Number of the engine's ranks in a broadcast group."""

    @property
    def max_model_len(self) -> int:
        """Maximum length of prompt plus completion, in tokens."""

    @property
    def vocab_size(self) -> int:
        """The size of the vocabulary. The caller refuses token ids beyond it, which may kill the engine."""

    @property
    def dtype(self) -> str:
        """The type in which the engine computes, by its name in torch: "bfloat16"."""

    @property
    def kv_cache_use(self) -> float | None:
        """Share of the key-value cache in use over the last seconds, 0 to 1; None before the engine has computed."""

    async def sample(
        self,
        prompt_token_ids: Sequence[int],
        sampling: SamplingParams,
        seed: int,
        on_tokens: Callable[[TokenRun], None],
        report_every: int = 0,
    ) -> Sample:
        """Samples one completion. Waits during a pause. Canceling the call aborts the completion.

        Calls `on_tokens` with the first token, unless it ends the completion. With `report_every` the method also
        passes the next tokens, about `report_every` tokens at a time, and the last tokens of a completion that
        `abort_all` dropped.

        Raises `InvalidArgument` if the engine refuses the request, and `Aborted` if `abort_all` dropped it.
        """

    async def admitted(self) -> None:
        """Returns when the engine has all requests whose `sample` was called, in the order of the calls."""

    async def score(self, token_ids: Sequence[int]) -> Float32Array:
        """Returns the log-probabilities of all tokens but the first, [P - 1], at temperature 1. Waits during a
        pause."""

    async def abort_all(self) -> None:
        """Drops every request in flight."""

    async def pause(self, *, clear_cache: bool) -> None:
        """Pauses sampling. With `clear_cache` the requests in flight recompute their key-value cache afterwards."""

    async def resume(self) -> None:
        """Resumes sampling."""

    async def sleep(self) -> None:
        """Pauses sampling and frees the GPU's memory, weights included.

        Raises `FailedPrecondition` if the engine was not started with `generator.sleep_while_training`.
        """

    async def wake(self) -> None:
        """Allocates the memory again, restores the weights, and resumes sampling."""

    async def check_manifest(self, manifest: Manifest) -> None:
        """Raises `InvalidArgument` if the tensors differ from the tensors of the model."""

    async def join_group(self, rendezvous: Rendezvous, rank_offset: int, manifest: Manifest) -> None:
        """Joins a broadcast group and leaves an earlier group. Returns when all members have joined.

        Raises `DeadlineExceeded` and `Unavailable`.
        """

    async def abort_group(self, reason: str) -> None:
        """Aborts the group for all members: calls that wait in the group fail soon. Safe at any time."""

    async def leave_group(self) -> None:
        """Leaves the group, if the engine is in a group."""

    async def load_weights(self, version: WeightVersion, on_ready: Callable[[], None]) -> LoadReport:
        """Receives and loads one version over the group, while paused unless `loads_while_sampling`.

        Calls `on_ready` when every rank receives. Raises `Unavailable`, `DeadlineExceeded` and `DataLoss`. After an
        error, an engine that `loads_while_sampling` keeps its former version. After an error, the weights of any other
        engine are a mixture of two versions: do not sample until a later load has succeeded.
        """

    async def died(self) -> str:
        """Waits until the engine dies other than by `close`. Returns the known cause."""

    async def close(self) -> None:
        """Ends the engine and its processes."""


def request_dropped() -> Aborted:
    """Makes the error of a request that `abort_all` dropped."""
    return Aborted("the engine dropped the request; sample it again", reason=ErrorReason.REQUEST_DROPPED)


def engine_died() -> Unavailable:
    """Makes the error of a call to an engine that has died."""
    return Unavailable("the engine has died", reason=ErrorReason.ENGINE_DEAD)
