"""An engine that samples as many completions as it may, and writes its memory. Started by test_suggested_memory.py.

Usage: python generator_memory.py CONFIG OUTPUT, the configuration as JSON. OUTPUT gets {"peak": bytes} of the process
that holds the model.
"""

import asyncio
import json
import sys
from pathlib import Path

import psutil

from services.generator.vllm_engine import VllmEngine
from shoal.config import RunConfig, parse_config
from shoal.rollout import SamplingParams


def peak_bytes(pid: int) -> int:
    """The most that a process had resident, without what it only maps from files."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    kib = {line.partition(":")[0]: int(line.split()[1]) for line in lines if line.startswith(("VmHWM", "RssFile"))}
    return (kib["VmHWM"] - kib["RssFile"]) * 1024


async def measure(config: RunConfig) -> int:
    engine = await VllmEngine.start(config)
    try:
        # Without a stop token every completion goes on to its full length.
        sampling = SamplingParams(1.0, config.sampling.max_completion_tokens, stop_token_ids=())
        prompts = [[7 + n] * config.data.max_prompt_tokens for n in range(config.generator.max_num_seqs)]
        # No weights are published here, and vLLM's own label is no version.
        await engine._llm.update_weight_version("0.0")
        sampled = (engine.sample(prompt, sampling, n, lambda _: None) for n, prompt in enumerate(prompts))
        await asyncio.gather(*sampled)
        return max(peak_bytes(child.pid) for child in psutil.Process().children(recursive=True))
    finally:
        await engine.close()


if __name__ == "__main__":
    found = asyncio.run(measure(parse_config(json.loads(sys.argv[1]))))
    Path(sys.argv[2]).write_text(json.dumps({"peak": found}))
