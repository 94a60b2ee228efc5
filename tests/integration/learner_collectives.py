"""One of several ranks that record the collectives of an optimizer step; started by test_learner_collectives.py.

Usage: main() with the arguments FOLDER STAGE..., by tests/support/ranks.py. Writes FOLDER/<stage>.safetensors, the
gradient, and FOLDER/<stage>.json. A stage is ZeRO's. "-checkpointed", "-bfloat16", "-lora" and "-frozen" may follow;
with "-released" stage 3 keeps no parameter from a layer's forward pass to its backward pass, as in a large model, and
with "-buckets" gradients are reduced in small parts.
"""

import json
import math
import sys
from pathlib import Path
from typing import Any

from services.learner.commands import LearnerCommands
from services.learner.engine import deepspeed_engine, deepspeed_settings
from services.learner.loss.mini_batch import plan_mini_batches
from services.learner.model.weights import whole_shape
from services.learner.ranks.launch import limit_threads
from services.learner.ranks.process_group import ProcessGroup
from tests.support.collectives import Collectives
from tests.support.configs import run_config
from tests.support.learner_results import record_gradient
from tests.support.train_batches import make_groups

MIN_BYTES = 16 << 10
"""Smaller collectives are those of sums, norms and DeepSpeed's checks."""


def main() -> None:
    limit_threads(2)
    folder = Path(sys.argv[1])
    commands = LearnerCommands(ProcessGroup.connect(), folder)
    for stage in sys.argv[2:]:
        result = count(commands, folder, stage)
        if commands.process_group.rank == 0:
            (folder / f"{stage}.json").write_text(json.dumps(result))
        commands.learner.engine.close()
    commands.process_group.leave()


def count(commands: LearnerCommands, folder: Path, stage: str) -> dict[str, Any]:
    """Records a gradient, and then the collectives of each row of an optimizer step and of applying its gradient."""
    number, *kinds = stage.split("-")
    settings = {
        "zero_stage": int(number),
        "gradient_checkpointing": "checkpointed" in kinds,
        "compute_dtype": "bfloat16" if "bfloat16" in kinds else "float32",
        "lora": {"rank": 4 if "lora" in kinds else 0},
        "freeze": ["model.embed_tokens"] if "frozen" in kinds else [],
        "pack_tokens": 48,
    }
    gather_by_layer, bucket_elements = deepspeed_engine.gather_by_layer, deepspeed_settings._BUCKET_ELEMENTS
    if "buckets" in kinds:
        deepspeed_settings._BUCKET_ELEMENTS = 500_000
    if "released" in kinds:
        deepspeed_engine.gather_by_layer = lambda lm: _released(gather_by_layer(lm))
    commands.configure(f"run-{stage}", run_config(str(folder / "model"), grpo={"groups_per_step": 4}, learner=settings))
    deepspeed_engine.gather_by_layer, deepspeed_settings._BUCKET_ELEMENTS = gather_by_layer, bucket_elements
    learner = commands.learner
    groups = make_groups(group_size=5)
    for _ in range(2 if number == "3" else 1):  # The first pass of stage 3 records the order of the parameters.
        record_gradient(learner, groups, folder / f"{stage}.safetensors")
    rows: list[Any] = []
    forward, accumulate = learner.engine.forward, learner.engine.accumulate

    def recorded_forward(*args: Any) -> Any:
        with Collectives(min_bytes=MIN_BYTES) as collectives:
            scored = forward(*args)
        rows.append({"forward": collectives.calls, "before": 0})
        return scored

    def recorded_accumulate(*args: Any, **kwargs: Any) -> None:
        collectives = Collectives(min_bytes=MIN_BYTES)
        first = next(p for p in learner.lm.base_model.layers[0].parameters() if p.requires_grad)
        hook = first.register_post_accumulate_grad_hook(lambda _: rows[-1].update(before=len(collectives.calls)))
        with collectives:
            accumulate(*args, **kwargs)
        hook.remove()
        rows[-1]["backward"] = collectives.calls

    learner.engine.forward, learner.engine.accumulate = recorded_forward, recorded_accumulate  # type: ignore[method-assign]
    (mini_batch,) = plan_mini_batches(groups, None, learner.config)
    learner.accumulate_gradient(mini_batch, 0.9)
    with Collectives(min_bytes=MIN_BYTES) as collectives:
        assert learner.engine.apply(1e-6, refuse=False).applied
    layers = learner.lm.base_model.layers
    return {
        "rows": rows,
        "apply": collectives.calls,
        "num_trained": learner.engine.num_trained,
        "gathered": [
            sum(size for size in (math.prod(whole_shape(p)) for p in layer.parameters()) if size > 100_000)
            for layer in layers
        ],
    }


def _released(settings: dict[str, int]) -> dict[str, int]:
    """Returns settings with which at most two layers are whole at a time."""
    return settings | {
        "stage3_max_reuse_distance": 0,
        "stage3_max_live_parameters": 2 * settings["stage3_prefetch_bucket_size"],
    }
