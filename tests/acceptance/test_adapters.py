"""Adapters on the real stack: the quickstart's task, merged weights in vLLM, and what others load."""

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.local_stack import LocalStack, guessing_config, write_config
from tests.support.repository import ROOT

pytestmark = pytest.mark.timeout(3600)

TOKENS = list(range(40, 90))
LOAD_IN_VLLM = """
import json, sys
if __name__ == "__main__":
    from vllm import LLM, SamplingParams
    from vllm.lora.request import LoRARequest
    base, merged, output, tokens = sys.argv[1], sys.argv[2], sys.argv[3], json.loads(sys.argv[4])
    options = dict(max_model_len=256, enforce_eager=True, kv_cache_memory_bytes=1 << 28, dtype="float32")
    read = SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=0)

    def logprobs(llm, **request):
        (found,) = llm.generate({"prompt_token_ids": tokens}, read, **request)
        pairs = zip(tokens[1:], found.prompt_logprobs[1:])
        return [row[token].logprob for token, row in pairs]

    results = {"merged": logprobs(LLM(merged, **options))}
    # A request without an adapter, and prompt log-probabilities of several at once, are traps of vLLM's on a CPU.
    layers = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    llm = LLM(base, enable_lora=True, max_lora_rank=16, lora_target_modules=layers, **options)
    results["adapter"] = logprobs(llm, lora_request=LoRARequest("trained", 1, merged + "/adapter"))
    open(output, "w").write(json.dumps(results))
"""


def test_the_quickstart_with_adapters_learns_to_add(tmp_path: Path) -> None:
    began = time.monotonic()
    with LocalStack(tmp_path / "runs", "lora", str(ROOT / "configs/quickstart-lora.toml")) as stack:
        assert stack.wait(3000) == 0, stack.tail()
    took_s = time.monotonic() - began
    rows = stack.metrics()
    rates = [row["objective/verifiable_correct_rate"] for row in rows]
    first, last = rates[0], statistics.fmean(rates[-5:])  # It learns within three steps.
    checkpoint = stack.of_kind("checkpoint")[-1]
    print(
        f"quickstart with adapters: {took_s:.0f} s; correct rate {first:.3f} -> {last:.3f} over {len(rows)} steps of "
        f"{statistics.median(row['time/step'] for row in rows):.1f} s; a checkpoint has "
        f"{checkpoint['attributes']['num_bytes'] / 2**20:.1f} MiB",
        flush=True,
    )
    assert first < 0.15 and last > 0.5, f"correct rate {first:.3f} -> {last:.3f}: {rates}"


def test_a_publish_of_adapters_alone_carries_few_bytes_and_pauses_for_a_moment(tmp_path: Path) -> None:
    medians: dict[str, dict[str, float]] = {}
    for way in ("merged", "adapter"):
        # A busy machine may take more than the default of 300 s to start an engine.
        patience = "coordinator.worker_timeout_s=900"
        options = ("run.num_steps=8", "evaluation.sources=[]", f"generator.lora={way}", patience)
        overrides = [word for option in options for word in ("--set", option)]
        with LocalStack(tmp_path / "runs", way, str(ROOT / "configs/quickstart-lora.toml"), *overrides) as stack:
            assert stack.wait(1500) == 0, stack.tail()
        rows = stack.metrics()[1:]  # The first publish makes the broadcast group.
        names = ("other/published_bytes", "time/weights_pause", "time/weights_broadcast", "time/publishing")
        medians[way] = {name: statistics.median(row[name] for row in rows) for name in names}
        shown = ", ".join(f"{name} {value:.4g}" for name, value in medians[way].items())
        load = os.getloadavg()[0]
        print(f"a publish, {way}: {shown} (medians of {len(rows)} steps, load average {load:.1f})", flush=True)
    merged, adapter = medians["merged"], medians["adapter"]
    assert adapter["other/published_bytes"] < 0.05 * merged["other/published_bytes"], medians
    assert adapter["time/weights_pause"] < merged["time/weights_pause"], medians


def test_adapters_of_a_killed_learner_go_on_and_are_what_vllm_transformers_and_peft_load(tmp_path: Path) -> None:
    learner = {"lora": {"rank": 8, "alpha": 16}, "learning_rate": 1e-2}
    config = guessing_config(tmp_path, learner=learner, checkpoint={"every_steps": 2}, run={"num_steps": 6})
    path = str(write_config(tmp_path / "run.toml", config))
    with LocalStack(tmp_path / "runs", "killed", path) as stack:
        stack.until_step(3)
        stack.services("learner")[0].send_signal(signal.SIGKILL)
        assert stack.wait(900) == 0, stack.tail()
    rows = stack.metrics()
    gaps = [row["val/logprob_gap_mean"] for row in rows]
    assert len(rows) == 6 and max(gaps) < 1e-4, f"mean absolute gaps {gaps} at staleness 0 in float32"

    base, merged = str(tmp_path / "model"), str(stack.folder / "model")
    output = tmp_path / "logprobs.json"
    command = [sys.executable, "-c", LOAD_IN_VLLM, base, merged, str(output), json.dumps(TOKENS)]
    subprocess.run(command, check=True, timeout=900)
    found = json.loads(output.read_text()) | by_transformers(base, merged)
    base_logprobs = found.pop("base")
    reference = found["transformers"]
    apart = {name: max(abs(a - b) for a, b in zip(values, reference, strict=True)) for name, values in found.items()}
    moved = statistics.fmean(abs(a - b) for a, b in zip(base_logprobs, reference, strict=True))
    print(f"largest differences to the merged model: {apart}; the training moved them by {moved:.3f}", flush=True)
    assert max(apart.values()) < 1e-5, f"in vLLM, peft and transformers, float32: {apart}"
    assert moved > 1e-2, f"the training moved the log-probabilities by {moved:.4f}"


def by_transformers(base: str, merged: str) -> dict[str, list[float]]:
    """Returns the log-probabilities of the tokens under base and merged model, and under the base with the adapter."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    def logprobs(lm: Any) -> list[float]:
        tokens = torch.tensor(TOKENS)
        with torch.no_grad():
            scores = torch.log_softmax(lm(tokens[None]).logits[0, :-1], -1)
        values: list[float] = scores.gather(-1, tokens[1:, None]).squeeze(-1).tolist()
        return values

    lm = AutoModelForCausalLM.from_pretrained(base)
    return {
        "base": logprobs(lm),
        "transformers": logprobs(AutoModelForCausalLM.from_pretrained(merged)),
        "peft": logprobs(PeftModel.from_pretrained(lm, merged + "/adapter")),
    }
