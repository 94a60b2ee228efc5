"""TRL's reward functions, reward model and weights. Functions of trl.rewards are known by name, functions of the file
become custom verifiers, and others are refused."""

import ast
import re
from collections.abc import Mapping, Sequence
from typing import Any

from shoal.config.tables.verifiers import BUILT_IN_VERIFIERS
from shoal.parsing import parse_python
from shoal.translate.shared.draft import Draft, Origin, OwnFunction, Source
from shoal.translate.shared.field import Unfit
from shoal.translate.shared.toml import toml_value
from shoal.translate.sources.values import called
from shoal.translate.trl.open_r1 import (
    ACCURACY,
    COSINE,
    FUNCTIONS_BY_DEFAULT,
    cosine,
    is_open_r1,
    note_settings,
    open_r1_part,
    overlong,
)

_CUSTOM = (
    "write it as a custom verifier with --set reward.custom.NAME.file=FILE.py, name it in the data (verifier or "
    "verifier_column of data.sources), and set its weight in reward.weights"
)
_OPTIONS: dict[str, tuple[str, ...]] = {
    "accuracy_reward": (),
    "think_format_reward": (),
    "get_soft_overlong_punishment": ("max_completion_len", "soft_punish_cache"),
    "get_repetition_penalty_reward": ("ngram_size", "max_penalty"),
    "get_cosine_scaled_reward": (
        "max_len",
        "min_value_wrong",
        "max_value_wrong",
        "min_value_correct",
        "max_value_correct",
    ),
}
"""Functions of trl.rewards with a counterpart, and the parameters of the functions that are factories."""
_READS = {"extraction": ["latex"], "boxed_match_priority": 0}
"""How TRL's accuracy_reward reads an answer: only LaTeX, and boxes first."""
_SHARED = ("weights", "style", "custom")
"""Tables of [reward] in which several functions each set their own key."""
_SCRIPT = {"get_soft_overlong_punishment": {"max_completion_len": 1280, "soft_punish_cache": 256}}
"""Arguments that `trl grpo` gives to a factory without arguments."""


_LABEL = "solution"
"""The column that TRL's own accuracy reward reads."""


def compose_reward(source: Source, draft: Draft) -> None:
    """Sets the verifier of the data and the other parts of the reward, each with its function's weight."""
    functions = _weighted_functions(source, draft)
    note_settings([text for text, _ in functions], source, draft)
    if not functions:
        return
    reward, is_whole = _parts(functions, source, draft)
    if not reward:
        return
    names = [name for name in ("reward_funcs", "reward_model_name_or_path") if source[name]]
    origin = source.origin(*names, *(["reward_weights"] if source["reward_weights"] else []))
    if not names:
        names, origin = ["reward_funcs"], Origin(f"open-r1 rewards {', '.join(text for text, _ in functions)}", False)
    verifiers = list(dict.fromkeys([*reward.get("weights", ()), *([ACCURACY] if "cosine" in reward else [])]))
    if "cosine" in reward and ACCURACY not in reward.get("weights", {}):
        # The cosine reward depends on whether an answer is right, but correctness itself earns nothing.
        reward["apply_verifiable_reward"] = False
    if ACCURACY in verifiers:
        reward["verifiers"] = {ACCURACY: _READS}
    for name, value in reward.items():
        draft.set(f"reward.{name}", value, origin)
    own = [source.functions[text] for text, _ in functions if text in source.functions]
    if verifiers or is_whole:
        labels = _own_labels(own, beside=ACCURACY if ACCURACY in verifiers else "", draft=draft) if own else {}
        _set_verifier(source, draft, verifiers, names, labels)
    if own:
        _note_own(own, len(verifiers), draft)
    if set(reward) - {"weights", "model", "verifiers", "custom"}:
        _sum_once(source, draft, reads_solutions=ACCURACY in verifiers)


def _parts(functions: list[tuple[str, float]], source: Source, draft: Draft) -> tuple[dict[str, Any], bool]:
    """Returns the fields of [reward] for all functions, and whether each has a counterpart; refuses the others."""
    model = source["reward_model_name_or_path"]
    reward: dict[str, Any] = {}
    unfit: dict[str, list[str]] = {}
    for text, weight in functions:
        try:
            if text in source.functions:
                part = _own_part(source.functions[text], weight)
            else:
                part = _model(text, weight) if text == model else _part(text, weight, source)
            _add(part, reward)
        except Unfit as error:
            unfit.setdefault(str(error), []).append(text)
    for reason, texts in unfit.items():
        draft.refuse("reward_funcs", ", ".join(texts), reason, cure="data.sources")
    return reward, not unfit


def _weighted_functions(source: Source, draft: Draft) -> list[tuple[str, float]]:
    """Returns the reward functions, including the reward model, with their weights; empty if refused."""
    functions, weights = list(source["reward_funcs"] or []), source["reward_weights"]
    if model := source["reward_model_name_or_path"]:
        # TRL's script puts it before the functions.
        functions.insert(0, model)
    if not functions and is_open_r1(source):
        functions = FUNCTIONS_BY_DEFAULT
        draft.notes.append(f"reward_funcs: the source has none, so open-r1's defaults are used: {', '.join(functions)}")
    if not functions:
        if weights:
            draft.refuse("reward_weights", weights, "there are no reward_funcs to weight: give reward_funcs")
        return []
    if weights is None:
        weights = [1.0] * len(functions)
    if len(weights) != len(functions):
        draft.refuse(
            "reward_weights",
            weights,
            f"give a weight for each of the {len(functions)} reward_funcs (given: {len(weights)})",
        )
        return []
    return list(zip(functions, weights, strict=True))


def _set_verifier(
    source: Source, draft: Draft, verifiers: list[str], names: list[str], own_labels: dict[str, Any]
) -> None:
    """Sets the verifiers of every source, or notes how to do so."""
    columns: dict[str, Any] = {"verifier": verifiers if len(verifiers) > 1 else (verifiers or ["passthrough"])[0]}
    if ACCURACY in verifiers:
        columns["ground_truth_column"] = "solution"
    columns |= own_labels
    if own_labels:
        draft.of_sources |= columns
    if sources := draft.values.get("data.sources"):
        given = (name for name in names if source[name])
        origin = source.origin(*(["dataset_name"] if source["dataset_name"] else []), *given)
        kept = [
            {key: item for key, item in table.items() if key != "ground_truth_column" or not own_labels}
            for table in sources
        ]
        draft.set("data.sources", [table | columns for table in kept], origin)
        return
    if own_labels:
        return
    settings = ", ".join(f"{name} = {toml_value(value)}" for name, value in columns.items())
    draft.notes.append(f"{names[0]}: set {settings} in data.sources")


def _sum_once(source: Source, draft: Draft, *, reads_solutions: bool) -> None:
    """Refuses to normalize parts other than verifiers separately, because the sum of the parts is one reward."""
    if source["multi_objective_aggregation"] == "normalize_then_sum":
        reason = (
            "format and length are parts of one reward here; to normalize each by itself, leave reward_funcs out and "
            'give the data a verifier_column with lists such as ["math", "think_format"]'
        )
        draft.refuse("multi_objective_aggregation", "normalize_then_sum", reason)
    draft.set("advantage.partial_rewards", False, source.origin("reward_funcs"))
    if not reads_solutions:
        return
    draft.notes.append(
        "reward_funcs: where accuracy_reward returns None for a solution that cannot be read, TRL sums the other "
        "functions; here such a completion has no reward and is not trained on"
    )


def _model(path: str, weight: float) -> dict[str, Any]:
    return {"model": {"path": path}, "weights": {"reward_model": weight}}


def _add(part: Mapping[str, Mapping[str, Any]], reward: dict[str, Any]) -> None:
    """Adds the fields of a function to `reward`. Raises `Unfit` for a second function of the same kind."""
    for name, values in part.items():
        before = reward.get(name, {})
        if before and (name not in _SHARED or before.keys() & values):
            raise Unfit(f"another function has set reward.{name}, and only one function may set it: {_CUSTOM}")
        reward[name] = before | values


def _part(text: str, weight: float, source: Source) -> dict[str, Any]:
    """Returns the fields of [reward] for one function. Raises `Unfit`."""
    if weight >= 0 and (part := open_r1_part(text, weight, source)) is not None:
        return part
    name, options = _read(text)
    if "/" in text and "(" not in text:
        return _model(text, weight)
    _check(name, options, weight)
    options = options or _SCRIPT.get(name, {})
    match name:
        case "accuracy_reward":
            return {"weights": {ACCURACY: weight}}
        case "think_format_reward":
            return {"format": {"kind": "think", "mode": "add", "value": weight}}
        case "get_soft_overlong_punishment":
            if set(options) != set(_OPTIONS[name]):
                raise Unfit(f"needs the arguments {' and '.join(_OPTIONS[name])}")
            return overlong(weight, options["max_completion_len"], options["soft_punish_cache"])
        case "get_repetition_penalty_reward":
            most = options.get("max_penalty", -1.0)
            return {"repetition": {"max_penalty": most * weight, "ngram_size": options.get("ngram_size", 3)}}
    if "max_len" not in options:
        raise Unfit("needs the argument max_len")
    values = {theirs: options[theirs] for theirs in COSINE if theirs in options}
    return cosine(weight, {"max_length_tokens": options["max_len"]}, values)


def _check(name: str, options: Mapping[str, Any], weight: float) -> None:
    """Raises `Unfit` for a function without a counterpart, and for parameters or a weight that do not fit it."""
    if name == "reasoning_accuracy_reward":
        raise Unfit(f"scores only the text after </think>, and gives 0 without it; no verifier does this: {_CUSTOM}")
    if name not in _OPTIONS:
        raise Unfit(f"has no counterpart in Shoal, which supports {', '.join(_OPTIONS)} of trl.rewards: {_CUSTOM}")
    if unknown := set(options) - set(_OPTIONS[name]):
        raise Unfit(
            f"{name} has no parameter {', '.join(sorted(unknown))}; it has {', '.join(_OPTIONS[name]) or 'none'}"
        )
    if weight < 0 and name != "accuracy_reward":
        raise Unfit(f"its weight {weight:g} is below 0, which would reward what it should punish: {_CUSTOM}")


def _read(text: str) -> tuple[str, dict[str, Any]]:
    """Returns name and parameters of "f", "trl.rewards.f" or "f(1, b=2)"."""
    try:
        (statement,) = parse_python(text.strip()).body
        node = statement.value if isinstance(statement, ast.Expr) else ast.Constant(None)
        if not isinstance(node, ast.Call):
            return called(node) or text, {}
        name = called(node.func) or text
        positional = dict(zip(_OPTIONS.get(name, ()), map(ast.literal_eval, node.args), strict=False))
        return name, positional | {word.arg or "**": ast.literal_eval(word.value) for word in node.keywords}
    except (ValueError, RecursionError):
        return text, {}


def _own_part(function: OwnFunction, weight: float) -> dict[str, Any]:
    if function.problem:
        raise Unfit(f"{function.problem}, and give the function with --set reward.custom.NAME.file=FILE.py")
    name = _verifier_name(function)
    convention = "trl" if function.takes_messages else "trl_text"
    table = {"file": function.file, "function": function.name, "convention": convention}
    return {"weights": {name: weight}, "custom": {name: table}}


def _verifier_name(function: OwnFunction) -> str:
    name = re.sub(r"[^a-z0-9_-]", "-", function.name.lower()).lstrip("-")[:56]
    return f"own_{name}" if name in BUILT_IN_VERIFIERS else name or "own"


def _own_labels(functions: Sequence[OwnFunction], *, beside: str, draft: Draft) -> dict[str, Any]:
    """Returns the settings of a source whose label all functions read. Refuses functions that need another label than
    the verifier `beside`, which reads the label of TRL's accuracy reward."""
    columns = list(
        dict.fromkeys(column for function in functions for column in (*function.columns, *function.optional))
    )
    if not beside:
        return {"label_columns": {column: column for column in columns or [_LABEL]}}
    if others := [
        each.name for each in functions if set(each.columns) - {_LABEL} or len(each.required) != len(each.columns)
    ]:
        reason = (
            f"reads columns other than {_LABEL}, which the verifier {beside} reads: give data with a column of "
            "verifiers and a label for each of them, by --set data.sources=... with verifier_column"
        )
        draft.refuse("reward_funcs", ", ".join(others), reason, cure="data.sources")
    return {"ground_truth_column": _LABEL}


def _note_own(functions: Sequence[OwnFunction], num_verifiers: int, draft: Draft) -> None:
    names = ", ".join(_verifier_name(function) for function in functions)
    draft.notes.append(
        f"reward_funcs: Shoal calls {names} with one completion at a time, so comparing completions does not work; of "
        "the file, only the parts that a function needs are run (docs/rewards.md)"
    )
    if texts := [_verifier_name(function) for function in functions if not function.takes_messages]:
        draft.notes.append(
            f"reward_funcs: {', '.join(texts)} read completions as texts; for lists of messages, --set "
            f"reward.custom.{texts[0]}.convention=trl"
        )
    if num_verifiers > 1:
        draft.notes.append(
            "reward_funcs: a completion counts as correct if all of the functions give at least 1; to let only some of "
            "them decide, name these in reward.correct"
        )
