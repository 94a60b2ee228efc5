"""The generators of a run as one: choose one for a group, and sample the group there."""

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Collection, Sequence

from services.coordinator.workers.fleet import Fleet
from services.coordinator.workers.losses import WorkFailed
from services.coordinator.workers.member import Member
from services.coordinator.workers.utilization import Utilization
from shoal.error_reasons import ErrorReason
from shoal.errors import Aborted, FailedPrecondition, Internal, ResourceExhausted, ShoalError, Unavailable
from shoal.rollout import Completion, Prompt, SamplingParams, WeightVersion
from shoal.v1 import generator_pb2
from shoal.wire import completion_from_wire, int32_to_wire, sampling_to_wire

_NOT_THE_GROUPS = frozenset(
    {ErrorReason.SHUTTING_DOWN, ErrorReason.RESTORED, ErrorReason.OTHER_RUN, ErrorReason.REQUEST_DROPPED}
)
"""Reasons for which a generator drops groups, whatever they are."""


class GeneratorPool:
    """All generators of a run. Each group goes to the least loaded one, as a whole."""

    def __init__(self, fleet: Fleet, *, wait_timeout_s: float, running_s: Callable[[], float]) -> None:
        """`wait_timeout_s`: longest wait for a generator with current weights; `running_s`: clock of `utilization`."""
        self._fleet = fleet
        self._wait_timeout_s = wait_timeout_s
        self.utilization = Utilization(running_s)

    @property
    def num_serving(self) -> int:
        """Number of generators that may be called now."""
        return sum(member.serving for member in self._fleet.generators)

    async def choose(self, num_completions: int, *, version: WeightVersion | None = None) -> Member:
        """Waits for a generator that serves, and charges the completions to it.

        With `version`, only a generator with exactly these weights will do. The whole group goes to one generator, so
        that its prompt is prefilled once. Ties are broken at random: after a pause, all groups would go to the first
        generator otherwise. Raises `FailedPrecondition` when none serves within `wait_timeout_s`.
        """
        deadline = asyncio.get_running_loop().time() + self._wait_timeout_s
        while not (
            serving := [
                member
                for member in self._fleet.generators
                if member.serving and (version is None or member.version == version)
            ]
        ):
            began = self._fleet.gpu_turns.began
            remaining = max(deadline, began + self._wait_timeout_s) - asyncio.get_running_loop().time()
            if remaining <= 0:
                raise FailedPrecondition(
                    f"no generator had {'current weights' if version is None else f'weights {version}'} for "
                    f"coordinator.worker_timeout_s ({self._wait_timeout_s:.0f} s)",
                    reason=ErrorReason.NO_GENERATOR,
                )
            await self._fleet.wait_for_change(min(remaining, 1.0))
        member = min(serving, key=lambda candidate: (candidate.outstanding, random.random()))
        member.outstanding += num_completions
        return member

    async def sample(
        self,
        member: Member,
        prompt: Prompt,
        seeds: Sequence[int],
        sampling: SamplingParams,
        *,
        request_id: str,
        timeout_s: float,
        known: Collection[int] = (),
    ) -> AsyncGenerator[Completion]:
        """Yields the completions of one group from a chosen generator, each as it finishes.

        `known` are the indexes of completions that an earlier call has yielded. Raises `WorkFailed` when another
        generator has to start the group again.
        """
        request = generator_pb2.GenerateGroupRequest(
            request_id=request_id,
            prompt_token_ids=int32_to_wire(prompt.token_ids),
            sampling=sampling_to_wire(sampling),
            seeds=seeds,
        )
        received = set(known)
        self.utilization.out(len(seeds) - len(received))
        try:
            while len(received) < len(seeds):
                support = bytearray()
                try:
                    async for response in member.stub.GenerateGroup(request, timeout=timeout_s):
                        if response.support_token_ids:
                            support += response.support_token_ids
                            continue
                        completion = completion_from_wire(response.completion, bytes(support))
                        support.clear()
                        if completion.sample_index not in received:
                            received.add(completion.sample_index)
                            member.outstanding -= 1
                            self.utilization.back(num_tokens=completion.num_tokens)
                            yield completion
                except ResourceExhausted as error:
                    # With the same request id the generator resends what it has finished, and samples nothing twice.
                    await asyncio.sleep(error.retry_after_s or 1.0)
                    continue
                if len(received) < len(seeds):
                    raise WorkFailed(member.name, f"it sent {len(received)} of {len(seeds)} completions")
        except (Unavailable, Internal, Aborted, FailedPrecondition) as error:
            raise self._failure(member, error) from error
        finally:
            member.outstanding -= len(seeds) - len(received)
            self.utilization.back(len(seeds) - len(received))

    def _failure(self, member: Member, error: ShoalError) -> WorkFailed:
        """Returns what an error means for the group, and takes a generator that cannot serve out of service.

        An error in the generator is the request's own: the generator goes on.
        """
        if isinstance(error, Unavailable) or error.reason == ErrorReason.ENGINE_DEAD:
            self._fleet.out_of_reach(member, error)
        elif isinstance(error, FailedPrecondition):
            member.serving = False  # Until the publisher has found out which weights it has.
            self._fleet.notify()
            return WorkFailed(member.name, error.message, is_loss=False)
        return WorkFailed(member.name, error.message, is_loss=error.reason not in _NOT_THE_GROUPS)
