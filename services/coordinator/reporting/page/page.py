"""The report of a run, one HTML page made only from the run's folder.

The page loads nothing: it contains its style and script, and its Content-Security-Policy allows nothing else.
Completions are treated as hostile text: Jinja2 escapes them, and the Content-Security-Policy keeps a browser from
running them as code.
"""

import base64
import hashlib
import time
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from services.coordinator.reporting.episode_words import ending_of, words_of
from services.coordinator.reporting.page import rollouts
from services.coordinator.reporting.page.axes import SHARE, plain, points, signed
from services.coordinator.reporting.page.curves import PANELS, draw_evaluations, draw_panels, how_to_read
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
MAX_CHARS = 20_000
"""Maximum number of characters shown of a text. The middle of a longer text is left out."""
SHORT_CHARS, SHORT_LINES = 400, 8
"""Maximum length of a text that is not folded."""
_PREVIEW_CHARS = 90
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
    """Returns the digest of a text in the format of Content-Security-Policy."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


@dataclass(frozen=True)
class Excerpt:
    """A text in the form in which a page shows it."""

    text: str
    preview: str
    """The beginning and end in one line, if the text is folded; else empty."""
    num_chars: int
    """Number of characters of the whole text."""


def excerpt(text: str) -> Excerpt:
    """Shortens a text for a page, and makes all its characters visible."""
    shown = visible(text)
    if len(text) > MAX_CHARS:
        half = MAX_CHARS // 2
        left_out = f"{len(text) - 2 * half:,} characters left out"
        shown = f"{visible(text[:half])}\n\n[… {left_out} …]\n\n{visible(text[-half:])}"
    is_short = len(shown) <= SHORT_CHARS and shown.count("\n") < SHORT_LINES
    return Excerpt(shown, "" if is_short else _preview(shown), len(text))


def _preview(text: str) -> str:
    """Puts the beginning and the end of a text in one line, cut at spaces if there are any."""
    words = " ".join(text.split())
    if len(words) <= 2 * _PREVIEW_CHARS:
        return words
    first, last = words[:_PREVIEW_CHARS].rsplit(" ", 1)[0], words[-_PREVIEW_CHARS:].split(" ", 1)[-1]
    return f"{first} … {last}"
