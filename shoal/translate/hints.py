"""Hints for fields that Shoal's configuration does not have, but another system's has."""

from collections.abc import Iterable

from shoal.translate.shared.system import System

_MAX_TARGETS = 2
"""The most fields of Shoal that a hint may name."""
_IN_DAILY_USE = {
    "batch_size": "grpo.groups_per_step",
    "bs": "grpo.groups_per_step",
    "epochs": "run.total_epochs",
    "max_new_tokens": "sampling.max_completion_tokens",
    "n_samples": "grpo.group_size",
    "num_samples": "grpo.group_size",
    "pp": "generator.pipeline_parallel_size",
    "sp": "learner.sequence_parallel_size",
    "tp": "generator.tensor_parallel_size",
}
"""Fields of Shoal, by short names that are in no system's table but that people use."""


def meant_fields(field: str, systems: Iterable[System]) -> list[str]:
    """Returns Shoal's fields that other systems or people call `field`. Prefers fields in the section that `field`
    names. The list is empty if there are no such fields, or more than two."""
    section, _, name = field.rpartition(".")
    found = [_meaning(field, system)[0] for system in systems]
    targets = sorted({target for some in found for target in some})
    if not targets and name in _IN_DAILY_USE:
        targets = [_IN_DAILY_USE[name]]
    own = [target for target in targets if section and target.startswith(f"{section}.")]
    targets = own or targets
    return targets if len(targets) <= _MAX_TARGETS else []


def field_hint(field: str, systems: Iterable[System]) -> str:
    """Returns Shoal's counterpart of another system's field: "kl.beta: what trl calls beta is kl.coef here".

    Looks for the whole dotted name first, then for its last part. The result is empty if no system has the field.
    """
    name = field.rpartition(".")[2]
    found: dict[str, list[str]] = {}
    unmatched: dict[str, list[str]] = {}
    for system in systems:
        targets, why = _meaning(field, system)
        if targets:
            found.setdefault(f"is {' and '.join(targets)} here", []).append(system.name)
        elif why:
            unmatched.setdefault(f"has no counterpart here: {why}", []).append(system.name)
        elif any(row.name.startswith(f"{field}.") for row in system.table):
            return f"{field}: {system.name} has such a table; `shoal config translate --from {system.name}` reads it"
    parts = [f"what {_listed(names)} {name} {meaning}" for meaning, names in (found or unmatched).items()]
    return f"{field}: {'; '.join(parts)}" if parts else ""


def _meaning(field: str, system: System) -> tuple[list[str], str]:
    """Returns Shoal's fields that a system's field decides, or the reason why there is no such field."""
    exact = [system.rows[field]] if field in system.rows else []
    last = field.rpartition(".")[2]
    rows = exact or [row for name, row in system.rows.items() if name.rpartition(".")[2] == last]
    targets = sorted({target for row in rows for target in row.to})
    if targets:
        return (targets if len(targets) <= _MAX_TARGETS else []), ""
    return [], rows[0].why if len(rows) == 1 else ""


def _listed(names: list[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} and {last} call" if others else f"{last} calls"
