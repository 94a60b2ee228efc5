"""An engine that samples as many completions at once as it may, and writes its memory.

Started by test_suggested_memory.py.

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
        sampled = (engine.sample(prompt, sampling, seed=n, on_begin=lambda: None) for n, prompt in enumerate(prompts))
        results = await asyncio.gather(*sampled, return_exceptions=True)
        # No weights were published, so what is sampled is of no version, which is found out when it is complete.
        assert {type(result) for result in results} == {ValueError}, results[0]
        return max(peak_bytes(child.pid) for child in psutil.Process().children(recursive=True))
    finally:
        await engine.close()


if __name__ == "__main__":
    found = asyncio.run(measure(parse_config(json.loads(sys.argv[1]))))
    Path(sys.argv[2]).write_text(json.dumps({"peak": found}))
