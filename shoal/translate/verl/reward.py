"""verl's reward model, reward function and reward managers."""

from pathlib import Path
from typing import Any

from shoal.translate.shared.draft import Draft, Source
from shoal.translate.shared.setters import run_name
from shoal.translate.shared.toml import toml_value
from shoal.translate.verl.fields import OVERLONG
from shoal.translate.verl.names import TRUTH

_MANAGERS = ("naive", "dapo", "batch", "prime", "limited", "rate_limited", "gdpo", None)
_GSM8K, _MATH = ("openai/gsm8k",), ("lighteval/math", "digitallearninggmbh/math-lighteval", "huggingfaceh4/math-500")
_DAPO = ("math_dapo", "math_dapo_reasoning")
_ROW_COLUMNS = ("ground_truth_column", "verifier_column")
"""Settings of a source whose rows name their own verifiers."""


def compose_scorers(source: Source, draft: Draft) -> None:
    """Maps the names of data sets, by which verl chooses scorers, to verifiers."""
    if source["reward_model.enable"] or source["custom_reward_function.path"]:
        return
    remap = dict.fromkeys(_GSM8K, "gsm8k") | dict.fromkeys((*_MATH, *_DAPO), "math")
    draft.set("reward.remap", remap, source.origin("data.reward_fn_key"))
    draft.notes.append(
        f"verl scores a row with its own code, by the column {source['data.reward_fn_key']}; reward.remap names the "
        "nearest verifier, which reads more forms of an answer (gsm8k reads the last number, even without ####). To "
        "score as verl does, give verl's function as custom_reward_function"
    )


def compose_reward_model(source: Source, draft: Draft) -> None:
    """Replaces the verifiers of the rows by a reward model. The sources must be set."""
    is_on, path = source["reward_model.enable"], source["reward_model.model.path"]
    if not is_on:
        source.note_unused("reward_model.model.path", why="changes nothing without reward_model.enable")
        return
    if not path:
        draft.refuse("reward_model.enable", True, "reward_model.model.path must name the model", cure="reward.model")
        return
    draft.set("reward.model", {"path": path}, source.origin("reward_model.enable", "reward_model.model.path"))
    for name in ("data.sources", "evaluation.sources"):
        if tables := draft.values.get(name):
            draft.values[name] = [table | {"verifier": "reward_model"} for table in tables]


def compose_custom_reward(source: Source, draft: Draft) -> None:
    """Makes a custom reward function the verifier of all sources of data. The sources must be set."""
    names = [f"custom_reward_function.{name}" for name in ("path", "name", "reward_kwargs")]
    path, function, arguments = (source[name] for name in names)
    parts = _parts(source, draft)
    if not path:
        source.note_unused(*names, why="changes nothing without custom_reward_function.path")
        return
    manager = source["reward_model.reward_manager"]
    if source["reward_model.enable"] or manager in ("batch", "prime"):
        reason = f"verl calls it differently with {'a reward model' if manager not in ('batch', 'prime') else manager}"
        draft.refuse(names[0], path, f"{reason}: write it as a custom verifier (docs/rewards.md)", cure="reward.custom")
        return
    function = function or "compute_score"
    verifiers = list(parts) or [run_name(function)]
    table: dict[str, Any] = {"file": str(Path(path).expanduser().absolute()), "function": function}
    if path.startswith("pkg://"):
        table = {"entry_point": f"{path.removeprefix('pkg://').strip('/').replace('/', '.')}:{function}"}
    elif not Path(path).is_absolute():
        draft.notes.append(
            f"{names[0]} = {path}: the path begins at the current folder; the reward service needs this file"
        )
    table |= {"convention": "verl"} | ({"arguments": dict(arguments)} if arguments else {})
    custom = {name: table | ({"score_key": parts[name]} if parts else {}) for name in verifiers}
    draft.set("reward.custom", custom, source.origin(*(each for each in names if source.is_set(each))))
    verifier = verifiers if parts else verifiers[0]
    labels = {"data_source": source["data.reward_fn_key"], "ground_truth": TRUTH, "extra_info": "extra_info"}
    draft.notes.append(
        f"{names[0]}: {function} judges every row; for sources in --set data.sources, set verifier = "
        f"{toml_value(verifier)} and label_columns = {toml_value(labels)}"
    )
    for ours in ("data.sources", "evaluation.sources"):
        if tables := draft.values.get(ours):
            kept = ({key: item for key, item in each.items() if key not in _ROW_COLUMNS} for each in tables)
            draft.values[ours] = [each | {"verifier": verifier, "label_columns": labels} for each in kept]


def _parts(source: Source, draft: Draft) -> dict[str, str]:
    """Sets the weights of GDPO's parts of the reward. Returns verifier -> entry of the function's table, or {}."""
    names = ("algorithm.gdpo_reward_keys", "algorithm.gdpo_reward_weights")
    keys, weights = (source[name] for name in names)
    if source["algorithm.adv_estimator"] != "gdpo" or not keys:
        source.note_unused(*names, why="changes nothing without adv_estimator = gdpo and gdpo_reward_keys")
        return {}
    if not source["custom_reward_function.path"]:
        reason = "verl's own scorer returns these parts: give data whose rows name a verifier for each part"
        draft.refuse(names[0], keys, reason, cure="data.sources")
        return {}
    if weights is not None and len(weights) != len(keys):
        draft.refuse(
            names[1],
            weights,
            f"give a weight for each of the {len(keys)} {names[0]} (given: {len(weights)})",
            cure="reward.weights",
        )
    elif weights is not None:
        draft.set("reward.weights", dict(zip(map(run_name, keys), weights, strict=True)), source.origin(names[1]))
    draft.notes.append(f"{names[0]}: each key becomes a verifier, and Shoal calls the function once for each")
    return {run_name(key): key for key in keys}


def compose_overlong(source: Source, draft: Draft) -> None:
    """Sets DAPO's overlong buffer."""
    manager, prefix = source["reward_model.reward_manager"], "reward_model.reward_kwargs."
    if manager not in _MANAGERS:
        known = ", ".join(filter(None, _MANAGERS))
        draft.refuse("reward_model.reward_manager", manager, f"Shoal supports only {known}", cure="reward.overlong")
    names = [f"{prefix}{name}" for name, *_ in OVERLONG]
    is_on, tokens, factor, limit = (source[name] for name in names)
    if manager == "dapo" and is_on:
        if tokens < 0 or factor < 0 or (limit is not None and limit < 1):
            draft.refuse(names[1], tokens, "len and penalty_factor must be at least 0, and max_resp_len at least 1")
            return
        overlong = {"factor": factor, "buffer_tokens": tokens} | ({"max_length_tokens": limit} if limit else {})
        draft.set("reward.overlong", overlong, source.origin(*names))
        draft.notes.append(
            f"{names[2]} = {factor:g}: verl scores rows of {_DAPO[0]} with -1 or 1, and Shoal with 0 or 1; to give the "
            f"penalty the same weight, halve it: --set reward.overlong.factor={factor / 2:g}"
        )
        return
    for name in names:
        if source[name]:
            source.note_unused(name, why="only the reward manager dapo with an enabled buffer uses it")
