"""Memory of each learner rank at ZeRO 3, task by task, with a large random model and with a tiny one.

    python benchmarks/learner_memory.py --num-ranks 2
    PYTHONPATH=/another/checkout python benchmarks/learner_memory.py --num-ranks 4 --json before.json

Starts the ranks over gloo, twice: with a Llama of 1M parameters, which shows what a process holds anyway, and with one
of `--layers` x 45M + 65M parameters. Every rank loads the model, makes the engine, scores a sequence, takes two steps,
publishes, saves, restores and exports. A thread samples RssAnon: anonymous memory, so without the model's memory-mapped
files. The table has the highest sample of all ranks for each task, in MiB. The log-probabilities of the sequence are
compared with those of the whole model, as transformers loads it.

All tasks need about 30 bytes of memory for each parameter, and 14 on the disk of `--folder`. With `--until score` it is
16 bytes of memory, and 2 on the disk.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.learner_saves import files_on_disk

MIB = 1 << 20
TASKS = ("load", "engine", "score", "first step", "second step", "publish", "save", "restore", "export")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-ranks", type=int, default=2)
    parser.add_argument("--layers", type=int, default=10)
    parser.add_argument("--until", choices=TASKS[2:], default=TASKS[-1], help="the last task")
    parser.add_argument("--kl", action="store_true", help="load a reference too")
    parser.add_argument("--folder", type=Path, help="where models and checkpoints go, instead of a temporary folder")
    parser.add_argument("--json", type=Path, help="write the numbers here, in bytes")
    parser.add_argument("--rank-in", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank_in:
        run_rank(options.rank_in)
        return
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        result = measure(Path(name), options)
    show(result)
    if options.json:
        options.json.write_text(json.dumps(result))


def measure(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Runs the ranks with both models; returns sizes and peaks, in bytes, and the error of the log-probabilities."""
    result: dict[str, Any] = {"num_ranks": options.num_ranks}
    for name in ("small", "large"):
        (folder / name).mkdir()
        result[name] = make_model(folder / name / "model", num_layers=options.layers if name == "large" else 0)
        settings = {"kl": options.kl, "until": options.until, "model": str(folder / name / "model")}
        (folder / name / "settings.json").write_text(json.dumps(settings))
        launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(options.num_ranks)]
        subprocess.run([sys.executable, *launch, __file__, "--rank-in", str(folder / name)], check=True)
        ranks = [json.loads((folder / name / f"rank-{rank}.json").read_text()) for rank in range(options.num_ranks)]
        result[name]["peaks"] = {task: [rank["peaks"][task] for rank in ranks] for task in TASKS}
        expected = whole_logprobs(folder / name / "model")
        result[name]["logprob_error"] = max(abs(x - y) for x, y in zip(ranks[0]["logprobs"], expected, strict=True))
    return result


def make_model(folder: Path, *, num_layers: int) -> dict[str, int]:
    """Saves a random bfloat16 Llama in files of at most 200 MB; a tiny one if `num_layers` is 0. Returns its sizes."""
    import torch
    from tokenizers import Tokenizer, models
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    large = {"hidden_size": 2048, "intermediate_size": 5632, "num_attention_heads": 16, "num_key_value_heads": 4}
    small = {"hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 2, "num_key_value_heads": 2}
    config = LlamaConfig(
        vocab_size=32000 if num_layers else 5000,
        num_hidden_layers=num_layers or 2,
        tie_word_embeddings=True,
        **(large if num_layers else small),
    )
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    lm = LlamaForCausalLM(config)
    torch.set_default_dtype(torch.float32)
    lm.save_pretrained(folder, max_shard_size="200MB")
    tokenizer = Tokenizer(models.WordLevel({"<eos>": 0, "a": 1}, unk_token="a"))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>").save_pretrained(folder)
    elements = [parameter.numel() for parameter in lm.parameters()]
    return {"float32_bytes": 4 * sum(elements), "largest_bytes": 4 * max(elements)}


SEQUENCE = list(range(1, 65))


def whole_logprobs(folder: Path) -> list[float]:
    """Computes the log-probabilities of the sequence with the whole float32 model."""
    import torch
    from transformers import AutoModelForCausalLM

    tokens = torch.tensor(SEQUENCE)
    with torch.no_grad():
        logits = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)(tokens[None]).logits[0, :-1]
    logprobs: list[float] = torch.log_softmax(logits, -1).gather(-1, tokens[1:, None])[:, 0].tolist()
    return logprobs


def run_rank(folder: Path) -> None:
    """Does every task once, and writes this rank's peaks."""
    from services.learner import commands as learner_commands
    from services.learner.ranks.launch import limit_threads

    limit_threads(2)
    import numpy as np

    from services.learner.ranks.process_group import ProcessGroup
    from shoal.config import parse_config
    from shoal.v1 import learner_pb2

    settings = json.loads((folder / "settings.json").read_text())
    config = parse_config(
        {
            "model": {"path": settings["model"]},
            "data": {"sources": [{"task": "arithmetic"}]},
            "grpo": {"groups_per_step": 2},
            "kl": {"coef": 0.1 if settings["kl"] else 0.0},
            "learner": {"zero_stage": 3, "compute_dtype": "float32", "pack_tokens": 64, "logits_chunk_tokens": 32},
            "weights": {"dtype": "bfloat16"},
        }
    )
    meter = Meter()
    commands = learner_commands.LearnerCommands(ProcessGroup.connect(), folder)
    make_engine = learner_commands.DeepSpeedEngine

    def metered_engine(*arguments: Any, **names: Any) -> Any:
        meter.begin("engine")
        return make_engine(*arguments, **names)

    learner_commands.DeepSpeedEngine = metered_engine  # type: ignore[assignment,misc]
    logprobs: list[float] = []
    files: list[learner_pb2.FileDigest] = []

    def score() -> None:
        (scored,) = commands.learner.logprobs([np.array(SEQUENCE, dtype=np.int32)], temperature=1.0)
        logprobs.extend(scored.tolist())

    def save() -> None:
        saving = commands.save_checkpoint(learner_pb2.LearnerServiceSaveCheckpointRequest(checkpoint_id="c"))
        for file in files_on_disk(commands, saving):
            files.append(learner_pb2.FileDigest(path=file.path, num_bytes=file.num_bytes, sha256=file.sha256))

    def restore() -> None:
        commands.load_checkpoint(learner_pb2.LoadCheckpointRequest(checkpoint_id="c", files=files, attempt=1))

    work: dict[str, Callable[[], object]] = {
        "load": lambda: commands.configure("run", config),
        "score": score,
        "first step": lambda: commands.learner.step(make_batch("first", commands.learner.version)),
        "second step": lambda: commands.learner.step(make_batch("second", commands.learner.version)),
        "publish": lambda: commands.publish_weights(learner_pb2.PublishWeightsRequest(epoch=1), None),
        "save": save,
        "restore": restore,
        "export": lambda: commands.export_model(learner_pb2.ExportModelRequest()),
    }
    with meter.running():
        for task, do in work.items():
            meter.begin(task)
            do()
            if task == settings["until"]:
                break
    rank = commands.process_group.rank
    (folder / f"rank-{rank}.json").write_text(json.dumps({"peaks": meter.peaks, "logprobs": logprobs}))
    commands.process_group.leave()


def make_batch(name: str, version: Any) -> Any:
    """Makes a step of two groups with random tokens and advantages."""
    import numpy as np

    from tests.support import train_batches

    rng = np.random.default_rng(0)
    groups = [
        train_batches.make_group(group_id, num_prompt_tokens=12, completion_lengths=(12, 12), rng=rng, vocab_size=5000)
        for group_id in ("g0", "g1")
    ]
    return train_batches.make_batch(name, version, groups=groups)


class Meter:
    """The highest RssAnon of this process in each task."""

    def __init__(self) -> None:
        self.peaks = dict.fromkeys(TASKS, 0)
        self._task = TASKS[0]

    def begin(self, task: str) -> None:
        self._sample()
        self._task = task
        self._sample()

    @contextmanager
    def running(self) -> Iterator[None]:
        done = threading.Event()

        def sample() -> None:
            while not done.wait(0.002):
                self._sample()

        thread = threading.Thread(target=sample)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def _sample(self) -> None:
        status = Path("/proc/self/status").read_text()
        kib = int(status.partition("RssAnon:")[2].split()[0])
        self.peaks[self._task] = max(self.peaks[self._task], kib * 1024)


def show(result: dict[str, Any]) -> None:
    large, small = result["large"], result["small"]
    shard = large["float32_bytes"] / result["num_ranks"]
    bound = 1.1 * (shard + large["largest_bytes"] + max(small["peaks"]["load"]))
    print(
        f"{result['num_ranks']} ranks; float32 model {large['float32_bytes'] / MIB:.0f} MiB, shard {shard / MIB:.0f}, "
        f"largest module {large['largest_bytes'] / MIB:.0f}; bound for loading {bound / MIB:.0f}; "
        f"log-probabilities differ by {large['logprob_error']:.1e}"
    )
    print(f"{'':14}{'tiny':>8}{'large':>8}{'shards':>8}")
    for task in TASKS:
        tiny, peak = max(small["peaks"][task]), max(large["peaks"][task])
        print(f"{task:14}{tiny / MIB:8.0f}{peak / MIB:8.0f}{(peak - tiny) / shard:8.2f}")


if __name__ == "__main__":
    main()
