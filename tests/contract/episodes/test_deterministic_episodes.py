"""Episodes of deterministic runs: which turns are sampled together, also after a generator was lost."""

import json
from pathlib import Path
from typing import Any

from tests.contract.episodes.test_episodes import episode_config
from tests.support.cluster import Cluster, kinds
from tests.support.scripted_environment import ScriptedPolicy, ScriptedStage
from tests.support.waiting import eventually

Batches = dict[str, dict[int, tuple[int, bytes]]]
"""By the name of a batch and the place in it: the seed, and all tokens so far."""


def _config(model: Path) -> dict[str, Any]:
    games = model.parent / "games.jsonl"
    games.write_text("".join(json.dumps({"messages": f"Held-out question {number}"}) + "\n" for number in range(3)))
    evaluation = {"sources": [{"path": str(games), "environment": "counter"}, {"task": "arithmetic", "task_size": 3}]}
    questions = model.parent / "mixed.jsonl"
    rows = [{"messages": f"Question {n}"} | ({"env": "counter"} if n % 3 else {"dataset": "gsm8k", "ground_truth": "1"})
            for n in range(60)]  # fmt: skip
    questions.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return episode_config(
        model,
        data={"sources": [{"path": str(questions), "environment_column": "env"}], "shuffle": False},
        evaluation=evaluation,
        run={"num_steps": 3, "deterministic": True, "num_threads": 1},
        grpo={"group_size": 3, "groups_per_step": 6, "max_staleness": 0, "keep_zero_signal": True},
        generator={"dtype": "float32", "max_num_seqs": 9},
        learner={"compute_dtype": "float32"},
        launch={"num_generators": 2},
        sampling={"max_completion_tokens": 1500},
    )


def _says(text: str, seed: int) -> str:
    return "<add>1</add>" if seed % 4 else "done"


def _batches(*policies: ScriptedPolicy) -> Batches:
    found: Batches = {}
    for request in (request for policy in policies for request in policy.requests):
        assert request.HasField("batch"), f"{request.request_id} is in no batch"
        name = request.batch.batch_id.partition("/")[2].rpartition("/")[0]
        for place, seed in enumerate(request.seeds):
            here = (seed, request.prompt_token_ids)
            before = found.setdefault(name, {}).setdefault(100 * request.batch.index + place, here)
            assert before == here, f"{name} was sampled again in another way"
    return found


async def _play(folder: Path, model: Path, *, kills: bool) -> tuple[Batches, list[Any], list[str]]:
    cluster = Cluster(folder)
    folder.mkdir()
    await cluster.open()
    try:
        doomed, others = ScriptedPolicy(cluster.plane, _says), [ScriptedPolicy(cluster.plane, _says) for _ in range(2)]
        if kills:
            doomed.holds_after, doomed.holds_turn = 3, 2
        await cluster.add_all(doomed, rewards=(ScriptedStage(),))
        await cluster.add(others[0], "generator-1")
        await cluster.start(_config(model))
        if kills:
            await eventually(lambda: doomed.num_held > 0, "it holds second turns")
            await cluster.kill("generator-0")
            await cluster.add(others[1], "generator-2")
        _, events = await cluster.finish()
        rollouts = [
            (group.order_number, group.state, rollout.text, rollout.episode.SerializeToString(deterministic=True))
            for group in await cluster.groups()
            for rollout in group.rollouts
        ]
        return _batches(doomed, *others), rollouts, kinds(events)
    finally:
        await cluster.close()


async def test_the_turns_of_episodes_share_batches_by_their_order_whatever_is_killed(model: Path) -> None:
    quiet, told, _ = await _play(model.parent / "quiet", model, kills=False)
    killed, told_again, happened = await _play(model.parent / "killed", model, kills=True)
    assert "worker_out_of_reach" in happened or "worker_lost" in happened, happened
    assert quiet.keys() == killed.keys()
    different = [name for name in quiet if quiet[name] != killed[name]]
    assert not different, f"{len(different)} of {len(quiet)} batches differ: {different[:3]}"
    assert told == told_again, "the ledger tells the same"
    sizes = {len(batch) for name, batch in quiet.items() if "/turns-" in name}
    assert max(sizes) > 1 and len(sizes) > 2, f"turns share batches, fewer as episodes end: {sizes}"
