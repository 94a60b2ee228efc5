"""Groups that are larger than a message, listed by a client with gRPC's own limits."""

from pathlib import Path

import grpc

from services.coordinator.run.runs import Runs
from services.coordinator.service import CoordinatorService
from services.coordinator.store.ledger import Ledger
from services.coordinator.store.rollouts import LEDGER
from services.coordinator.store.run_record import RunRecord
from services.coordinator.workers.registry import WorkerRegistry
from shoal.v1 import coordinator_pb2 as pb
from shoal.v1 import coordinator_pb2_grpc
from tests.support.loopback import COORDINATOR, serving
from tests.support.sampled import PROMPT, completion

NUM_COMPLETIONS, NUM_CHARS = 24, 400 << 10


async def test_a_client_with_grpcs_default_limits_reads_every_completion_of_a_group_of_ten_megabytes(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "big"
    folder.mkdir()
    RunRecord("big", folder).save()
    ledger = Ledger(folder / LEDGER, attempt=0)
    await ledger.open()
    await ledger.issued(0, 0, "g0", PROMPT, "", 0, "")
    await ledger.sampled(0, [completion(index, chr(97 + index) * NUM_CHARS) for index in range(NUM_COMPLETIONS)], 0, "")
    await ledger.close()
    registry = WorkerRegistry()
    servicer = CoordinatorService(Runs(tmp_path, registry), registry)
    texts: list[str] = []
    async with serving(servicer, COORDINATOR) as address, grpc.aio.insecure_channel(address) as channel:
        stub = coordinator_pb2_grpc.CoordinatorServiceStub(channel)
        token = ""
        while True:
            page = await stub.ListRollouts(pb.ListRolloutsRequest(run_id="big", page_token=token), timeout=60)
            (group,) = page.groups
            assert (group.num_rollouts, group.prompt_text) == (NUM_COMPLETIONS, "1 + 1?"), group.num_rollouts
            texts += [rollout.text for rollout in group.rollouts]
            token = page.next_page_token
            if not token:
                break
    assert [(text[0], len(text)) for text in texts] == [(chr(97 + n), NUM_CHARS) for n in range(NUM_COMPLETIONS)]
