"""Writes what the rest of Shoal needs to know about the verifiers, from their declarations in services/reward.

shoal/config/tables/verifiers.py gets their names and options, for processes that check data and configurations
and cannot import the services; docs/rewards.md gets the table of verifiers.

python tools/verifier_docs.py            rewrites both files
python tools/verifier_docs.py --check    reports whether they are current, and changes nothing
"""

import argparse
import inspect
from collections.abc import Iterable, Iterator
from pathlib import Path

from services.reward.common.verifier import Verifier
from services.reward.judge.labels import JUDGED_LABELS, RUBRIC_DESCRIPTION
from services.reward.judge.scorer import JudgeScorer
from services.reward.model.scorer import DESCRIPTION as MODEL_DESCRIPTION
from services.reward.model.scorer import ModelScorer
from services.reward.verifiers.registry import ALL_VERIFIERS

ROOT = Path(__file__).resolve().parent.parent
CONFIG = ROOT / "shoal" / "config" / "tables" / "verifiers.py"
PAGE = ROOT / "docs" / "rewards.md"
BEGIN = "<!-- Written by tools/verifier_docs.py from the verifiers' declarations. -->\n"
END = "<!-- End of the table. -->\n"

CONFIG_HEADER = '''\
"""The names of the built-in verifiers and their options: the table `reward.verifiers`.

Written by tools/verifier_docs.py from the declarations in services/reward, which this library cannot import; change
those declarations and run `make docs`. The names are the labels of the data's verifier column, including
open-instruct's labels.
"""

from typing import Literal

from pydantic import Field

from shoal.config.tables.section import Section
'''


def config_module() -> str:
    """Returns the text of shoal/config/tables/verifiers.py."""
    judged, models = JudgeScorer.NAMES, ModelScorer.NAMES
    unlabeled = [*(name for name, label in JUDGED_LABELS.items() if label.label_is == "ignored"), *models]
    names = "\n".join(
        [
            _names("RULE_VERIFIERS", ALL_VERIFIERS, "Verifiers that judge by a rule, in the reward service's pool."),
            _names(
                "JUDGE_VERIFIERS", judged, "Verifiers whose judge is a language model, so they need `reward.judge`."
            ),
            _names("MODEL_VERIFIERS", models, "Verifiers that are reward models, so they need `reward.model`."),
            _names("UNLABELED_VERIFIERS", unlabeled, "Verifiers that read no label, so data may omit the label."),
            _names("ZERO_AT_BEST", _with_best("zero"), "Verifiers whose best value is 0: penalties and `passthrough`."),
            _names(
                "MEASURES",
                [*_with_best("measure"), *models],
                "Verifiers whose value 1 does not mean that a completion is correct.",
            ),
            "BUILT_IN_VERIFIERS = RULE_VERIFIERS | JUDGE_VERIFIERS | MODEL_VERIFIERS\n",
        ]
    )
    with_options = {name: verifier for name, verifier in ALL_VERIFIERS.items() if verifier.options}
    sections = dict.fromkeys(verifier.options for verifier in with_options.values() if verifier.options)
    classes = [inspect.getsource(section).rstrip("\n") + "\n" for section in sections]
    fields = [
        f'    {name}: {verifier.options.__name__} = {verifier.options.__name__}()\n    """{verifier.summary}"""\n'
        for name, verifier in with_options.items()
        if verifier.options
    ]
    config = "class VerifiersConfig(Section):\n" + "".join(fields)
    return "\n\n".join([f"{CONFIG_HEADER}\n{names}", *classes, config])


def _with_best(best: str) -> list[str]:
    return [name for name, verifier in ALL_VERIFIERS.items() if verifier.best == best]


def _names(constant: str, names: Iterable[str], meaning: str) -> str:
    quoted = [f'"{name}"' for name in sorted(names)]
    declared = f"{constant} = frozenset({{{', '.join(quoted)}}})"
    if len(declared) > 120:
        rows = "".join(f"        {name},\n" for name in quoted)
        declared = f"{constant} = frozenset(\n    {{\n{rows}    }}\n)"
    return f'{declared}\n"""{meaning}"""\n'


def page() -> str:
    """Returns docs/rewards.md with the current table."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + table() + END + after


def table() -> str:
    """Returns the table of all built-in verifiers, by name."""
    rows = "".join(f"| `{name}` | {' | '.join(cells)} |\n" for name, *cells in sorted(_rows()))
    head = '| name | what it judges | value | says "correct" | same answers, for maj@k | needs |'
    return f"\n{head}\n| --- | --- | --- | --- | --- | --- |\n{rows}\n"


def _rows() -> Iterator[tuple[str, ...]]:
    for name, verifier in ALL_VERIFIERS.items():
        needs = [f"`shoal[{verifier.extra}]`"] if verifier.extra != "reward" else []
        needs += ["token ids"] if verifier.reads in ("num_tokens", "token_ids") else []
        says = _says(verifier)
        yield name, verifier.summary.rstrip("."), verifier.values, says, verifier.same_answers, ", ".join(needs)
    for name, label in JUDGED_LABELS.items():
        yield name, _first_line(label.description), "0 to 1", "yes", "", "`reward.judge`"
    yield "rubric", _first_line(RUBRIC_DESCRIPTION), "-1 to 1", "yes", "", "`reward.judge`"
    for name in ModelScorer.NAMES:
        yield name, _first_line(MODEL_DESCRIPTION), "any number, or 0 to 1", "", "", "`reward.model`"


def _says(verifier: Verifier) -> str:
    """Says whether its best value calls a completion correct."""
    if verifier.best != "correct":
        return ""
    return "yes, where it reaches 1" if hasattr(verifier.options, "reaches_1") else "yes"


def _first_line(description: str) -> str:
    return description.partition("\n")[0].rstrip(".")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare the files with the declarations, write nothing")
    is_check = parser.parse_args().check
    for path, text in ((CONFIG, config_module()), (PAGE, page())):
        if not is_check:
            path.write_text(text)
        elif path.read_text() != text:
            raise SystemExit(f"{path.relative_to(ROOT)} does not match the verifiers' declarations; run: make docs")


if __name__ == "__main__":
    main()
