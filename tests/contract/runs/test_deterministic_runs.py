"""Deterministic runs: which groups are sampled together, also after workers were lost."""

from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from shoal.errors import Internal
from shoal.grpo.seeds import completion_seed
from shoal.v1 import generator_pb2
from tests.support.cluster import Cluster, kinds
from tests.support.configs import extended
from tests.support.scripted_workers import ScriptedGenerator, arithmetic_config

NUM_STEPS = 4


def deterministic_config(model: Path, **sections: dict[str, Any]) -> dict[str, Any]:
    config = arithmetic_config(
        model,
        run={"num_steps": NUM_STEPS, "deterministic": True, "num_threads": 1},
        grpo={"max_staleness": 0, "groups_per_step": 6},
        generator={"dtype": "float32", "max_num_seqs": 64},
        learner={"compute_dtype": "float32"},
        evaluation={"sources": [{"task": "arithmetic", "task_size": 50, "task_seed": 1}], "num_prompts": 5},
        launch={"num_generators": 2},
        checkpoint={"every_steps": 1},
    )
    return extended(config, sections)


def batches_of(*generators: ScriptedGenerator) -> list[list[generator_pb2.GenerateGroupRequest]]:
    """Returns the batches that generators were asked for, each as its groups in order."""
    found = []
    for generator in generators:
        groups: dict[str, dict[int, generator_pb2.GenerateGroupRequest]] = defaultdict(dict)
        for request in generator.requests:
            assert request.HasField("batch"), f"{request.request_id} is in no batch"
            assert request.batch.index not in groups[request.batch.batch_id], "a place is given twice"
            groups[request.batch.batch_id][request.batch.index] = request
        found += [[batch[index] for index in sorted(batch)] for batch in groups.values()]
    return found


def seeds_of(batch: list[generator_pb2.GenerateGroupRequest]) -> list[list[int]]:
    return [list(request.seeds) for request in batch]


def seeds_of_groups(*order_numbers: int) -> list[list[int]]:
    return [[completion_seed(0, number, index) for index in range(4)] for number in order_numbers]


async def test_groups_share_batches_by_their_order_with_any_number_of_generators_of_which_one_is_lost(
    cluster: Cluster, model: Path
) -> None:
    generators = [ScriptedGenerator(cluster.plane, delay_s=0.01) for _ in range(3)]
    # Whoever gets the second batch of the third step dies of it.
    for generator in generators:
        generator.killing_group = 16
    await cluster.add_all(*generators)
    await cluster.start(deterministic_config(model))
    await cluster.until("worker_out_of_reach")
    for generator in generators:
        generator.killing_group = None
    await cluster.finish()
    found = batches_of(*generators)
    training = [seeds_of(batch) for batch in found if "evaluation" not in batch[0].request_id]
    expected = [seeds_of_groups(first, first + 1, first + 2) for first in range(0, 6 * NUM_STEPS, 3)]
    assert all(batch in training for batch in expected), "a batch was not sampled as it was issued"
    # The dying generator may have got a part of its batch.
    assert all(any(all(seeds in whole for seeds in batch) for whole in expected) for batch in training)
    answers = [len(batch) for batch in found if "evaluation" in batch[0].request_id]
    assert sorted(answers) == [2, 2, 3, 3], "two evaluations of five questions, each in two batches"
    await cluster.check_every_group_was_used_once(NUM_STEPS)


async def test_a_group_that_fails_is_sampled_again_with_its_whole_batch(cluster: Cluster, model: Path) -> None:
    generator = ScriptedGenerator(cluster.plane, delay_s=0.01)
    generator.errors[8] = Internal("the engine failed once")
    await cluster.add_all(generator)
    await cluster.start(deterministic_config(model, evaluation={"sources": []}))
    await cluster.until("group_reissued")
    generator.errors.clear()
    _, events = await cluster.finish()
    again = [event.attributes["order_number"] for event in events if event.kind == "group_reissued"]
    assert sorted(again) == [6, 7, 8], "all groups of its batch are issued again, and no others"
    batches = [seeds_of(batch) for batch in batches_of(generator)]
    assert batches.count(seeds_of_groups(6, 7, 8)) == 2 and len(batches) == 2 * NUM_STEPS + 1, batches
    await cluster.check_every_group_was_used_once(NUM_STEPS)


class Watched(ScriptedGenerator):
    open_batches: Counter[str]
    num_at_once = 0

    async def GenerateGroup(
        self, request: generator_pb2.GenerateGroupRequest, context: Any
    ) -> AsyncIterator[generator_pb2.GenerateGroupResponse]:
        self.open_batches[request.batch.batch_id] += 1
        self.num_at_once = max(self.num_at_once, len(+self.open_batches))
        async for response in super().GenerateGroup(request, context):
            yield response
        self.open_batches[request.batch.batch_id] -= 1


async def test_a_generator_samples_one_batch_at_a_time(cluster: Cluster, model: Path) -> None:
    generator = Watched(cluster.plane, delay_s=0.01)
    generator.open_batches = Counter()
    await cluster.add_all(generator)
    _, events = await cluster.run_to_end(deterministic_config(model))
    assert "group_reissued" not in kinds(events), kinds(events)
    assert generator.num_at_once == 1, f"{generator.num_at_once} batches at once"
