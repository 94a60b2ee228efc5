"""Changes of a run's configuration when it is resumed."""

import json
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from google.protobuf.struct_pb2 import Struct

from shoal.config.fields import may_hold_key
from shoal.config.load import dump_config, list_index, parse_config, plain_values
from shoal.config.run import RunConfig
from shoal.config.tables.section import Fixed, marked_fields
from shoal.errors import FieldViolation, InvalidArgument

_MAX_VALUE_CHARS = 60


def changed_config(config: RunConfig, changes: Mapping[str, Any] | Struct) -> RunConfig:
    """Returns the configuration of a run that is resumed with changes.

    `changes` has the fields to change, nested as in the configuration; null means a field's default. If
    `run.num_steps`, `run.total_episodes` or `run.total_epochs` changes, the changed field replaces the other two.

    Raises `InvalidArgument` for invalid values, for fields that a resume keeps, and for a new step size if the length
    of the run is given in episodes or epochs.
    """
    changed = merged_config(config, changes)
    _check_step_size(config, changed)
    refused = {name: reason for name in changed_fields(config, changed) if (reason := why_fixed(name, changed))}
    if refused:
        raise InvalidArgument(
            _refusal(refused),
            violations=[FieldViolation(field=name, description=reason) for name, reason in refused.items()],
        )
    return changed


def merged_config(config: RunConfig, changes: Mapping[str, Any] | Struct) -> RunConfig:
    """Returns a configuration with changes in the form that `changed_config` takes. Any field may change.

    Raises `InvalidArgument` for values that are not valid.
    """
    plain = plain_values(changes)
    merged = merged_values(dump_config(config), plain, "")
    given = plain.get("run", {})
    if isinstance(given, Mapping):
        _keep_one_length(merged["run"], given)
    return parse_config(merged)


def _keep_one_length(run: dict[str, Any], given: Mapping[str, Any]) -> None:
    """Keeps in the table `[run]`, in place, the length that the changes give, or else the earlier length."""
    lengths = ("num_steps", "total_episodes", "total_epochs")
    kept = [name for name in lengths if given.get(name) is not None]
    if not kept:
        # The number of steps follows from the other length; epochs are counted again only where they change.
        kept = [name for name in lengths[1:] if run.get(name) is not None] or ["num_steps"]
        kept += ["num_steps"] if "total_epochs" in kept else []
    for name in lengths:
        if name not in kept:
            run.pop(name, None)


def changed_fields(before: RunConfig, after: RunConfig) -> dict[str, str]:
    """Returns the fields that differ, each with a text such as "5 -> 10" for people."""
    return changed_values(dump_config(before), dump_config(after))


def changed_values(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, str]:
    """Returns the fields that differ between dumped configurations, in the form of `changed_fields`."""
    old, new = (dict(_leaves(values, "")) for values in (before, after))
    names = [name for name in sorted(old.keys() | new.keys()) if old.get(name) != new.get(name)]
    return {name: f"{_text(name, old)} -> {_text(name, new)}" for name in names}


def fixed_fields() -> Iterator[tuple[str, str]]:
    """Yields each field and table that a resumed run keeps, with the reason."""
    return ((name, mark.reason) for name, mark in marked_fields(Fixed, RunConfig))


def _check_step_size(config: RunConfig, changed: RunConfig) -> None:
    """Raises `InvalidArgument` if episodes or epochs would count the steps so far as steps of the new size."""
    groups = config.grpo.groups_per_step, changed.grpo.groups_per_step
    completions = config.grpo.completions_per_step, changed.grpo.completions_per_step
    epochs, episodes = changed.run.total_epochs, changed.run.total_episodes
    for what, (before, after), length, counts in (
        ("grpo.groups_per_step", groups, epochs, f"run.total_epochs ({epochs or 0:g}) counts steps of a single size"),
        (
            "the completions of a step",
            completions,
            episodes,
            f"run.total_episodes ({episodes}) is divided by a single step size",
        ),
    ):
        if before != after and length is not None:
            reason = (
                f"a resume that changes {what} ({before} -> {after}) needs run.num_steps: {counts}. Give the total "
                "number of steps of the run, including the steps already taken"
            )
            raise InvalidArgument(reason, violations=[FieldViolation(field="run.num_steps", description=reason)])


def why_fixed(name: str, changed: RunConfig) -> str:
    """Returns why a resumed run keeps a field; empty if the field may change."""
    if name == "kl.coef" and changed.kl.target is not None:
        return "kl.target adapts the coefficient, and the checkpoint has the coefficient's current value"
    return next((reason for fixed, reason in fixed_fields() if f"{name}.".startswith(f"{fixed}.")), "")


def _refusal(refused: Mapping[str, str]) -> str:
    others: dict[str, list[str]] = {}
    for name, reason in fixed_fields():
        others.setdefault(reason, []).append(name)
    lines = [f"\n  {name}: {reason}" for name, reason in refused.items()]
    kept = [f"\n  {', '.join(names)}: {reason}" for reason, names in others.items()]
    return (
        f"a resumed run cannot change:{''.join(lines)}\nstart a new run to change these fields, for example from "
        f"this run's exported model. A resumed run can change every field except:{''.join(kept)}"
    )


def merged_values(values: Any, changes: Any, path: str) -> Any:
    """Returns values with the changes of a JSON merge patch (RFC 7396); a table may change items of a list by index."""
    if not isinstance(changes, Mapping):
        return changes
    if isinstance(values, list):
        items = list(values)
        for key, change in changes.items():
            index = list_index(items, key, path)
            items[index] = merged_values(items[index], change, f"{path}.{key}")
        return items
    merged = dict(values) if isinstance(values, Mapping) else {}
    for key, change in changes.items():
        merged[key] = merged_values(merged.get(key), change, f"{path}.{key}" if path else key)
    return merged


def _leaves(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    if not isinstance(value, Mapping):
        yield name, value
        return
    for key, item in value.items():
        yield from _leaves(item, f"{name}.{key}" if name else key)


def _text(name: str, values: Mapping[str, Any]) -> str:
    if name not in values:
        return "unset"
    if may_hold_key(name.split(".")):
        return "..."
    return textwrap.shorten(json.dumps(values[name]), _MAX_VALUE_CHARS, placeholder=" ...")
