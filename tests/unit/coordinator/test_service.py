"""What CoordinatorService makes of what it is asked for."""

from typing import Any

from services.coordinator.recorded import GroupState, RecordedCompletion, RecordedGroup
from services.coordinator.service import CoordinatorServicer
from services.coordinator.workers import WorkerRegistry
from shoal.rollout import FinishReason
from shoal.rpc.options import MAX_MESSAGE_BYTES
from shoal.v1 import coordinator_pb2 as pb

NUM_GROUPS = 40


class LongGroups:
    """Runs whose every group holds a quarter of a mebibyte of text."""

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


async def test_a_page_of_long_groups_is_a_message_that_can_be_received_and_none_is_left_out() -> None:
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
