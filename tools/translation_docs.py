"""Writes docs/translation.md from the tables of shoal/config/translate: what becomes of each field of other systems.

python tools/translation_docs.py            rewrites the page
python tools/translation_docs.py --check    says whether it is current, and changes nothing
"""

import argparse
from pathlib import Path

from shoal.config.translate import SYSTEMS, System
from shoal.config.translate.fields import Fate, Field
from shoal.config.translate.not_yet import NOT_YET

PAGE = Path(__file__).resolve().parent.parent / "docs" / "translation.md"

HEADER = """\
# From other systems

<!-- Written by tools/translation_docs.py from shoal/config/translate; change the tables there. -->

```bash
shoal config translate --from open-instruct scripts/train/tulu3/grpo_fast_8b_single_node.sh > run.toml
shoal config translate --from roll rlvr_config.yaml --set data.sources='[{path = "data.jsonl"}]'
shoal config translate --from trl train.py --set model.path=Qwen/Qwen3-0.6B --set run.num_steps=200
mine=(--set model.path=Qwen/Qwen3-0.6B --set data.sources='[{path = "data.jsonl"}]' --set run.num_steps=200)
shoal config translate --from unsloth "${mine[@]}" -- num_generations=8 max_completion_length=256
shoal config translate --from verl "${mine[@]}" -- algorithm.adv_estimator=grpo actor_rollout_ref.rollout.n=8
```

The configuration goes to standard output, each line with the words of the source beside it; notes and refusals go to
standard error. A file may be a launch script, YAML, JSON, Python with the call of a configuration class, or a notebook
with one. Nothing is run: launchers (mason.py, accelerate, ray) are looked through, variables and simple tests followed,
and a value that only running would tell is named as missing. Settings behind the file go on top of it.

Every field is one of these, and none is dropped silently:

* **mapped** to fields of ours, also where the source leaves it at a default that differs from ours;
* **ignored**, with a note: no value of it changes what is trained here;
* **accepted** where it says what Shoal does anyway, and refused where it says something else;
* **outside**: not done by Shoal, and training is the same without it; named, and no obstacle;
* **not yet available**: refused, because the feature is still to come;
* **refused**: not planned, or another way is better; the reason says which.

With a refusal that would change the training nothing is printed and the exit code is 2. `--set A.B=VALUE` answers it
with a setting of ours; `--skip NAME`, or `--skip all`, leaves it out knowingly, and says so at the head of the file.
[configs/recipes](../configs/recipes/README.md) holds translations of open-instruct's own scripts.
"""


def page() -> str:
    """The whole page."""
    parts = [HEADER, "## Not yet available\n"]
    parts += [f"* **{feature}**: {reason}" for feature, reason in NOT_YET.items()] or ["Nothing at present."]
    for system in SYSTEMS.values():
        parts.append(f"\n## {system.name}\n")
        if system.implied:
            parts.append("Whatever is given:\n")
            parts += [f"* `{name} = {_shown(value)}`: {reason}" for name, (value, reason) in system.implied.items()]
            parts.append("")
        parts.append("| field | default there | here | |\n| --- | --- | --- | --- |")
        parts += [_line(row) for row in sorted(_differing(system), key=lambda row: row.name)]
    return "\n".join(parts) + "\n"


def _differing(system: System) -> list[Field]:
    """All rows; of Unsloth's only those that are not TRL's."""
    if system.name != "unsloth":
        return list(system.table)
    return [row for row in system.table if row not in SYSTEMS["trl"].table]


def _line(row: Field) -> str:
    fate = ", ".join(f"`{name}`" for name in row.to) if row.fate is Fate.MAPPED and row.to else f"*{row.fate.value}*"
    names = "<br>".join(f"`{name}`" for name in (row.name, *row.aliases))
    default = "" if row.default is None else f"`{_shown(row.default)}`"
    feature = next((name for name, reason in NOT_YET.items() if row.fate is Fate.NOT_YET and row.why == reason), "")
    return f"| {names} | {default} | {fate} | {(feature or row.why).replace('|', '/')} |"


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
        raise SystemExit("docs/translation.md is not what shoal/config/translate says; run: make docs")


if __name__ == "__main__":
    main()
