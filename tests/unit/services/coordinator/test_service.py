"""CoordinatorService without a socket."""

from typing import Any

from services.coordinator.service import CoordinatorServicer
from services.coordinator.store.rows import GroupState, RecordedCompletion, RecordedGroup
from services.coordinator.workers.registry import WorkerRegistry
from shoal.rollout import FinishReason
from shoal.rpc.options import MAX_MESSAGE_BYTES
from shoal.v1 import coordinator_pb2 as pb

NUM_GROUPS = 40


class LongGroups:
    """Runs whose groups have a quarter of a mebibyte of text each."""

    async def rollouts(self, run_id: str, first: int, limit: int) -> list[RecordedGroup]:
        text = "a" * (256 << 10)
        completion = RecordedCompletion(0, text, 1, FinishReason.STOP, (), None, None)
        return [
            RecordedGroup(
                order_number=number, group_id=f"g{number}", prompt_id="p", prompt_text="?", trace_id="",
                state=GroupState.SAMPLED, drop_reason="", train_step=0, staleness=None, completions=(completion,),
            )
            for number in range(first, min(first + limit, NUM_GROUPS))
        ]  # fmt: skip


async def test_pages_of_long_groups_fit_a_message_and_omit_no_group() -> None:
    runs: Any = LongGroups()
    context: Any = None
    service = CoordinatorServicer(runs, WorkerRegistry())
    listed: list[int] = []
    token = ""
    while True:
        page = await service.ListRollouts(pb.ListRolloutsRequest(page_size=100, page_token=token), context)
        assert page.ByteSize() < MAX_MESSAGE_BYTES, f"{page.ByteSize()} bytes for {len(page.groups)} groups"
        listed += [group.order_number for group in page.groups]
        token = page.next_page_token
        if not token:
            break
    assert listed == list(range(NUM_GROUPS))
