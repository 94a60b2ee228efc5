"""A configuration while it is translated: values with where each came from, and what was left out."""

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shoal.config.translate.fields import Fate, Field, Unfit, read_value

_NEVER_NULL = ("text", "integer", "number", "flag", "texts", "integers", "numbers")


@dataclass(frozen=True)
class Refusal:
    """A field that is not translated."""

    name: str
    """As the source spells it."""
    value: str
    reason: str
    blocks: bool = True
    """Whether training would be another without it."""
    cure: str = ""
    """A field of ours that answers it when it is set besides."""

    def __str__(self) -> str:
        given = f" = {self.value}" if self.value else ""
        return f"{self.name}{given}: {self.reason}"


@dataclass
class Draft:
    """What a translation has come to."""

    values: dict[str, Any] = field(default_factory=dict)
    """Dotted name -> value, of every field that the source decides, by its defaults too."""
    origins: dict[str, str] = field(default_factory=dict)
    """Dotted name -> the words of the source."""
    given: set[str] = field(default_factory=set)
    """Names that the source decides in so many words, not by a default."""
    notes: list[str] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)

    def set(self, name: str, value: Any, origin: "Origin") -> None:
        """Sets a field; None unsets it."""
        self.values[name] = value
        self.origins[name] = origin.text
        if origin.is_given:
            self.given.add(name)
        else:
            self.given.discard(name)

    def refuse(self, name: str, value: Any, reason: str, *, blocks: bool = True, cure: str = "") -> None:
        self.refusals.append(Refusal(name, "" if value is None else _shown(value, name), reason, blocks, cure))


@dataclass(frozen=True)
class Origin:
    """What the source says, in its words, and whether it does so or by default."""

    text: str
    is_given: bool


class Source:
    """The fields of one source, given or by the system's defaults; remembers which were used."""

    def __init__(self, table: Sequence[Field], given: Mapping[str, Any], draft: Draft, *, system: str) -> None:
        self._system = system
        self._fields = {row.name: row for row in table}
        self._families = [row for row in table if row.name.endswith(".*")]
        self._names = {name: row.name for row in table for name in (row.name, *row.aliases)}
        self._spelled: dict[str, str] = {}
        self._values: dict[str, Any] = {}
        self._used: set[str] = set()
        self._failed: set[str] = set()
        for spelled, raw in given.items():
            self._take(spelled, raw, draft)

    def _take(self, spelled: str, raw: Any, draft: Draft) -> None:
        name = self._names.get(spelled)
        if name is None and (family := self._family(spelled)) is not None:
            self._judge_value(family, spelled, raw, draft)
            return
        if name is None:
            near = difflib.get_close_matches(spelled, self._names, n=3, cutoff=0.6)
            hint = (
                f"did you mean {' or '.join(near)}?" if near else f"{self._system} has no such field, as far as known"
            )
            draft.refuse(spelled, raw, f"unknown field; {hint}")
            return
        row = self._fields[name]
        try:
            value = read_value(row.kind, raw)
            if value is None and row.aliases:
                # Nothing by one name of several: the others say it.
                return
            is_needed = row.default is not None and row.kind in _NEVER_NULL and row.convert is None
            if value is None and is_needed and None not in row.accepts:
                raise Unfit(f"a value is expected; leave it out for {_shown(row.default)}")
            if name in self._values:
                draft.notes.append(f"{spelled} and {self._spelled[name]} are one field: {spelled} counts")
            self._values[name] = value
        except Unfit as error:
            self._failed.add(name)
            draft.refuse(spelled, raw, str(error))
        self._spelled[name] = spelled

    def _family(self, spelled: str) -> Field | None:
        """The row "a.*" that stands for all fields below a; of several the narrowest."""
        fitting = [row for row in self._families if spelled.startswith(row.name[:-1])]
        return max(fitting, key=lambda row: len(row.name), default=None)

    def miss(self, spelled: str, reason: str, draft: Draft) -> None:
        """A field that the source gives without a value that can be told: it matters as much as the field does."""
        name = self._names.get(spelled)
        row = self._fields[name] if name is not None else self._family(spelled)
        if name in self._values:
            return  # Another name of it says.
        if row is not None and row.fate is Fate.IGNORED:
            draft.notes.append(f"{spelled} {reason}; it changes nothing here: {row.why}")
            return
        cure = row.to[0] if row is not None and len(row.to) == 1 else ""
        if cure:
            reason = f"{reason}; answer with --set {cure}=..."
        draft.refuse(spelled, None, reason, blocks=row is None or row.fate is not Fate.OUTSIDE, cure=cure)

    def __getitem__(self, name: str) -> Any:
        self._used.add(name)
        return self._values.get(name, self._fields[name].default)

    def is_given(self, name: str) -> bool:
        return name in self._values

    def origin(self, *names: str) -> Origin:
        """Says fields in the source's words: "beta = 0.05 (default)"."""
        parts = []
        for name in names:
            spelled = self._spelled.get(name, name)
            suffix = "" if name in self._values else f" ({self._system}'s default)"
            parts.append(f"{spelled} = {_shown(self._values.get(name, self._fields[name].default))}{suffix}")
        return Origin(", ".join(parts), any(name in self._values for name in names))

    def sort(self, draft: Draft) -> None:
        """Sets what fields set by themselves; notes, and refuses, what the others say."""
        for row in self._fields.values():
            if row.name in self._failed:
                self._used.add(row.name)
            elif row.fate is Fate.MAPPED:
                if not row.composed:
                    self._copy(row, draft)
            elif row.name in self._values:
                self._judge(row, draft)

    def _copy(self, row: Field, draft: Draft) -> None:
        value = self[row.name]
        try:
            draft.set(row.to[0], row.convert(value) if row.convert else value, self.origin(row.name))
        except Unfit as error:
            draft.refuse(self._spelled.get(row.name, row.name), value, str(error))

    def _judge(self, row: Field, draft: Draft) -> None:
        self._judge_value(row, self._spelled[row.name], self[row.name], draft)

    def _judge_value(self, row: Field, spelled: str, value: Any, draft: Draft) -> None:
        if row.fate is Fate.IGNORED:
            draft.notes.append(f"{spelled} = {_shown(value, spelled)} changes nothing here: {row.why}")
        elif any(_same(value, accepted) for accepted in row.accepts):
            return
        elif row.fate is Fate.OUTSIDE:
            draft.refuse(spelled, value, f"{row.why}; training is the same without it", blocks=False)
        else:
            prefix = "not yet available: " if row.fate is Fate.NOT_YET else ""
            draft.refuse(spelled, value, prefix + row.why, cure=row.to[0] if row.to else "")

    def unused(self) -> Iterable[str]:
        """Given fields that nobody looked at."""
        return sorted(self._spelled[name] for name in self._values if name not in self._used)


def _same(value: Any, accepted: Any) -> bool:
    if isinstance(value, bool) or isinstance(accepted, bool) or accepted is None:
        return value is accepted or (accepted is None and value in ("", [], {}))
    return bool(value == accepted)


_SECRETS = re.compile(r"(^|[._])(api_?key|password|secret|(hub|hf|access|auth)_token)$|(^|\.)token$", re.IGNORECASE)


def _shown(value: Any, name: str = "") -> str:
    """A value for people; what its name says is secret is not repeated."""
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
