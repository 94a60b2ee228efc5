"""`make quickstart` in a fresh clone with a new virtual environment and empty caches, as a new user runs it."""

import json
import os
import shutil
import statistics
import subprocess
import time
from pathlib import Path

import pytest

from tests.support.repository import ROOT

MAX_S = 600
LOAD_EVERYWHERE = """
import sys
if __name__ == "__main__":
    from transformers import AutoModelForCausalLM
    AutoModelForCausalLM.from_pretrained(sys.argv[1])
    from vllm import LLM, SamplingParams
    llm = LLM(sys.argv[1], max_model_len=128, enforce_eager=True, kv_cache_memory_bytes=1 << 28)
    print(llm.generate("2 + 2 =", SamplingParams(max_tokens=4))[0].outputs[0].text)
"""


@pytest.mark.timeout(3600)
def test_the_quickstart_learns_to_add_within_ten_minutes(tmp_path: Path) -> None:
    clone = tmp_path / "shoal"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    # A new user has neither our environment nor our caches.
    environment = {name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "SHOAL_CACHE")}
    environment |= {"HOME": str(tmp_path / "home"), "PIP_NO_CACHE_DIR": "1"}
    environment["PATH"] = os.pathsep.join(p for p in environment["PATH"].split(os.pathsep) if ".venv" not in p)
    (tmp_path / "home").mkdir()
    began = time.monotonic()
    done = subprocess.run(
        ["make", "quickstart"], cwd=clone, env=environment, text=True, capture_output=True, check=False
    )
    took_s = time.monotonic() - began
    print(done.stdout[-8000:], done.stderr[-4000:])
    assert done.returncode == 0, f"exit code {done.returncode}"

    (run,) = (path.parent for path in clone.glob("runs/*/run.json"))
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    rows = [line for line in lines if "time/step" in line]
    rates = [row["objective/verifiable_correct_rate"] for row in rows]
    first, last = statistics.fmean(rates[:3]), statistics.fmean(rates[-5:])
    evaluations = [
        event["attributes"]["correct_rate"]
        for event in map(json.loads, (run / "events.jsonl").read_text().splitlines())
        if event["kind"] == "evaluation"
    ]
    print(
        f"quickstart: {took_s:.0f} s with the install; correct rate {first:.3f} -> {last:.3f} over {len(rows)} steps;"
    )
    print(f"held out {evaluations[0]:.3f} -> {evaluations[-1]:.3f}; steps of {rows[-1]['time/step']:.1f} s")
    assert last >= 0.5 and last >= 4 * first, f"correct rate {first} -> {last}"
    assert evaluations[-1] - evaluations[0] >= 0.2, evaluations
    names = {path.name for path in run.iterdir()}
    assert {"config.json", "ledger.sqlite", "logs", "checkpoints", "report.html"} <= names, names
    python = str(clone / ".venv/bin/python")
    subprocess.run([python, "-c", LOAD_EVERYWHERE, str(run / "model")], env=environment, check=True)
    shutil.rmtree(clone)
    assert took_s <= MAX_S, f"{took_s:.0f} s"
