"""Changes of a run's configuration while the run is active."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from google.protobuf.struct_pb2 import Struct
from pydantic import BaseModel

from shoal.config.changes import changed_fields, merged_config, why_fixed
from shoal.config.load import plain_values
from shoal.config.run import RunConfig
from shoal.config.tables.section import Live, marked_fields
from shoal.errors import FieldViolation, InvalidArgument


@dataclass
class LiveConfig:
    """The configuration of an active run, which a change replaces.

    The parts of the run share this object, and call it at each use.
    """

    current: RunConfig

    def __call__(self) -> RunConfig:
        return self.current


def live_fields() -> Iterator[tuple[str, Live]]:
    """Yields each field and table that may change while a run is active, and states when the change takes effect."""
    return marked_fields(Live, RunConfig)


def updated_config(config: RunConfig, changes: Mapping[str, Any] | Struct, mask: Sequence[str] = ()) -> RunConfig:
    """Returns the configuration of an active run with changes.

    `changes` has the form of `merged_config`'s argument. `mask` has the dotted names of the fields to take from
    `changes`; an empty mask means all fields. A field that the mask names and `changes` lacks gets its default.

    Raises `InvalidArgument` for values that are not valid, and for fields that cannot change while a run is active.
    """
    changed = merged_config(config, _masked(plain_values(changes), mask) if mask else changes)
    check_live(config, changed)
    return changed


def check_live(config: RunConfig, changed: RunConfig) -> None:
    """Raises `InvalidArgument` if two configurations differ in a field that cannot change in an active run."""
    fields = changed_fields(config, changed)
    fixed = {name: f"is fixed for the whole run: {why}" for name in fields if (why := why_fixed(name, changed))}
    resumed = {name: "changes only when the run is resumed" for name in fields if when_live(name) is None}
    if changed.kl.needs_reference != config.kl.needs_reference:
        resumed["kl.coef"] = "a change loads or drops the reference policy, which only a resume can do"
    if refused := resumed | fixed:
        raise InvalidArgument(
            _refusal(refused, fixed),
            violations=[FieldViolation(field=name, description=reason) for name, reason in refused.items()],
        )


def _refusal(refused: Mapping[str, str], fixed: Mapping[str, str]) -> str:
    """States the refused changes and the cure: stop and resume the run, or begin a new run for `fixed` fields."""
    lines = [f"\n  {name}: {reason}" for name, reason in refused.items()]
    cures = [
        (set(refused) - set(fixed), "stop the run, and resume the run with --set"),
        (set(fixed), "start a new run, for example from this run's exported model"),
    ]
    told = [f"to change {', '.join(sorted(names))}, {cure}" for names, cure in cures if names]
    known = ", ".join(name for name, _ in live_fields())
    return (
        f"an active run cannot change:{''.join(lines)}\n{'; '.join(told)}. While a run is active, only these "
        f"fields may change: {known}"
    )


def differs_in_live(config: RunConfig, changed: RunConfig) -> bool:
    """Returns whether two configurations differ only in fields that may change while a run is active."""
    try:
        check_live(config, changed)
    except InvalidArgument:
        return False
    return True


def when_live(name: str) -> Live | None:
    """Returns when a field changes in an active run; None if the field does not change."""
    return next((live for field, live in live_fields() if f"{name}.".startswith(f"{field}.")), None)


def only_at_once(config: RunConfig, changed: RunConfig) -> RunConfig:
    """Returns `config` with those changes that do not wait for the next step."""
    for name in changed_fields(config, changed):
        live = when_live(name)
        if live is not None and live.when == "at once":
            section, field = name.split(".")
            config = _with_field(config, section, field, getattr(getattr(changed, section), field))
    return config


def without_at_once(config: RunConfig) -> RunConfig:
    """Returns `config` with defaults for the fields that change at once. No worker reads these fields."""
    for name, live in live_fields():
        if live.when == "at once":
            section, field = name.split(".")
            fields = type(getattr(config, section)).model_fields
            config = _with_field(config, section, field, fields[field].get_default(call_default_factory=True))
    return config


def _with_field(config: RunConfig, section: str, field: str, value: Any) -> RunConfig:
    return config.model_copy(update={section: getattr(config, section).model_copy(update={field: value})})


def _masked(changes: Mapping[str, Any], mask: Sequence[str]) -> dict[str, Any]:
    """Returns the fields of a mask as changes, with null for a field that `changes` lacks."""
    masked: dict[str, Any] = {}
    for path in mask:
        _check_known(path)
        if any(path.startswith(f"{table}.") for table in mask):  # The table brings the field along.
            continue
        *tables, field = path.split(".")
        source: Any = changes
        target = masked
        for table in tables:
            source = source.get(table, {}) if isinstance(source, Mapping) else {}
            target = target.setdefault(table, {})
        target[field] = source.get(field) if isinstance(source, Mapping) else None
    unmasked = [name for name in changed_names(changes) if not any(f"{name}.".startswith(f"{path}.") for path in mask)]
    if unmasked:
        raise InvalidArgument(
            f"config: {', '.join(unmasked)} is given, but update_mask does not name this field: add the field to "
            "update_mask, or leave the mask empty to change all fields that are given"
        )
    return masked


def _check_known(path: str) -> None:
    section: Any = RunConfig
    for name in path.split("."):
        if not (isinstance(section, type) and issubclass(section, BaseModel)):
            return
        if name not in section.model_fields:
            raise InvalidArgument(
                f"update_mask: {path!r} is not a field of a configuration; write the name as in the configuration, for "
                "example learner.learning_rate",
                violations=[FieldViolation(field="update_mask", description=f"{path!r} is not a field")],
            )
        section = section.model_fields[name].annotation


def changed_names(changes: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Yields the dotted names of the fields in changes."""
    for name, value in changes.items():
        if isinstance(value, Mapping) and value:
            yield from changed_names(value, f"{path}{name}.")
        else:
            yield path + name
