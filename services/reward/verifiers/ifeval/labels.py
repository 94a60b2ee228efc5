"""Parsing of labels into instructions."""

import ast
import json
from collections.abc import Mapping
from typing import Any

from services.reward.common.verdict import Unscorable
from services.reward.verifiers.ifeval.arguments import Arguments
from services.reward.verifiers.ifeval.catalog import CONSTRAINTS, Constraint
from services.reward.verifiers.ifeval.functions import FUNCTIONS
from shoal.parsing import RepeatedKey, unique_keys

Instruction = tuple[str, Constraint, Arguments]


def read_instructions(label: Any, *, strict_wording: bool = False) -> list[Instruction]:
    """Reads the instructions of an `ifeval` label: {"instruction_id": [...], "kwargs": [...]}, or a list of such
    objects, as objects or as JSON or Python text. A null kwarg counts as absent. Raises `Unscorable` for a malformed
    label, and for an unknown id or kwarg."""
    found: list[Instruction] = []
    parsed = _parsed(label)
    for item in parsed if isinstance(parsed, list | tuple) else [parsed]:
        ids, all_kwargs = _lists(_parsed(item))
        for instruction, kwargs in zip(ids, all_kwargs, strict=True):
            found.append(_instruction(instruction, _parsed(kwargs), CONSTRAINTS, strict_wording=strict_wording))
    return found


def read_function(label: Any, *, strict_wording: bool = False) -> Instruction:
    """Reads the instruction of an `ifeval_old` label: {"func_name": ..., and its arguments}, as an object or JSON text.
    Raises `Unscorable` like `read_instructions`."""
    parsed = _parsed(label)
    if not isinstance(parsed, Mapping) or "func_name" not in parsed:
        raise Unscorable(f"the label is not an object with func_name (found: {label!r:.80})")
    kwargs = {name: value for name, value in parsed.items() if name != "func_name"}
    return _instruction(parsed["func_name"], kwargs, FUNCTIONS, strict_wording=strict_wording)


def _parsed(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value, object_pairs_hook=unique_keys)
    except RepeatedKey as error:
        raise Unscorable(f"the label is ambiguous: {error}") from None
    except (ValueError, RecursionError):
        pass
    try:
        tree = ast.parse(value.strip(), mode="eval")
        for node in ast.walk(tree):
            if isinstance(node, ast.Dict):
                unique_keys([(ast.literal_eval(key), None) for key in node.keys if key is not None])
        return ast.literal_eval(tree)
    except RepeatedKey as error:
        raise Unscorable(f"the label is ambiguous: {error}") from None
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        raise Unscorable(f"the label is neither JSON nor a Python literal: {value!r:.80}") from None


def _lists(item: Any) -> tuple[list[Any], list[Any]]:
    if not isinstance(item, Mapping) or not isinstance(item.get("instruction_id"), list | tuple):
        raise Unscorable(f"the label is not an object with a list instruction_id (found: {item!r:.80})")
    ids = list(item["instruction_id"])
    kwargs = item.get("kwargs")
    if kwargs is None:
        kwargs = [None] * len(ids)
    if not isinstance(kwargs, list | tuple) or len(kwargs) != len(ids):
        raise Unscorable(f"kwargs must be a list of {len(ids)} elements, like instruction_id (found: {kwargs!r:.80})")
    return ids, list(kwargs)


def _instruction(name: Any, kwargs: Any, known: Mapping[str, Constraint], *, strict_wording: bool) -> Instruction:
    constraint = known.get(name) if isinstance(name, str) else None
    if constraint is None:
        raise Unscorable(f"there is no instruction {name!r:.80}; there are {', '.join(known)}")
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise Unscorable(f"{name}: kwargs must be an object or null (found: {kwargs!r:.80})")
    arguments = {key: value for key, value in (kwargs or {}).items() if value is not None}
    unknown = sorted(arguments.keys() - {*constraint.needs, *constraint.unused})
    if unknown:
        needs = ", ".join(constraint.needs) or "none"
        raise Unscorable(f"{name}: unknown kwargs {', '.join(map(str, unknown))} (it takes: {needs})")
    return str(name), constraint, Arguments(str(name), arguments, strict_wording=strict_wording)
