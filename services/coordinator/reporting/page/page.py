"""The report of a run, one HTML page made only from the run's folder.

The page loads nothing. It contains its style and script, and its Content-Security-Policy allows nothing else.
Completions are hostile text. Jinja2 escapes them; if that failed, the policy would still keep a browser from running
them.
"""

import base64
import hashlib
import time
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from services.coordinator.reporting.episode_words import ending_of, words_of
from services.coordinator.reporting.page import rollouts
from services.coordinator.reporting.page.axes import SHARE, plain, points, signed
from services.coordinator.reporting.page.curves import PANELS, draw_evaluations, draw_panels, how_to_read
from services.coordinator.reporting.page.excerpt import excerpt
from services.coordinator.reporting.page.run_view import RunView
from services.coordinator.reporting.page.summary import (
    fate_of_groups,
    key_numbers,
    pass_rates,
    rates_by_source,
    settings,
    utc,
    verdict,
)
from services.coordinator.reporting.reward_parts import part_means
from shoal.visible_text import visible

MAX_TABLE_ROWS = 200
_HERE = Path(__file__).parent


def render(run: RunView) -> str:
    """Returns the page as HTML."""
    evaluations = [row for row in run.rows if "eval/num_prompts" in row]
    steps = [row for row in run.rows if "eval/num_prompts" not in row]
    last_step = max((int(row["step"]) for row in run.rows), default=0)
    styles, script = ((_HERE / name).read_text(encoding="utf-8") for name in ("report.css", "report.js"))
    return (
        _environment()
        .get_template("report.html.jinja")
        .render(
            run=run.record,
            written=utc(time.time()),
            key_numbers=list(key_numbers(run.record, steps, evaluations)),
            settings=list(settings(run.record, run.config)),
            reading=how_to_read(len(steps), run.attempts),
            evaluations=evaluations,
            verdict=verdict(evaluations),
            sources=rates_by_source(evaluations[-1]) if evaluations else [],
            evaluation_charts=draw_evaluations(evaluations, last_step, run.attempts, run.changed_questions),
            panels=list(draw_panels(steps, last_step, run.attempts)),
            fate_of_groups=fate_of_groups(run.num_groups, run.num_dropped, has_ended=run.record.state.has_ended),
            groups=run.groups,
            steps=steps[-MAX_TABLE_ROWS:],
            num_steps=len(steps),
            columns=[(panel, metric) for panel in PANELS for metric in panel.metrics],
            styles=styles,
            script=script,
            policy=f"default-src 'none'; style-src '{_digest(styles)}'; script-src '{_digest(script)}'; "
            "base-uri 'none'; form-action 'none'",
        )
    )


def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {
        "visible": visible, "excerpt": excerpt,
        "plain": plain, "signed": signed, "points": points, "share": SHARE.value,
        "pass_rates": pass_rates, "reward_parts": part_means,
        "fate": rollouts.fate_of, "reward": rollouts.reward_of, "outcome": rollouts.outcome_of,
        "how_sampled": rollouts.how_sampled, "bars": rollouts.reward_bars,
        "words": words_of, "ending": ending_of,
    }  # fmt: skip
    return environment


def _digest(text: str) -> str:
    """Returns the digest of a text in the format of the policy."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
