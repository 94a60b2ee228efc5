"""A summary of a run: its key numbers, its settings, and the outcomes of its groups."""

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from services.coordinator.reporting.page.axes import SHARE, plain
from services.coordinator.reporting.page.curves import Row
from services.coordinator.store.rows import GroupState
from services.coordinator.store.run_record import RunRecord
from shoal.config import RunConfig
from shoal.config.tables.data import SourceConfig
from shoal.config.tables.lora import LoraConfig
from shoal.quantities import counted


class Fact(NamedTuple):
    """A named value with a remark."""

    name: str
    value: str
    note: str = ""


def key_numbers(record: RunRecord, steps: Sequence[Row], evaluations: Sequence[Row]) -> Iterator[Fact]:
    """Yields the key numbers: the progress of the run, and whether the policy improved."""
    yield Fact("Train steps", f"{record.policy_version:,}", f"of {record.num_steps:,}")
    yield from _latest("Reward", steps, "objective/scores", plain)
    yield from _latest("Correct in training", steps, "objective/verifiable_correct_rate", SHARE.value)
    yield from _latest("Correct on held-out questions", evaluations, "eval/verifiable_correct_rate", SHARE.value)
    yield from _latest("Reward on held-out questions", evaluations, "eval/scores", plain)
    if record.attempt and steps and (share := steps[-1].get("time/effective_share")) is not None:
        yield Fact("Effective time", SHARE.value(share), "the rest is start-up, restarts and repeated steps")


def _latest(name: str, rows: Sequence[Row], metric: str, text: Callable[[float], str]) -> Iterator[Fact]:
    measured = [row for row in rows if metric in row]
    if measured:
        first, last = measured[0], measured[-1]
        note = f"{text(first[metric])} at step {first['step']:,.0f}" if len(measured) > 1 else ""
        yield Fact(name, text(last[metric]), note)


def settings(record: RunRecord, config: RunConfig | None) -> Iterator[Fact]:
    """Yields the settings and the start time of the run. Yields less if the run's configuration cannot be read."""
    if config is not None:
        grpo = config.grpo
        yield Fact("Model", config.model.path)
        yield Fact("Prompts", ", ".join(map(_source, config.data.sources)))
        yield Fact("Step", f"{counted(grpo.groups_per_step, 'group')} of {counted(grpo.group_size, 'completion')}")
        yield Fact("Completion", f"at most {counted(config.sampling.max_completion_tokens, 'token', ',')}")
        yield Fact("Staleness", f"at most {grpo.max_staleness}")
        yield Fact("Learning rate", plain(config.learner.learning_rate))
        if config.learner.lora.is_on:
            yield _adapters(config.learner.lora)
    yield Fact("Began", utc(record.create_time_s))
    if record.attempt:
        yield Fact("Resumed", "once" if record.attempt == 1 else counted(record.attempt, "time"))
    yield Fact("Folder", str(record.folder))


def _adapters(lora: LoraConfig) -> Fact:
    notes = [f"alpha {lora.alpha}", f"on {' and '.join(lora.target_modules)}"]
    notes += ["rsLoRA"] if lora.rslora else []
    notes += [f"model in {lora.quantization}"] if lora.quantization != "none" else []
    return Fact("Adapters", f"rank {lora.rank}", ", ".join(notes))


def _source(source: SourceConfig) -> str:
    paths = source.path if isinstance(source.path, list) else [source.path or ""]
    return source.task or source.dataset or ", ".join(paths)


def utc(time_s: float) -> str:
    """Writes a time."""
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(time_s))


class SourceRates(NamedTuple):
    """The rates of the answers to one source's questions."""

    source: str
    correct_rate: float
    low: float | None
    high: float | None
    reward: float


def rates_by_source(evaluation: Row) -> list[SourceRates]:
    """Returns the rates of each source in an evaluation; none if all questions come from one source."""
    start, end = "eval/source/", "/correct_rate"
    sources = [name[len(start) : -len(end)] for name in evaluation if name.startswith(start) and name.endswith(end)]
    rates = [
        SourceRates(
            source,
            evaluation[f"{start}{source}{end}"],
            evaluation.get(f"{start}{source}{end}_low"),
            evaluation.get(f"{start}{source}{end}_high"),
            evaluation[f"{start}{source}/scores"],
        )
        for source in sources
    ]
    return rates if len(rates) > 1 else []


def pass_rates(evaluation: Row) -> list[tuple[int, float]]:
    """Returns pass@k of an evaluation for each k above 1."""
    start = "eval/pass_at_"
    ks = [int(name.removeprefix(start)) for name in evaluation if re.fullmatch(f"{start}[0-9]+", name)]
    return [(k, evaluation[f"{start}{k}"]) for k in sorted(ks) if k > 1]


def verdict(evaluations: Sequence[Row]) -> str:
    """Describes the last scored evaluation, and whether it differs from the first by more than noise."""
    rate, change = "eval/verifiable_correct_rate", "eval/correct_rate_change"
    scored = [row for row in evaluations if rate in row or "eval/scores" in row]
    if not scored:
        return "No answer is scored."
    last = scored[-1]
    if rate not in last:
        return (
            f"The policy of step {last['step']:,.0f} earns {plain(last['eval/scores'])} on average for "
            f"{counted(last['eval/num_prompts'], 'held-out question', ',.0f')}. "
            "No verifier says which answers are correct."
        )
    text = (
        f"The policy of step {last['step']:,.0f} answers {SHARE.value(last[rate])} of "
        f"{counted(last['eval/num_prompts'], 'held-out question', ',.0f')} correctly"
    )
    if change not in last:
        return f"{text}."
    points, low, high = (100 * last[name] for name in (change, f"{change}_low", f"{change}_high"))
    noise = "within noise" if low <= 0 <= high else "more than noise"
    direction = "more" if points >= 0 else "fewer"
    return f"{text}: {abs(points):.1f} points {direction} than at first, which is {noise}."


def fate_of_groups(num_groups: Mapping[str, int], num_dropped: Mapping[str, int], *, has_ended: bool) -> str:
    """Describes the outcomes of a run's groups, from their numbers by state and drop reason; empty without groups."""
    under_way = (GroupState.ISSUED, GroupState.SAMPLED, GroupState.SCORED)
    num_under_way = sum(num_groups.get(state, 0) for state in under_way)
    parts = [f"{counted(num_groups.get(GroupState.TRAINED, 0), 'group', ',')} trained on"]
    if num_dropped:
        reasons = sorted(num_dropped.items(), key=lambda item: -item[1])
        listed = ", ".join(f"{count:,} {reason}" for reason, count in reasons)
        parts.append(f"{sum(num_dropped.values()):,} dropped ({listed})")
    if num_under_way:
        parts.append(f"{num_under_way:,} {'discarded when the run ended' if has_ended else 'under way'}")
    return f"{', '.join(parts)}." if num_groups else ""
