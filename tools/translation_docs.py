"""Writes docs/translation.md from the tables of shoal/translate: how each field of other systems is translated.

python tools/translation_docs.py            rewrites the page
python tools/translation_docs.py --check    checks whether it is current, without writing
"""

import argparse
from pathlib import Path

from shoal.translate import SYSTEMS, System
from shoal.translate.shared.field import Fate, Field
from shoal.translate.shared.not_yet import NOT_YET

PAGE = Path(__file__).resolve().parent.parent / "docs" / "translation.md"

HEADER = """\
# From other systems

<!-- Written by tools/translation_docs.py from shoal/translate; change the tables there. -->

```bash
shoal config translate --from open-instruct scripts/train/tulu3/grpo_fast_8b_single_node.sh > run.toml
shoal config translate --from roll rlvr_config.yaml --set data.sources='[{path = "data.jsonl"}]'
shoal config translate --from trl train.py --set model.path=Qwen/Qwen3-0.6B --set run.num_steps=200
mine=(--set model.path=Qwen/Qwen3-0.6B --set data.sources='[{path = "data.jsonl"}]' --set run.num_steps=200)
shoal config translate --from unsloth "${mine[@]}" -- num_generations=8 max_completion_length=256
shoal config translate --from verl "${mine[@]}" -- algorithm.adv_estimator=grpo actor_rollout_ref.rollout.n=8
```

The configuration goes to standard output; a comment on each line shows the setting that it comes from. Notes and
refusals go to standard error. The source may be a launch script, YAML, JSON, Python with the call of a configuration
class, or a notebook with one. Nothing is executed: the reader skips launchers (mason.py, accelerate, ray), follows
variables and simple tests, and reports each value that only a run could show. Settings after the file override it; for
a Python file that parses its command line (TRL's own scripts do) they are its flags:

```bash
shoal config translate --from trl gspo.py -- --model_name_or_path Qwen/Qwen3-0.6B --loss_type grpo --max_steps 100
```

Top-p or min-p without a top-k is translated to `sampling.top_k = 1024`, for every system: the learner normalizes over
the tokens that each token was drawn from ([algorithms](algorithms.md#sampling-from-a-part-of-the-vocabulary)), and
top-k bounds their number. A note says so. A smaller one costs less.

Defaults are those of the version in the tables below. `--as-of 2026-02` takes those of that month, for open-instruct
and TRL where Shoal knows them; the other systems are known in one version each, and refuse the option. A file for TRL
with a field that TRL has no more gets the defaults of its time without being asked, and a note says which: of 2025-02
(0.15) with `vllm_device`, of 2025-12 (0.26) with `max_prompt_length`. Recipes of open-r1 are sources of TRL; they get
its defaults of 2025-05 (0.18), the version that open-r1 requires, and open-r1's reward functions where they name none.
`--checkout DIR` takes open-instruct's defaults, its chat templates by name, and its
prompt files from a clone. The code there is parsed and never run:

```bash
shoal config translate --from open-instruct --checkout open-instruct open-instruct/scripts/train/olmo3/7b_think_rl.sh
```

No field is dropped silently. Each one has one of these fates:

* **mapped** to fields of Shoal, also where the source relies on a default that differs from Shoal's;
* **ignored** with a note: no value of it changes what is trained here;
* **accepted** with a value that is what Shoal does anyway, refused with any other value;
* **outside**: Shoal does not do it, and training is the same without it; it is reported, but blocks nothing;
* **not yet available**: refused, because the feature is still to come;
* **refused**: not planned, or there is a better way; the reason names it.

Reward functions of a Python file for TRL or Unsloth become custom verifiers, called as TRL calls them
([rewards.md](rewards.md#a-function)), if they stand at the top of the file or of a .py file beside it. Its data are
found where the file loads them by `load_dataset`, also inside its own functions. If it changes their rows, for example
with `map`, it is refused with the line: save the rows, and name the file with `--set data.sources`.

Variables of the environment that a launch script exports, and that no word of it uses, are named in a note.

A refusal that would change the training blocks the translation: nothing is printed, and the exit code is 2. Resolve it
with a setting of Shoal's, `--set A.B=VALUE`, or leave the field out on purpose with `--skip NAME` or `--skip all`; the
head of the file then lists it. Nothing leaves out what no configuration is possible without: the model, the data, and
what is wrong with the result. Relative paths of `--set` begin at the current folder.
[configs/recipes](../configs/recipes/README.md) has translations of open-instruct's own scripts.
"""


def page() -> str:
    """Returns the whole page."""
    parts = [HEADER, "## Not yet available\n"]
    parts += [f"* **{feature}**: {reason}" for feature, reason in NOT_YET.items()]
    for system in SYSTEMS.values():
        parts.append(f"\n## {system.name}\n")
        if system.implied:
            parts.append("Always set:\n")
            parts += [f"* `{name} = {_shown(value)}`: {reason}" for name, (value, reason) in system.implied.items()]
            parts.append("")
        parts.append("| field | its default | here | note |\n| --- | --- | --- | --- |")
        parts += [_line(row) for row in sorted(_differing(system), key=lambda row: row.name)]
    return "\n".join(parts) + "\n"


def _differing(system: System) -> list[Field]:
    """Returns all rows; for Unsloth only those that differ from TRL's."""
    if system.name != "unsloth":
        return list(system.table)
    return [row for row in system.table if row not in SYSTEMS["trl"].table]


def _line(row: Field) -> str:
    fate = ", ".join(f"`{name}`" for name in row.to) if row.fate is Fate.MAPPED and row.to else f"*{row.fate.value}*"
    names = "<br>".join(f"`{name}`" for name in (row.name, *row.aliases))
    default = "" if row.default is None else f"`{_shown(row.default)}`"
    return f"| {names} | {default} | {fate} | {row.why.replace('|', '/')} |"


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return " ".join(map(str, value)) or "[]"
    return str(value) or '""'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare the page with the code, write nothing")
    if not parser.parse_args().check:
        PAGE.write_text(page())
    elif not PAGE.exists() or PAGE.read_text() != page():
        raise SystemExit("docs/translation.md differs from shoal/translate; run: make docs")


if __name__ == "__main__":
    main()
