"""Generates docs/performance.md from the results in benchmarks/results.

python tools/performance_docs.py            rewrites the page
python tools/performance_docs.py --check    checks whether it is current, without writing

`benchmarks/step.py` and `benchmarks/learner.py` write the results (--json). A file step*.json or learner*.json becomes
one section of the page, and all files gpu*.json, which `benchmarks/learner.py` wrote on GPUs, become one section. The
section on the parts of a step comes from shoal_step.json, which `benchmarks/step.py` wrote without TRL, and compares
with step.json and learner.json.
"""

import argparse
import json
import shlex
import textwrap
from pathlib import Path
from typing import Any

from shoal.quantities import counted

ROOT = Path(__file__).resolve().parent.parent
PAGE, RESULTS = ROOT / "docs" / "performance.md", ROOT / "benchmarks" / "results"
GOAL = 4.5
"""The ratio to TRL's time that was aimed at."""
NAMES = {"trl": "TRL", "shoal": "Shoal", "engine": "vLLM alone", "learner": "learner alone"}

HEADER = """\
# Performance

<!-- Written by tools/performance_docs.py from benchmarks/results; measure again, and run: make docs -->

This page shows how long a train step takes without a GPU, compared with TRL and with the parts of a step, and the
learner's rates on a GPU. [README.md](../README.md#what-has-run-on-a-gpu) lists all that has run on a GPU, and
[sizing.md](sizing.md) has memory and disk. All times of a table are medians. Contestants run in turn, so that a change
of the machine's load affects all.
"""

REPEAT = """\
## Repeat the measurements

TRL needs an environment of its own, since Shoal and TRL require different versions of transformers. On a CPU:

```bash
python3.11 -m venv /opt/trl
/opt/trl/bin/pip install torch=={torch} --index-url https://download.pytorch.org/whl/cpu
/opt/trl/bin/pip install trl=={trl} transformers=={transformers} accelerate=={accelerate}
```

Then, in this folder, on a machine that does nothing else:

```bash
{commands}
make docs
```

On a GPU, with the extra `learner-cuda` ([README.md](../README.md#try-it)):

```bash
{gpu_commands}
make docs
```
"""


def page() -> str:
    """Returns the text of docs/performance.md."""
    steps, learners, on_gpus = (
        {path: json.loads(path.read_text()) for path in sorted(RESULTS.glob(f"{name}*.json"))}
        for name in ("step", "learner", "gpu")
    )
    commands = [
        f'make bench NAME={name} ARGS="{found["run"]["arguments"]}"'
        for name, results in (("step", steps), ("learner", learners))
        for found in results.values()
    ]
    gpu_commands = [f'make bench NAME=learner ARGS="{found["run"]["arguments"]}"' for found in on_gpus.values()]
    parts = json.loads((RESULTS / "shoal_step.json").read_text())
    commands.insert(1, f'make bench NAME=step ARGS="{parts["run"]["arguments"]}"')
    step, learner = (json.loads((RESULTS / f"{name}.json").read_text()) for name in ("step", "learner"))
    trl = next(found["trl"]["versions"] for found in steps.values() if found["trl"])
    return "\n".join(
        [
            HEADER,
            *map(_step, steps.values()),
            _parts(parts),
            _floor(step, learner),
            *map(_learner, learners.values()),
            _on_gpus(list(on_gpus.values())),
            REPEAT.format(
                commands="\n".join(commands),
                gpu_commands="\n".join(gpu_commands),
                **{**trl, "torch": trl["torch"].partition("+")[0]},
            ),
        ]
    )


def _step(found: dict[str, Any]) -> str:
    work, trl = found["work"], found["trl"]
    text = (
        f"A step samples, scores, trains and publishes {work['groups']} groups of {work['group_size']} completions by "
        f"{Path(work['model']).name.removeprefix('package:')}, with prompts of {work['prompt_tokens']} tokens, and "
        f"computes in {work['dtype']} with {work['threads']} threads. All completions have the same number of tokens. "
        f"TRL's GRPOTrainer samples with `{trl['sampling']}`, and trains on {work['trl_batch']} sequences at once. "
        "The head of `benchmarks/step.py` has the conditions. Seconds are wall time, with CPU time in parentheses. "
        "The parts are vLLM alone, which samples as many tokens, and the learner's step alone."
    )
    names = [name for name in NAMES if all(name in row for row in found["lengths"].values())]
    heads = ["tokens of a completion", *(f"{NAMES[name]}, s" for name in names), "TRL / Shoal", "parts / Shoal"]
    rows = [
        [
            length,
            *(f"{row[name]['wall_s']:.2f} ({row[name]['cpu_s']:.2f})" for name in names),
            f"**{row['trl_ratio_wall']:.1f}** ({row['trl_ratio_cpu']:.1f})",
            f"{row['parts_share_wall']:.0%} ({row['parts_share_cpu']:.0%})",
        ]
        for length, row in found["lengths"].items()
    ]
    timed = f"Each contestant ran {counted(work['rounds'], 'time')}, with {counted(work['steps'], 'timed step')} each. "
    timed += f"TRL's environment: {_versions(trl['versions'])}."
    return _section("A whole step", text, _table(heads, rows), f"{_machine(found['run'])} {timed}")


def _parts(found: dict[str, Any]) -> str:
    text = (
        "The same steps by part, in a run without TRL, as shares of a step's wall time that the run's metrics give. "
        "Sampling is the time in which the generator had something to sample. Waiting is the time after it until the "
        "step had its groups, with scoring. The learner's share is that of `Learner.step`, and sending is the time of "
        "the call beside it. The last columns are shares of the learner's step alone: forward passes, backward passes "
        "and the optimizer. On a busy machine all shares are rough."
    )
    heads = ["tokens of a completion", "step, s", "sampling", "waiting", "learner", "sending", "publishing", "rest"]
    rows = []
    for length, row in found["lengths"].items():
        parts, alone = row["shoal"]["parts_s"], row["learner"]["parts_s"]
        shown = [parts["sampling"], parts["waiting"] + parts["scoring"]]
        shown += [parts[name] for name in ("learner", "sending", "publishing", "rest")]
        rows.append(
            [
                length,
                f"{row['shoal']['wall_s']:.2f} ({row['shoal']['cpu_s']:.2f})",
                *(f"{seconds / sum(parts.values()):.0%}" for seconds in shown),
                *(f"{alone[name] / sum(alone.values()):.0%}" for name in ("forward", "accumulate", "apply")),
            ]
        )
    heads += ["forward", "backward", "optimizer"]
    return _section("Where a step's time goes", text, _table(heads, rows), _machine(found["run"]))


def _floor(step: dict[str, Any], learner: dict[str, Any]) -> str:
    """Makes the section that says which ratio to TRL is possible, from the times of the parts alone."""
    machine, alone = learner["machine"], learner["contestants"]["learner"]
    rate = alone["flops_per_s"] / machine["matrix_flops_per_s"]
    rows, ratios, fast_ratios, added, of_engine, busy = [], [], [], [], [], []
    for length, row in step["lengths"].items():
        trl_s, shoal_s, engine_s, learner_s = (row[name]["wall_s"] for name in NAMES)
        parts_s, goal_s = engine_s + learner_s, trl_s / GOAL
        ratios.append(f"{trl_s / parts_s:.1f}")
        fast_ratios.append(f"{trl_s / (engine_s + rate * learner_s):.1f}")
        added.append(f"{(shoal_s - parts_s) / (shoal_s - goal_s):.0%}")
        of_engine.append(f"{engine_s / goal_s:.0%}")
        busy.append(f"{row['engine']['cpu_s'] / engine_s:.1f}")
        times = [f"{seconds:.2f}" for seconds in (shoal_s, parts_s, goal_s)]
        rows.append([length, *times, f"{trl_s / shoal_s:.1f}", f"**{ratios[-1]}**", fast_ratios[-1]])
    text = (
        f"The goal was a step {GOAL} times as fast as TRL's, and it is missed. The parts miss it too: with nothing "
        f"beside vLLM alone and the learner alone, a step of {_listed(list(step['lengths']))} tokens would be "
        f"{_listed(ratios)} times as fast. What Shoal adds (publishing, scoring, calls, and parts that are slower "
        f"beside other processes than alone) is {_listed(added)} of the time that is missing, and more than that the "
        f"services cannot save. The rest has to come from the parts. On {learner['work']['num_tokens']:,} tokens the "
        f"learner reaches {rate:.0%} of the rate of a large matrix product (next section). If it reached all of it, "
        f"and vLLM stayed as it is, the ratios would be {_listed(fast_ratios)}. vLLM alone takes {_listed(of_engine)} "
        f"of the time that the goal allows for a whole step, and keeps {_listed(busy)} of {step['work']['threads']} "
        "threads busy. So the goal needs faster forward and backward passes, and the longer the completions are, also "
        "a faster engine."
    )
    heads = ["tokens of a completion", "Shoal, s", "parts, s", f"TRL / {GOAL}, s", "TRL / Shoal", "TRL / parts"]
    heads.append("TRL / parts, with the learner at the matrix rate")
    return _section("Which ratio to TRL is possible", text, _table(heads, rows), "Times are those of the first table.")


def _listed(words: list[str]) -> str:
    return f"{', '.join(words[:-1])} and {words[-1]}"


def _learner(found: dict[str, Any]) -> str:
    machine, work = found["machine"], found["work"]
    text = (
        f"`Learner.step` on {work['num_tokens']:,} tokens, of which {work['num_completion_tokens']:,} are of "
        f"completions, in {machine['dtype']} on {machine['device']}. Bare is a loop of plain transformers on the same "
        "sequences, which computes the prompt again for every completion; the learner computes it once for a group. "
        f"A large matrix product runs at {machine['matrix_flops_per_s'] / 1e9:.0f} GFLOP/s on this machine. The shares "
        "of this rate count the learner's FLOPs for both."
    )
    heads = ["", "wall, s", "CPU, s", "tokens/s", "share of the matrix rate", "peak memory, GiB"]
    rows = [
        [
            name,
            f"{row['wall_s']:.2f}",
            f"{row['cpu_s']:.2f}",
            f"{row['tokens_per_s']:.0f}",
            f"{row['flops_per_s'] / machine['matrix_flops_per_s']:.0%}",
            f"{row['peak_bytes'] / 2**30:.1f}",
        ]
        for name, row in found["contestants"].items()
    ]
    parts = ", ".join(f"{name.lstrip('_')} {took_s:.2f}" for name, took_s in found["learner_parts_s"].items())
    return _section(
        "The learner's step", text, _table(heads, rows), f"Its parts, in s: {parts}. {_machine(found['run'])}"
    )


def _on_gpus(results: list[dict[str, Any]]) -> str:
    text = (
        "`Learner.step` on random models of these shapes, computing in bfloat16, with float32 weights. A row's time is "
        "that of its forward and backward pass. The rates count model FLOPs alone: matrix products and causal "
        "attention, nothing that is recomputed. The share of the matrix rate compares with a large matrix product on "
        "the same GPU, and MFU with its data sheet (989 TFLOP/s). Bare is a loop of plain transformers with the same "
        "rows; both models were in memory then. The host's time for each kernel bounds short rows and ZeRO 3 on one "
        "GPU."
    )
    heads = [
        "model",
        "completions",
        "rows",
        "a row, ms",
        "step, s",
        "tokens/s",
        "matrix rate",
        "MFU",
        "peak memory, GiB",
    ]
    rows = []
    for found in results:
        machine, parts, work = found["machine"], found["learner_parts_s"], found["work"]
        sizes, arguments = work["row_tokens"], _options(found["run"]["arguments"])
        for name, row in found["contestants"].items():
            row_ms = 1e3 * (parts["forward"] + parts["accumulate"]) / len(sizes)
            rows.append(
                [
                    _shape(arguments) if name == "learner" else f"{_shape(arguments)}: bare",
                    f"{work['num_completion_tokens'] // int(arguments['completion-tokens'])} of "
                    f"{int(arguments['completion-tokens']):,}",
                    f"{len(sizes)} of {sizes[0]:,}",
                    f"{row_ms:.0f}" if name == "learner" else "",
                    f"{row['wall_s']:.2f}",
                    f"{row['tokens_per_s']:,.0f}",
                    f"{row['flops_per_s'] / machine['matrix_flops_per_s']:.0%}",
                    f"**{row['flops_per_s'] / machine['peak_flops_per_s']:.0%}**",
                    f"{row['peak_bytes'] / 2**30:.0f}",
                ]
            )
    machine, run = results[0]["machine"], results[0]["run"]
    commits = ", ".join(sorted({found["run"]["commit"] for found in results}))
    source = f"Machine: one {machine['device']}; {run['date']}, commits {commits}, {_versions(run['versions'])}."
    return _section("The learner on a GPU", text, _table(heads, rows), source)


def _options(arguments: str) -> dict[str, str]:
    """Returns the options of a command line by name; of options that are repeated, all values."""
    options: dict[str, list[str]] = {}
    for word in shlex.split(arguments):
        if word.startswith("--"):
            values = options.setdefault(word.removeprefix("--"), [])
        else:
            values.append(word)
    return {name: " ".join(values) for name, values in options.items()}


def _shape(options: dict[str, str]) -> str:
    layers = f", {options['layers']} layers" if "layers" in options else ""
    settings = [word for word in options.get("set", "").split() if not word.startswith("pack_tokens")]
    return f"`{options['shape']}`{layers}{''.join(f', `{setting}`' for setting in settings)}"


def _machine(run: dict[str, Any]) -> str:
    cores = run["num_cores"]
    # The benchmark itself makes a load of one process for each core.
    busy = (
        " Other programs kept the machine busy, so only CPU time is meaningful."
        if run["load_5_min"] > cores + 1
        else ""
    )
    return (
        f"Machine: {run['cpu']}, {cores} cores, {run['memory_gib']} GiB, load {run['load_5_min']} over the "
        f"last 5 minutes; {run['date']}, commit {run['commit']}, {_versions(run['versions'])}.{busy}"
    )


def _versions(versions: dict[str, str]) -> str:
    return ", ".join(f"{name} {number}" for name, number in versions.items())


def _section(title: str, text: str, table: str, source: str) -> str:
    return "\n\n".join([f"## {title}", textwrap.fill(text, 120), table, textwrap.fill(source, 120)]) + "\n"


def _table(heads: list[str], rows: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (heads, ["---"] * len(heads), *rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare the page with the results, write nothing")
    if not parser.parse_args().check:
        PAGE.write_text(page())
    elif not PAGE.exists() or PAGE.read_text() != page():
        raise SystemExit("docs/performance.md differs from benchmarks/results; run: make docs")


if __name__ == "__main__":
    main()
