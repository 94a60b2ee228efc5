"""Progress of a run: its events as lines for people."""

import errno
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from google.protobuf import json_format

from services.coordinator.reporting.reward_parts import meaning_of_correct, part_words
from services.coordinator.reporting.unscored import Unscored
from services.coordinator.rollout.evaluation.history import RateChange
from shoal.quantities import counted, format_duration
from shoal.v1 import coordinator_pb2 as pb


class Column(NamedTuple):
    """One metric in the line of a step."""

    label: str
    metric: str
    format: str
    """A format string for the value."""


TOKENS_PER_SECOND = "tokens per second of the whole step"
"""The name of a quotient of two metrics, which is not itself a metric of the run."""
_ALL_WRONG = "batch/all_wrong_prompts"
STEP_COLUMNS = (
    Column("reward", "objective/scores", "{:.2f}"),
    Column("correct", "objective/verifiable_correct_rate", "{:.0%}"),
    Column("all wrong", _ALL_WRONG, "{:.0f}"),
    Column("loss", "loss/policy_avg", "{:+.4f}"),
    Column("kl", "objective/kl3", "{:.4f}"),
    Column("entropy", "policy/entropy_avg", "{:.2f}"),
    Column("grad", "optim/grad_norm", "{:.2f}"),
    Column("gap", "val/logprob_gap_mean", "{:.1e}"),
    Column("stale", "staleness/max", "{:.0f}"),
    Column("tok/s", TOKENS_PER_SECOND, "{:.0f}"),
    Column("s", "time/step", "{:.1f}"),
)
_STYLES = {
    "step": "",
    "evaluation": "bold green",
    "completions": "",
    "restored": "bold",
    "error": "bold red",
    "reward_outage": "bold red",
    "environment_outage": "bold red",
    "restarting": "yellow",
    "interrupted": "bold",
    "checkpoint_failed": "red",
    "checkpoint_damaged": "red",
    "segment_damaged": "red",
    "mirror_failed": "red",
    "tracker_failed": "yellow",
    "tools_not_in_prompt": "yellow",
    "rendering_differs": "yellow",
    "prompts_left_out": "yellow",
    "inputs_changed": "yellow",
    "worker_notice": "yellow",
    "worker_lost": "yellow",
    "worker_restarting": "yellow",
    "worker_failed": "red",
    "worker_out_of_reach": "yellow",
    "worker_quarantined": "red",
    "publish_failed": "yellow",
    "scoring_repeated": "yellow",
    "group_reissued": "yellow",
    "group_dropped": "yellow",
    "step_skipped": "yellow",
    "unscored": "yellow",
    "process": "yellow",
    "notice": "bold",
}
_STATE_STYLES = {"PAUSED": "bold yellow", "FAILED": "bold red"}
"""The styles of the run states that a person must notice."""
LEGEND = (
    "gap: mean difference between the engine's and the learner's log-probability of a token, which should stay small; "
    "stale: age, in steps, of the oldest weights that sampled the trained tokens (at most grpo.max_staleness)"
)
ALL_WRONG_LEGEND = (
    "all wrong: number of trained groups that have no correct completion, so that only shaping makes their rewards "
    "differ; grpo.difficulty_low = 0 leaves out these groups"
)
_ERASE_LINE = "\x1b[1A\x1b[2K"
"""Moves the cursor up by one line, and erases that line."""
# Events that are too frequent for people; `shoal run watch --output json` has them.
_QUIET = frozenset({"publish"})
_OF_GROUPS = frozenset({"group_reissued", "group_dropped", "scoring_repeated", "episode_replayed"})
"""Kinds of events whose messages differ only by the name of a group or episode if their cause is the same."""


def step_line(step: int, num_steps: int, metrics: Mapping[str, float]) -> str:
    """Formats a train step as one readable line, without the metrics that were not measured.

    Example: "step  3/20  reward 0.31 (gsm8k 0.33, overlong -0.02)  correct 31%  loss +0.0123  stale 1  6.3 s". The
    parentheses have the means of the reward's parts.
    """
    if "val/num_step_tokens" in metrics and metrics.get("time/step", 0) > 0:
        metrics = {**metrics, TOKENS_PER_SECOND: metrics["val/num_step_tokens"] / metrics["time/step"]}
    width = len(str(num_steps))
    parts = [f"step {step:>{width}}/{num_steps}"]
    for column in STEP_COLUMNS:
        value = metrics.get(column.metric)
        if value is None or (column.metric == _ALL_WRONG and not value):
            continue
        text = column.format.format(value)
        if column.label == "reward" and (words := part_words(metrics)):
            text += f" ({words})"
        parts.append(f"{text} s" if column.label == "s" else f"{column.label} {text}")
    return "  ".join(parts)


class _Lines(logging.Handler):
    """Passes the message of each record on."""

    def __init__(self, write: Callable[[str], None]) -> None:
        super().__init__()
        self._write = write

    def emit(self, record: logging.LogRecord) -> None:
        self._write(record.getMessage())


class ProgressView:
    """Writes events as lines, with colors on a terminal. Each line begins with the elapsed time in seconds."""

    def __init__(self, began_s: float | None = None, *, outlives_output: bool = False) -> None:
        """Counts time from `began_s`, in seconds since the epoch, or from now.

        With `outlives_output` a line that cannot be written is skipped: the terminal may be closed, the same Ctrl-C may
        have ended `tee`, or the disk of a log may be full.
        """
        self._outlives_output = outlives_output
        self._began_s = time.time() if began_s is None else began_s
        self._last_event_s: float | None = None
        self._evaluations: list[dict[str, Any]] = []
        self._exported = ""
        self._legends: set[str] = set()
        self._last_message = ""
        self._told_of_groups: set[tuple[str, str]] = set()
        """Kinds and reasons of the events about groups that were shown since the last step."""
        self._console: Any = None
        if sys.stdout.isatty():
            from rich.console import Console

            self._console = Console(highlight=False)
        self._ends_with_progress = False

    def write(self, text: str, kind: str = "", time_s: float | None = None, *, style: str = "") -> None:
        """Writes one line.

        On a terminal the line has a style, by default the style of the event kind, and the next line replaces a line of
        the kind "progress". `time_s` is the time of the line in seconds since the epoch, by default the current time.
        """
        line = f"[{(time.time() if time_s is None else time_s) - self._began_s:6.1f} s] {text}"
        try:
            self._print(line, kind, style or _STYLES.get(kind, "dim"))
        except OSError as error:
            if not self._outlives_output:
                raise
            if error.errno != errno.ENOSPC:  # Nobody reads the output any more, including Python's flush at exit.
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    def _print(self, line: str, kind: str, style: str) -> None:
        if self._console is None:
            print(line, flush=True)
            return
        from rich.text import Text

        if self._ends_with_progress:
            print(_ERASE_LINE, end="")
        self._ends_with_progress = kind == "progress"
        shown = Text(line, style=style)
        if self._ends_with_progress:
            shown.truncate(self._console.width, overflow="ellipsis")  # A wrapped line could not be replaced.
        self._console.print(shown, soft_wrap=True)

    @contextmanager
    def showing_logs(self, name: str) -> Iterator[None]:
        """Within the block, writes the records of a logger and its children as lines of progress."""
        logger, handler = logging.getLogger(name), _Lines(lambda text: self.write(text, "progress"))
        level = logger.level
        logger.setLevel(logging.INFO)
        logger.addHandler(handler)
        try:
            yield
        finally:
            logger.removeHandler(handler)
            logger.setLevel(level)

    def show(self, event: pb.RunEvent) -> None:
        """Writes one event, with the time at which it happened."""
        self._last_event_s = event.event_time.ToNanoseconds() / 1e9
        if event.kind == "step":
            self._show_step(json_format.MessageToDict(event.attributes), self._last_event_s)
            return
        self.remember(event)
        # The event that pauses a run has the same message as the following change of state.
        is_said = event.kind == "state" and event.message == self._last_message
        self._last_message = event.message
        if event.kind == "step_skipped":
            self._told_of_groups.clear()
        if event.kind not in _QUIET and not is_said and not _is_repeated(event) and not self._is_told_of_groups(event):
            self.write(event.message, event.kind, self._last_event_s, style=_style_of(event))

    def _is_told_of_groups(self, event: pb.RunEvent) -> bool:
        """Whether the same event of another group or episode was shown since the last step. With another
        cause, such as the end of another process, it counts as another event."""
        if event.kind not in _OF_GROUPS:
            return False
        attributes = json_format.MessageToDict(event.attributes)
        name = str(attributes.get("group_id") or attributes.get("episode") or event.message)
        told = (event.kind, event.message.replace(name, ""))
        is_told = told in self._told_of_groups
        self._told_of_groups.add(told)
        return is_told

    def _show_step(self, attributes: Mapping[str, Any], time_s: float) -> None:
        self._told_of_groups.clear()
        metrics = attributes.get("metrics", {})
        legends = [LEGEND, meaning_of_correct(attributes.get("correct_by", ()))]
        legends += [ALL_WRONG_LEGEND] if metrics.get(_ALL_WRONG) else []
        for legend in filter(None, legends):
            if legend not in self._legends:
                self._legends.add(legend)
                self.write(legend, time_s=time_s)
        line = step_line(int(attributes["step"]), int(attributes["num_steps"]), metrics)
        if remaining_s := attributes.get("remaining_s"):
            line += f"  left {format_duration(remaining_s)}"
        self.write(line, "step", time_s)
        if "unscored" in attributes:
            self.write(f"  {Unscored.from_attributes(attributes['unscored'])}", "unscored", time_s)

    def remember(self, event: pb.RunEvent) -> None:
        """Records an event for the summary, without writing."""
        if event.kind == "evaluation":
            self._evaluations.append(json_format.MessageToDict(event.attributes))
        if event.kind == "restored":  # Discard everything after the checkpoint.
            step = event.attributes["policy_version"]
            self._evaluations = [values for values in self._evaluations if values["policy_version"] <= step]
            self._exported = ""
        if event.kind == "exported":
            self._exported = str(event.attributes["path"])

    def summarize(self, run: pb.Run) -> None:
        """Writes the outcome of a run: evaluations, trained model, folder. Each line has the time of the last event."""
        if line := evaluation_summary(self._evaluations[-1] if self._evaluations else {}):
            self.write(line, "evaluation", self._last_event_s)
        if self._exported:
            self.write(f"the trained model: {self._exported}", "notice", self._last_event_s)
        self.write(f"the run's folder: {run.path}", "notice", self._last_event_s)


def _style_of(event: pb.RunEvent) -> str:
    """Returns the style of an event if the style depends on more than the event's kind; else ""."""
    state = json_format.MessageToDict(event.attributes).get("state", "") if event.kind == "state" else ""
    return _STATE_STYLES.get(state, "")


def _is_repeated(event: pb.RunEvent) -> bool:
    """Whether a skipped step is not shown. Of skipped steps in a row, the 1st, 2nd, 4th, 8th and so on are shown."""
    attributes = json_format.MessageToDict(event.attributes)
    num_in_a_row = int(attributes.get("num_in_a_row", 0)) if event.kind == "step_skipped" else 0
    return num_in_a_row & (num_in_a_row - 1) > 0


def evaluation_summary(last: Mapping[str, Any]) -> str:
    """Describes how the run's last evaluation, given as its event's attributes, differs from the first.

    Returns "" if they cannot be compared. Example: "held-out questions answered correctly: 12.5% at step 0, 61.0% at
    step 20: 48.5 points better (95% interval: +41.1 to +55.4), over the same 200 questions"
    """
    if "change" not in last:
        return ""
    change = RateChange.from_attributes(last["change"])
    return (
        f"held-out questions answered correctly: {change.rate_before:.1%} at step {change.since_step}, "
        f"{change.rate:.1%} at step {last['policy_version']:.0f}: {change}, "
        f"over the same {counted(change.num_questions, 'question')}"
    )
