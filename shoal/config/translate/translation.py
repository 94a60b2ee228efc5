"""From another system's settings to a configuration, or to the reasons why there is none."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shoal.config.load import apply_override, parse_config
from shoal.config.translate.draft import Draft, Origin, Refusal, Source
from shoal.config.translate.given import Given
from shoal.config.translate.system import System
from shoal.config.translate.toml import to_toml
from shoal.errors import InvalidArgument

EVERYTHING = "all"


@dataclass(frozen=True)
class Translation:
    """What became of a source."""

    toml: str
    """The configuration; empty when something refused stands in its way."""
    values: dict[str, Any]
    """The same, as `parse_config` takes it."""
    notes: tuple[str, ...]
    refusals: tuple[Refusal, ...]
    """All of them; those that were skipped too."""
    skipped: frozenset[str]
    """Names of refused fields that were to be left out."""

    @property
    def blocking(self) -> list[Refusal]:
        """What stands in the way of a configuration."""
        return [refusal for refusal in self.refusals if refusal.blocks and refusal.name not in self.skipped]


def translate(
    system: System, given: Given, *, skip: Sequence[str] = (), overrides: Sequence[str] = (), title: str = ""
) -> Translation:
    """Translates settings. Every one of them is mapped, or named in a note or a refusal.

    `skip` names refused fields to leave out all the same ("all": any); `overrides` are settings of ours, "a.b=value",
    which come last. Raises `InvalidArgument` when an override cannot be read.
    """
    draft = Draft(notes=list(given.notes))
    source = Source(system.table, given.values, draft, system=system.name)
    for name, reason in given.unset.items():
        source.miss(name, reason, draft)
    for name, (value, why) in system.implied.items():
        draft.set(name, value, Origin(why, False))
    source.sort(draft)
    system.compose(source, draft)
    # What is refused keeps others from being read.
    for name in source.unused() if not any(refusal.blocks for refusal in draft.refusals) else ():
        draft.refuse(name, source.origin(name).text if name in system.names else None, "is understood, and left unread")
    values = _with_overrides(draft, overrides)
    if "path" not in values.get("model", {}):
        draft.refuse(system.model_field, None, "the source names no model: give --set model.path=MODEL")
    if not values.get("data", {}).get("sources"):
        where = system.data_field or "data"
        draft.refuse(where, None, "the source names no data: give --set 'data.sources=[{dataset = \"NAME\"}]'")
    answered = {override.partition("=")[0].strip() for override in overrides}
    draft.refusals = [refusal for refusal in draft.refusals if not _is_answered(refusal.cure, answered)]
    skipped = frozenset(r.name for r in draft.refusals) if EVERYTHING in skip else frozenset(skip)
    known = {refusal.name for refusal in draft.refusals}
    for name in set(skip) - known - {EVERYTHING}:
        draft.notes.append(f"--skip {name}: nothing of that name is refused")
    needs = {system.model_field, system.data_field or "data"}
    lacking = [refusal for refusal in draft.refusals if refusal.name in needs and refusal.blocks and not refusal.value]
    if not [refusal for refusal in draft.refusals if refusal.blocks and refusal.name not in skipped] and not lacking:
        try:
            parse_config(values)
        except InvalidArgument as error:
            for violation in error.violations:
                reason = f"as translated: {violation.description}; set it with --set"
                draft.refuse(violation.field, None, reason)
    skipped -= {refusal.name for refusal in draft.refusals if refusal.reason.startswith("as translated:")}
    skipped -= {refusal.name for refusal in lacking}
    result = Translation("", values, tuple(draft.notes), tuple(draft.refusals), skipped)
    if result.blocking:
        return result
    return Translation(
        to_toml(draft, _header(system, title, draft, skipped)), values, result.notes, result.refusals, skipped
    )


def _is_answered(cure: str, answered: set[str]) -> bool:
    """Whether a setting of ours, or one within it, answers a refusal."""
    return bool(cure) and any(name == cure or name.startswith(f"{cure}.") for name in answered)


def _with_overrides(draft: Draft, overrides: Sequence[str]) -> dict[str, Any]:
    """The draft as nested values, with overrides put into both."""
    for override in overrides:
        alone: dict[str, Any] = {}
        apply_override(alone, override)
        for section, table in alone.items():
            if not isinstance(table, Mapping):
                raise InvalidArgument(f"--set {override!r} is not of the form section.field=value")
            for key, value in table.items():
                name = f"{section}.{key}"
                draft.set(name, _merged(draft.values.get(name), value), Origin("--set", True))
    values: dict[str, Any] = {}
    for name, value in draft.values.items():
        if value is not None:
            section, _, key = name.partition(".")
            values.setdefault(section, {})[key] = value
    return values


def _merged(before: Any, value: Any) -> Any:
    """A value on top of another: of tables, each key."""
    if not isinstance(before, Mapping) or not isinstance(value, Mapping):
        return value
    return {**before, **{key: _merged(before.get(key), item) for key, item in value.items()}}


def _header(system: System, title: str, draft: Draft, skipped: frozenset[str]) -> list[str]:
    lines = [f"Translated from {system.name}{f': {title}' if title else ''} by `shoal config translate`."]
    left_out = [refusal for refusal in draft.refusals if refusal.blocks and refusal.name in skipped]
    if left_out:
        lines += ["", "Not the whole of it. Left out, as asked:"]
        lines += [f"  {refusal}"[:118] for refusal in left_out]
    return lines
