import ast
from typing import Any

from services.generator.adapter_settings import adapter_arguments, adapter_config, slots_bytes
from shoal.config.run import RunConfig
from shoal.config.tables.generator import ADAPTER_RANKS
from tests.support.configs import run_config
from tests.support.library_source import class_of, fields_of, source_of

TENSORS = {
    "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight": (12, 64),
    "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight": (32, 12),
    "base_model.model.model.layers.1.mlp.up_proj.lora_A.weight": (12, 64),
}


def config(*, max_staleness: int = 1, **lora: Any) -> RunConfig:
    return run_config(
        "unused",
        data={"sources": [{"path": "unused.jsonl"}]},
        grpo={"max_staleness": max_staleness},
        generator={"lora": "adapter"},
        learner={"lora": {"rank": 12} | lora},
    )


def test_the_engine_makes_room_for_the_versions_in_flight_in_the_trained_layers_alone() -> None:
    arguments = adapter_arguments(config(max_staleness=3), TENSORS)
    assert arguments["lora_target_modules"] == ["q_proj", "up_proj"]
    assert (arguments["max_loras"], arguments["max_cpu_loras"], arguments["max_lora_rank"]) == (5, 5, 16)
    assert arguments.keys() <= fields_of(class_of(source_of("vllm", "engine/arg_utils.py"), "EngineArgs"))


def test_the_ranks_are_those_that_vllm_makes_room_for() -> None:
    [ranks] = [
        node.value.slice
        for node in ast.walk(source_of("vllm", "config/lora.py"))
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Subscript)
        and getattr(node.targets[0], "id", "") == "MaxLoRARanks"
    ]
    assert ast.literal_eval(ranks) == ADAPTER_RANKS


def test_slots_take_the_memory_of_the_rank_that_vllm_makes_room_for() -> None:
    # Rank 12 lies in slots of rank 16; staleness 1 has three.
    elements = 16 * (64 + 32 + 64)
    assert slots_bytes(config(), TENSORS.values(), 2) == 3 * 2 * elements


def test_the_configuration_beside_the_tensors_is_the_learners() -> None:
    written = adapter_config(config(rank=16, alpha=24, rslora=True, target_modules=["q_proj"]))
    assert (written["r"], written["lora_alpha"], written["use_rslora"]) == (16, 24, True)
    assert (written["target_modules"], written["bias"]) == (["q_proj"], "none")
