"""Whole runs of families with scales, states and towers: real vLLM, real DeepSpeed, real gloo, and kill -9.

Each run learns to begin its completions with an ASCII character, which about every second token of a random model is.
"""

import asyncio
import json
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest

from shoal.arrays import Float32Array
from shoal.rpc.channel import connect
from shoal.v1 import generator_pb2
from shoal.v1.generator_pb2_grpc import GeneratorServiceStub
from shoal.wire import float32_from_wire, int32_to_wire
from tests.integration.test_run import ledger
from tests.support.local_stack import LocalStack, write_config
from tests.support.loopback import GENERATOR
from tests.support.packages import skip_without
from tests.support.real_generator import CANARY, logprobs_of
from tests.support.tiny_families import READERS, save_family

pytestmark = pytest.mark.timeout(1200)

pytest.importorskip("torch")
skip_without("vllm")

NUM_STEPS, GROUPS, GROUP_SIZE = 20, 8, 8
HEADS_OF_32: dict[str, Any] = {"num_attention_heads": 2, "num_key_value_heads": 1}
SHORT_CHUNKS: dict[str, Any] = {"mamba_chunk_size": 32}
"""Without a GPU the learner computes whole chunks, also of short sequences."""


@dataclass(frozen=True)
class Family:
    sizes: dict[str, Any]
    """Changes of the configuration. vLLM's kernels on a CPU do not take all sizes."""
    learning_rate: float
    adapters_rate: float
    """Learning rate of adapters."""
    dtype: str = "float32"
    """Type in which the engine computes."""
    sharpened: dict[str, Any] = field(default_factory=dict)
    """Changes of the configuration for adapters. They cannot train the output layer, so they need wider logits."""

    @property
    def largest_gap(self) -> float:
        """Largest mean difference between log-probabilities of the engine and others, in nats."""
        return 1e-3 if self.dtype == "float32" else 0.2


FAMILIES = {
    "qwen3.5-whole": Family({}, 1e-2, 2e-2, "bfloat16"),
    "falcon-h1": Family(SHORT_CHUNKS, 2e-2, 1e-2, sharpened={"lm_head_multiplier": 2.0}),
    "granite": Family(HEADS_OF_32, 3e-2, 1e-2, sharpened={"logits_scaling": 0.5}),
    "granite4-dense": Family(HEADS_OF_32 | SHORT_CHUNKS, 3e-2, 1e-2, sharpened={"logits_scaling": 0.8}),
    "gemma4-whole": Family({}, 1e-2, 1e-2),
}


@dataclass(frozen=True)
class Disturbance:
    num_ranks: int = 1
    zero_stage: int = 2
    lora_rank: int = 0
    kills: bool = False
    """Whether the generator is killed in the middle of the run."""


SEEDS = (
    Disturbance(),
    Disturbance(num_ranks=2, zero_stage=3),
    Disturbance(kills=True),
    Disturbance(num_ranks=2, zero_stage=3, kills=True),
    Disturbance(lora_rank=8),
)


@pytest.mark.parametrize("seed", range(len(SEEDS)))
@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_learns_in_a_run_and_its_engine_agrees_with_learner_and_export(
    family: str, seed: int, tmp_path: Path
) -> None:
    disturbance, largest_gap = SEEDS[seed], FAMILIES[family].largest_gap
    began = time.monotonic()
    with running(tmp_path, family, seed) as stack:
        if disturbance.kills:
            stack.until_step(NUM_STEPS // 3)
            stack.services("generator")[-1].send_signal(signal.SIGKILL)
        stack.until_step(NUM_STEPS - 4)
        version, engine = asyncio.run(scored(stack))
        assert stack.wait(300) == 0, stack.tail()
    rows, publishes = stack.metrics(), stack.of_kind("publish")
    rewards = [row["objective/scores"] for row in rows]
    first, last = rewards[0], fmean(rewards[-3:])
    gaps = {
        "step": max(row["val/logprob_gap_mean"] for row in rows),
        "canary": max(event["attributes"]["canary_gap"] for event in publishes),
        f"export of step {version}": gap(engine, logprobs_of_export(stack.folder / f"exports/step-{version:08d}")),
    }
    shown = ", ".join(f"{name} {value:.1e}" for name, value in gaps.items())
    print(
        f"{family}, seed {seed}, {disturbance}, {FAMILIES[family].dtype}: reward {first:.2f} -> {last:.2f}, {shown}, "
        f"{time.monotonic() - began:.0f} s",
        flush=True,
    )
    assert first < 0.7 and last > 0.8, f"reward {first:.2f} -> {last:.2f}: {rewards}"
    assert max(gaps.values()) < largest_gap, f"more than {largest_gap}: {shown}"
    last_export = logprobs_of_export(stack.folder / f"exports/step-{NUM_STEPS:08d}")
    assert np.array_equal(logprobs_of_export(stack.folder / "model"), last_export), "the model is not its last export"
    assert publishes[-1]["attributes"]["policy_version"] == NUM_STEPS, publishes[-1]
    assert_nothing_lost(stack, disturbance)


def assert_nothing_lost(stack: LocalStack, disturbance: Disturbance) -> None:
    lost = [event["attributes"]["worker_kind"] for event in stack.of_kind("worker_lost")]
    assert lost == (["generator"] if disturbance.kills else []), f"lost {lost}"
    failed = [event["attributes"]["reason"] for event in stack.of_kind("publish_failed")]
    assert not failed or disturbance.kills, f"publishes failed without a kill: {failed}"
    assert not any("CORRUPT" in reason or "CANARY" in reason for reason in failed), failed
    groups = ledger(stack, "SELECT order_number, state, train_step FROM groups ORDER BY order_number")
    expected = [(number, "TRAINED", number // GROUPS + 1) for number in range(NUM_STEPS * GROUPS)]
    assert groups == expected, f"groups lost or trained on out of order: {set(groups) ^ set(expected)}"


@contextmanager
def running(folder: Path, family: str, seed: int) -> Iterator[LocalStack]:
    """Begins a run of a family with the disturbances of a seed, except the kill."""
    choice, disturbance = FAMILIES[family], SEEDS[seed]
    model = save_model(folder / "model", family, seed)
    rate = choice.adapters_rate if disturbance.lora_rank else choice.learning_rate
    learner = {"zero_stage": disturbance.zero_stage, "compute_dtype": "float32", "learning_rate": rate}
    config = {
        "model": {"path": str(model)},
        "data": {"sources": [{"path": str(write_questions(folder / "data.jsonl"))}], "max_prompt_tokens": 64},
        # The first token counts. The others are sampled from the layers' states.
        "sampling": {"max_completion_tokens": 3},
        "grpo": {
            "group_size": GROUP_SIZE, "groups_per_step": GROUPS, "max_staleness": 0, "keep_zero_signal": True,
        },
        "generator": {"dtype": choice.dtype, "cpu_kv_cache_gib": 0.25, "max_num_seqs": GROUPS * GROUP_SIZE},
        "reward": {"num_processes": 1},
        "learner": learner | {"pack_tokens": 1024, "lora": {"rank": disturbance.lora_rank}},
        "checkpoint": {"export_every_steps": 1, "export_keep_last": 0},
        "launch": {"num_learner_ranks": disturbance.num_ranks},
        "run": {"num_steps": NUM_STEPS, "seed": seed},
    }  # fmt: skip
    with LocalStack(folder / "runs", "family", str(write_config(folder / "run.toml", config))) as stack:
        yield stack


def save_model(folder: Path, family: str, seed: int) -> Path:
    """Saves a random model with a byte-level tokenizer; returns the folder."""
    from tests.support.tiny_model import make_tokenizer
    from tests.support.tiny_readers import make_tiny_reader

    if family in READERS:
        make_tiny_reader(folder, family, seed=seed)
        make_tokenizer().save_pretrained(folder)
    else:
        choice = FAMILIES[family]
        sharpened = choice.sharpened if SEEDS[seed].lora_rank else {}
        save_family(family, folder, seed=seed, **choice.sizes | sharpened)
    return folder


def write_questions(path: Path) -> Path:
    pattern = r"\A[\x00-\x7f]"
    rows = [
        {"messages": [{"role": "user", "content": str(number)}], "ground_truth": pattern, "dataset": "regex"}
        for number in range(100)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


async def scored(stack: LocalStack) -> tuple[int, Float32Array]:
    """Asks the generator of a run for log-probabilities of the canary, and for the step of its weights."""
    (generator,) = stack.of_kind("publish")[-1]["attributes"]["generators"]
    async with connect(generator.removeprefix("generator "), GENERATOR) as channel:
        request = generator_pb2.ScoreTokensRequest(token_ids=int32_to_wire(CANARY))
        response = await GeneratorServiceStub(channel).ScoreTokens(request, timeout=60)
    return response.version.policy_version, float32_from_wire(response.logprobs, "logprobs")


def logprobs_of_export(folder: Path) -> Float32Array:
    """Returns the log-probabilities of the canary by transformers, in float32."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

    has_tower = hasattr(AutoConfig.from_pretrained(folder), "vision_config")
    auto = AutoModelForImageTextToText if has_tower else AutoModelForCausalLM
    return logprobs_of(auto.from_pretrained(folder, dtype="float32").eval(), CANARY)


def gap(ours: Float32Array, theirs: Float32Array) -> float:
    return float(np.abs(ours - theirs).mean())
