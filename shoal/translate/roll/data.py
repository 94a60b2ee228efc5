"""ROLL's data: files, their domains, and the questions of its validation."""

from collections.abc import Sequence
from typing import Any

from shoal.translate.roll.engine_fields import VALIDATION, VALIDATION_FILES
from shoal.translate.roll.reward_worker import DEFAULT_DOMAIN, RewardWorker, domains_of
from shoal.translate.roll.worker_fields import DATA
from shoal.translate.shared.draft import Draft, Origin, Source
from shoal.translate.shared.setters import data_table

_CODE_LABEL = "test_cases"
"""The column with the tests of a program; other labels are in ground_truth."""


def compose_data(workers: Sequence[RewardWorker], source: Source, draft: Draft) -> None:
    """Sets one source per domain with its share of the run's prompts, or one source per file."""
    paths = source[f"{DATA}.file_name"] or ()
    columns: dict[str, Any] = {}
    if source[f"{DATA}.messages"] != "messages":
        columns["messages_column"] = source[f"{DATA}.messages"]
    if workers:
        columns["verifier_column"] = source[f"{DATA}.tag"]
    shares = source[f"{DATA}.domain_interleave_probs"] or {}
    if paths and len(shares) > 1:
        _by_domain(paths, columns, shares, workers, source, draft)
    elif paths:
        chosen = domains_of(workers).get(next(iter(shares), ""))
        tables = [data_table(path) | columns | _labels(chosen) for path in paths]
        draft.set("data.sources", tables, _origin(source))
    if len(source[f"{DATA}.interleave_probs"] or ()) > 1:
        reason = "to mix files, set fraction or count in data.sources instead"
        draft.refuse(f"{DATA}.interleave_probs", source[f"{DATA}.interleave_probs"], reason, cure="data.sources")
    else:
        source.note_unused(f"{DATA}.interleave_probs", why="a single share changes nothing")
    if source[f"{DATA}.prompt"] is not None and not source.is_set(f"{DATA}.messages"):
        reason = "ROLL uses this column as the prompt, without a chat template, and Shoal does not: give data.sources"
        draft.refuse(f"{DATA}.prompt", source[f"{DATA}.prompt"], reason, cure="data.sources")
    if source[f"{DATA}.max_samples"]:
        reason = "to limit the rows, set count in data.sources"
        draft.refuse(f"{DATA}.max_samples", source[f"{DATA}.max_samples"], reason, cure="data.sources")


def _origin(source: Source) -> Origin:
    """Returns the origin of the sources: the fields that name and choose the rows."""
    names = [f"{DATA}.{name}" for name in ("messages", "tag", "domain_interleave_probs")]
    return source.origin(f"{DATA}.file_name", *filter(source.is_set, names))


def _labels(worker: RewardWorker | None) -> dict[str, Any]:
    """Returns the settings that select the rows of one domain. The domain of unknown tags takes all rows."""
    if worker is None:
        return {}
    code = {"ground_truth_column": _CODE_LABEL} if worker.verifier == "code" else {}
    return code | ({"verifier": worker.verifier} if worker.domain == DEFAULT_DOMAIN else {"labels": list(worker.tags)})


def _by_domain(
    paths: Sequence[str],
    columns: dict[str, Any],
    shares: dict[str, float],
    workers: Sequence[RewardWorker],
    source: Source,
    draft: Draft,
) -> None:
    field = f"{DATA}.domain_interleave_probs"
    by_domain = domains_of(workers)
    if unknown := [domain for domain in shares if domain not in by_domain]:
        reason = f"no worker in rewards scores {', '.join(map(repr, unknown))}: add one, or set data.sources"
        draft.refuse(field, shares, reason, cure="data.sources")
        return
    if not all("path" in data_table(path) for path in paths):
        reason = "Shoal divides only rows of .jsonl and .parquet files by domain: set data.sources"
        draft.refuse(f"{DATA}.file_name", paths, reason, cure="data.sources")
        return
    step = source["rollout_batch_size"]
    prompts = source["max_steps"] * step
    tables = []
    for domain, count in _in_step(shares, step).items():
        worker = by_domain[domain]
        table = {"path": paths[0] if len(paths) == 1 else list(paths), "labels": list(worker.tags)} | columns
        if worker.verifier == "code":
            table["ground_truth_column"] = _CODE_LABEL
        tables.append(table | {"count": max(1, count * prompts // step)})
    draft.set("data.sources", tables, _origin(source))
    draft.notes.append(f"{field}: each domain has its share of the whole run's prompts; in ROLL, of every step's")
    if DEFAULT_DOMAIN in by_domain:
        draft.notes.append(
            f"rows whose tag is in no rewards.*.tag_included are left out; ROLL gives them to {DEFAULT_DOMAIN}"
        )


def _in_step(shares: dict[str, float], step: int) -> dict[str, int]:
    """Returns the number of prompts of a step for each domain, rounded as in ROLL: the last domain takes the rest."""
    *first, last = shares
    counts = {domain: int(shares[domain] * step) for domain in first}
    return counts | {last: step - sum(counts.values())}


def compose_evaluation(source: Source, draft: Draft) -> None:
    """Sets the questions of ROLL's validation, and how they are answered."""
    field = VALIDATION_FILES
    names = [f"{VALIDATION}.{name}" for name in ("temperature", "top_p", "top_k", "num_return_sequences")]
    lengths = ("val_prompt_length", "val_sequence_length")
    if not source[field]:
        unused = ("eval_steps", "skip_initial_validation", *names, *lengths)
        source.note_unused(*unused, why=f"changes nothing without {field}")
        return
    columns = {"verifier_column": source[f"{DATA}.tag"]}
    if source[f"{DATA}.messages"] != "messages":
        columns["messages_column"] = source[f"{DATA}.messages"]
    draft.set("evaluation.sources", [data_table(path) | columns for path in source[field]], source.origin(field))
    draft.set("evaluation.num_prompts", 1_000_000, source.origin(field))
    draft.set("evaluation.held_out", False, Origin("ROLL asks every question, also those that are trained on", False))
    source.copy("eval_steps", "evaluation.every_steps")
    draft.set("evaluation.on_start", not source["skip_initial_validation"], source.origin("skip_initial_validation"))
    temperature, top_p, top_k, samples = names
    source.copy(temperature, "evaluation.temperature")
    if source[temperature]:
        source.copy(top_p, "evaluation.top_p")
        draft.set("evaluation.top_k", max(0, source[top_k] or 0), source.origin(top_k))
        source.copy(samples, "evaluation.samples_per_prompt")
    else:
        source.note_unused(*names[1:], why="at temperature 0 all answers to a question are the same")
    prompt, whole = (source[name] for name in lengths)
    if whole:
        length = whole - (prompt or source["prompt_length"])
        draft.set("evaluation.max_completion_tokens", length, source.origin(*lengths))
