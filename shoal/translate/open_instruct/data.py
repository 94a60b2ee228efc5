"""open-instruct's flags for training data and for its evaluation during training."""

from pathlib import Path
from typing import Any

from shoal.translate.shared.draft import Draft, Source
from shoal.translate.shared.setters import data_table

_EVALUATION = (
    "dataset_mixer_eval_list_splits",
    "local_eval_every",
    "num_evals",
    "eval_on_step_0",
    "eval_pass_at_k",
    "eval_temperature",
    "eval_top_p",
    "eval_response_length",
)


_PLAIN = (["train"], "ground_truth", "messages")
"""The values that Shoal also assumes."""


def num_steps(source: Source, draft: Draft) -> int:
    """Returns the number of train steps. `compose` has already set the number of groups in each step."""
    groups = draft.values.get("grpo.groups_per_step") or 1
    return int(source["total_episodes"] // max(1, source["num_samples_per_prompt_rollout"] * groups))


def compose_data(source: Source, draft: Draft, played: dict[str, str]) -> dict[str, Any]:
    """Sets the sources of the training prompts. Returns the settings that all sources share, including `played`."""
    common: dict[str, Any] = dict(played)
    for name, ours, default in (
        ("ground_truths_key", "ground_truth_column", "ground_truth"),
        ("sft_messages_key", "messages_column", "messages"),
    ):
        if source[name] != default:
            common[ours] = source[name]
    common["weight"] = source["verification_reward"]
    name = source["system_prompt_override_file"]
    if name and (prompt := _system_prompt(name, source, draft)) is not None:
        common["system_prompt"] = prompt
    tables = _sources(source, draft, "dataset_mixer_list", "dataset_mixer_list_splits", common)
    beside = ["dataset_mixer_list_splits", "ground_truths_key", "sft_messages_key"]
    beside += ["system_prompt_override_file"] if "system_prompt" in common else []
    names = [name for name in beside if source.is_set(name) and source[name] not in _PLAIN]
    draft.set("data.sources", tables, source.origin("dataset_mixer_list", "verification_reward", *names))
    return common


def _system_prompt(name: str, source: Source, draft: Draft) -> str | None:
    """Returns the text of a file in the current folder or in the checkout. Refuses a missing file."""
    for folder in [Path(), *([source.checkout.folder] if source.checkout else [])]:
        if (folder / name).is_file():
            return (folder / name).read_text(encoding="utf-8").strip()  # As open-instruct reads it.
    reason = "the current folder has no such file: if it is a file of open-instruct, give a clone by --checkout DIR"
    draft.refuse("system_prompt_override_file", name, "the checkout has no such file" if source.checkout else reason)
    return None


def _sources(source: Source, draft: Draft, name: str, splits_name: str, common: dict[str, Any]) -> list[dict[str, Any]]:
    items, splits = source[name] or [], source[splits_name]
    if len(items) % 2:
        draft.refuse(name, items, "must alternate names of data sets and amounts")
        return []
    pairs = list(zip(items[::2], items[1::2], strict=True))
    if len(splits) == 2 * len(pairs):
        splits = splits[::2]
    if len(splits) not in (1, len(pairs)) and pairs:
        draft.refuse(splits_name, splits, f"must be one split, or one per data set ({len(pairs)})")
        return []
    tables = []
    for index, (data, amount) in enumerate(pairs):
        table, split = data_table(data), splits[index if len(splits) > 1 else 0]
        if split != "train" and "dataset" in table:
            table["split"] = split
        try:
            share = {"fraction": float(amount)} if "." in amount else {"count": int(amount)}
        except ValueError:
            reason = "the amount must be a number: a share with a decimal point, or a count without one"
            draft.refuse(name, f"{data} {amount}", reason)
            return []
        tables.append(table | ({} if share == {"fraction": 1.0} else share) | common)
    return tables


def compose_evaluation(source: Source, draft: Draft, common: dict[str, Any]) -> None:
    """Sets the questions of the evaluation, which have the settings `common` of the training prompts."""
    tables = _sources(source, draft, "dataset_mixer_eval_list", "dataset_mixer_eval_list_splits", common)
    every, every_name, times = source["local_eval_every"], "local_eval_every", source["num_evals"]
    if times and times > 0 and not source.is_set("local_eval_every"):
        every, every_name = max(1, num_steps(source, draft) // times), "num_evals"
    if source["eval_on_step_0"] and every <= 0:
        draft.refuse("eval_on_step_0", True, f"needs local_eval_every above 0 (it is {every})")
    if not tables:
        if not source["dataset_mixer_eval_list"]:
            source.note_unused(*_EVALUATION, why="changes nothing without dataset_mixer_eval_list")
        return
    names = ["dataset_mixer_eval_list", "dataset_mixer_eval_list_splits"]
    draft.set("evaluation.sources", tables, source.origin(*names[: 1 + source.is_set(names[1])]))
    counts = [table.get("count") for table in tables]
    total = sum(count or 0 for count in counts) if all(counts) else 1_000_000
    draft.set("evaluation.num_prompts", total, source.origin("dataset_mixer_eval_list"))
    draft.set("evaluation.every_steps", max(0, every), source.origin(every_name))
    source.copy("eval_on_step_0", "evaluation.on_start")
    source.copy("eval_pass_at_k", "evaluation.samples_per_prompt")
    how = "temperature" if source["eval_temperature"] is None else "eval_temperature"
    source.copy(how, "evaluation.temperature")
    if source["eval_response_length"] is not None:
        source.copy("eval_response_length", "evaluation.max_completion_tokens")
    how = "vllm_top_p" if source["eval_top_p"] is None else "eval_top_p"
    source.copy(how, "evaluation.top_p")
    # open-instruct also evaluates on training questions: most of its scripts name the same data for both.
    draft.set("evaluation.held_out", False, source.origin("dataset_mixer_eval_list"))
