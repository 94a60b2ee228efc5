"""The draft of a translated configuration, and the source from which it is translated."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from shoal.similar_names import similar_names
from shoal.translate.shared.field import NOT_YET, Fate, Field, Unfit, read_value

_PLACEMENT = (
    "launch.",
    "tracking.",
    "generator.tensor_parallel_size",
    "generator.pipeline_parallel_size",
    "generator.gpu_memory_utilization",
    "generator.enforce_eager",
    "learner.offload_",
    "learner.zero_",
    "learner.sequence_parallel_size",
)
"""Shoal's fields that change no result. If the source's value cannot be read, their default is acceptable."""


@dataclass(frozen=True)
class Refusal:
    """A field that is not translated, with the reason."""

    name: str
    """The field, with the spelling of the source."""
    value: str
    reason: str
    blocks: bool = True
    """Whether the training would change without the field."""
    cure: str = ""
    """The field of Shoal that resolves the refusal if it is set."""
    is_needed: bool = False
    """Whether there is no configuration without the field."""

    def __str__(self) -> str:
        value = f" = {self.value}" if self.value else ""
        return f"{self.name}{value}: {self.reason}"


@dataclass
class Draft:
    """The state of a translation."""

    values: dict[str, Any] = field(default_factory=dict)
    """The value of each field of Shoal that the source decides, explicitly or by a default. Keys are dotted names."""
    origins: dict[str, str] = field(default_factory=dict)
    """The setting of the source that decides a field, by the field's dotted name."""
    explicit: set[str] = field(default_factory=set)
    """Names of fields that the source decides explicitly, not by a default."""
    of_sources: dict[str, Any] = field(default_factory=dict)
    """Settings of every source of data that does not set them itself, including sources from an override."""
    notes: list[str] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)

    def set(self, name: str, value: Any, origin: "Origin") -> None:
        """Sets a field; None leaves it unset."""
        self.values[name] = value
        self.origins[name] = origin.text
        if origin.is_explicit:
            self.explicit.add(name)
        else:
            self.explicit.discard(name)

    def nested(self) -> dict[str, Any]:
        """Returns the values that are set as nested tables."""
        values: dict[str, Any] = {}
        for name, value in self.values.items():
            if value is not None:
                *tables, field_name = name.split(".")
                table = values
                for part in tables:
                    table = table.setdefault(part, {})
                table[field_name] = value
        return values

    def refuse(
        self, name: str, value: Any, reason: str, *, blocks: bool = True, cure: str = "", is_needed: bool = False
    ) -> None:
        shown = "" if value is None else _shown(value, name)
        self.refusals.append(Refusal(name, shown, reason, blocks, cure, is_needed))


@dataclass(frozen=True)
class Origin:
    """A setting with the spelling of the source, and whether the setting is explicit or a default."""

    text: str
    is_explicit: bool


@dataclass(frozen=True)
class Checkout:
    """The parts of a system's own code to which its configurations refer."""

    folder: Path
    defaults: Mapping[str, Any]
    """The default of each field, if the code shows it."""
    chat_templates: Mapping[str, str | None] = field(default_factory=dict)
    """The Jinja text of each template; None for a text that only a run could show."""


@dataclass(frozen=True)
class OwnFunction:
    """A function that a setting of the source names and the source's own file defines."""

    name: str
    file: str
    """The absolute path of the file."""
    columns: tuple[str, ...]
    """Columns of the data that a reward function needs, as far as its code shows."""
    required: tuple[str, ...] = ()
    """The columns that are parameters. The function reads the others from its `**kwargs`."""
    optional: tuple[str, ...] = ()
    """Parameters with a default, which may also be columns."""
    takes_messages: bool = False
    """Whether a reward function reads completions as lists of messages, not as texts."""
    problem: str = ""
    """The reason why the function cannot be loaded from its file; empty if it can."""


class Source:
    """The fields of one source, explicit or by the system's defaults. Records which fields were read."""

    def __init__(
        self,
        table: Sequence[Field],
        values: Mapping[str, Any],
        draft: Draft,
        *,
        system: str,
        since: str = "",
        checkout: Checkout | None = None,
        functions: Mapping[str, OwnFunction] = MappingProxyType({}),
    ) -> None:
        """`since` describes the version whose defaults the table has, for example " in 2026-02"."""
        self.checkout = checkout
        self.functions = functions
        """Functions of the source's own files, by their placeholder in a field's value."""
        self._system, self.since = system, since
        self._draft = draft
        self._fields = {row.name: row for row in table}
        self._families = [row for row in table if row.name.endswith(".*")]
        self._names = {name: row.name for row in table for name in row.spellings}
        self._spelled: dict[str, str] = {}
        self._values: dict[str, Any] = {}
        self._used: set[str] = set()
        self._failed: set[str] = set()
        self.measured: dict[str, str] = {}
        """Fields of the system's `measured` whose value cannot be read, each with the reason."""
        for spelled, raw in values.items():
            self._take(spelled, raw)

    def _take(self, spelled: str, raw: Any) -> None:
        name = self._names.get(spelled)
        if name is None and (family := self._family(spelled)) is not None:
            self._judge(family, spelled, raw)
            return
        if name is None:
            near = similar_names(spelled, self._names)
            hint = f"did you mean {' or '.join(near)}?" if near else f"Shoal knows no such field of {self._system}"
            self._draft.refuse(spelled, raw, f"unknown field; {hint}")
            return
        row = self._fields[name]
        try:
            value = read_value(row.kind, raw)
            if value is None and row.aliases:
                # This alias is null, but another alias may have the value.
                return
            is_needed = row.default is not None and row.kind not in ("table", "any") and row.convert is None
            if value is None and is_needed and None not in row.accepts:
                raise Unfit(f"the value is missing; give one, or leave the setting out to use {_shown(row.default)}")
            if name in self._values:
                self._draft.notes.append(f"{spelled} and {self._spelled[name]} name one field: {spelled} is used")
            self._values[name] = value
        except Unfit as error:
            self._failed.add(name)
            self._draft.refuse(spelled, raw, str(error), cure=row.to[0] if len(row.to) == 1 else "")
        self._spelled[name] = spelled

    def _family(self, spelled: str) -> Field | None:
        """Returns the narrowest row "a.*" that covers the field, if any."""
        fitting = [row for row in self._families if spelled.startswith(row.name[:-1])]
        return max(fitting, key=lambda row: len(row.name), default=None)

    def miss(self, spelled: str, reason: str, *, is_needed: bool = False) -> None:
        """Notes or refuses a field whose value cannot be read, depending on what the field decides."""
        name = self._names.get(spelled)
        row = self._fields[name] if name is not None else self._family(spelled)
        if name in self._values:
            return  # An alias of the field has a value.
        if row is not None and row.fate is Fate.IGNORED:
            self._draft.notes.append(f"{spelled} {reason}; the field changes nothing here: {row.why}")
            return
        if row is not None and row.to and all(target.startswith(_PLACEMENT) for target in row.to):
            self._draft.notes.append(f"{spelled} {reason}; set {' and '.join(row.to)} if the default does not fit")
            return
        cure = row.to[0] if row is not None and len(row.to) == 1 else ""
        if cure:
            reason = f"{reason}; set it with --set {cure}=..."
        blocks = row is None or row.fate is not Fate.OUTSIDE
        self._draft.refuse(spelled, None, reason, blocks=blocks, cure=cure, is_needed=is_needed)

    def __getitem__(self, name: str) -> Any:
        self._used.add(name)
        return self._values.get(name, self._fields[name].default)

    def is_set(self, name: str) -> bool:
        return name in self._values

    def spellings(self) -> set[str]:
        """Returns the names of the fields that the source sets, with the spelling of the source."""
        return {self._spelled[name] for name in self._values}

    def note_unused(self, *names: str, why: str) -> None:
        """Notes each of the named fields that the source sets. `why` is the reason why the field has no effect."""
        for name in names:
            if self.is_set(name):
                spelled = self._spelled[name]
                self._draft.notes.append(f"{spelled} = {_shown(self[name], spelled)}: {why}")

    def origin(self, *names: str) -> Origin:
        """Describes fields with the spelling of the source: "beta = 0.05 (trl's default)"."""
        parts = []
        for name in names:
            suffix = "" if name in self._values else f" ({self._system}'s default{self.since})"
            value = self._values.get(name, self._fields[name].default)
            parts.append(f"{self.spelled(name)} = {_shown(value)}{suffix}")
        return Origin(", ".join(parts), any(name in self._values for name in names))

    def spelled(self, name: str) -> str:
        """Returns the name of a field with the spelling of the source."""
        return self._spelled.get(name, name)

    def sort(self) -> None:
        """Copies each field that alone decides a field of Shoal. Notes, accepts or refuses the unmapped fields."""
        for row in self._fields.values():
            if row.name in self._failed:
                self._used.add(row.name)
            elif row.fate is Fate.MAPPED:
                if not row.composed:
                    self._convert(row)
            elif row.name in self._values:
                self._judge(row, self._spelled[row.name], self[row.name])

    def copy(self, name: str, to: str) -> None:
        """Sets a field of Shoal to the value of a field of the source."""
        self._draft.set(to, self[name], self.origin(name))

    def _convert(self, row: Field) -> None:
        value = self[row.name]
        try:
            self._draft.set(row.to[0], row.convert(value) if row.convert else value, self.origin(row.name))
        except Unfit as error:
            self._draft.refuse(self.spelled(row.name), value, str(error), cure=row.to[0])

    def _judge(self, row: Field, spelled: str, value: Any) -> None:
        if row.fate is Fate.IGNORED:
            self._draft.notes.append(f"{spelled} = {_shown(value, spelled)} changes nothing here: {row.why}")
        elif any(_same(value, accepted) for accepted in row.accepts):
            return
        elif row.fate is Fate.OUTSIDE:
            self._draft.refuse(spelled, value, f"{row.why}; training is the same without it", blocks=False)
        else:
            reason = f"not yet available: {NOT_YET[row.why]}" if row.fate is Fate.NOT_YET else row.why
            self._draft.refuse(spelled, value, reason, cure=row.to[0] if row.to else "")

    def unsaid(self) -> list[str]:
        """Lists the explicit settings that no line, note or refusal of the draft names, as "beta = 0.05"."""
        origins = [origin for name, origin in self._draft.origins.items() if self._draft.values[name] is not None]
        said = "\n".join([*origins, *self._draft.notes, *(refusal.name for refusal in self._draft.refusals)])
        refused = {refusal.name for refusal in self._draft.refusals}
        noted = {note.partition(":")[0] for note in self._draft.notes}
        return [
            f"{self._spelled[name]} = {_shown(value, self._spelled[name])}"
            for name, value in self._values.items()
            if name not in refused | noted
            and not re.search(rf"(?<![\w.]){re.escape(self._spelled[name])}(?![\w.])", said)
        ]

    def unused(self) -> Iterable[str]:
        """Lists the explicit fields that were never read."""
        return sorted(self._spelled[name] for name in self._values if name not in self._used)


def _same(value: Any, accepted: Any) -> bool:
    """Returns whether a value equals an accepted value. A command line gives true and false as texts."""
    if isinstance(value, str) and isinstance(accepted, bool):
        return value.strip().lower() == str(accepted).lower()
    if isinstance(value, bool) or isinstance(accepted, bool) or accepted is None:
        return value is accepted or (accepted is None and value in ("", [], {}))
    return bool(value == accepted)


_SECRETS = re.compile(r"(^|[._])(api_?key|password|secret|(hub|hf|access|auth)_token)$|(^|\.)token$", re.IGNORECASE)


def _shown(value: Any, name: str = "") -> str:
    """Formats a value for people; hides the value when its name suggests a secret."""
    if value and _SECRETS.search(name):
        return "(hidden)"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key}: {_shown(item, str(key))}' for key, item in value.items())}}}"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return " ".join(map(str, value))
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)
