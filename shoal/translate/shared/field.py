"""Rows of the peers' tables."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Literal

from shoal.parsing import parse_json

NOT_YET: dict[str, str] = {
    "quantized training": "8-bit models and quantization-aware training; today a frozen model may have 4 bits",
    "vision": "images, audio and video; today models are trained on text alone",
    "mixture of experts": "mixture-of-experts training; today only dense models are trained",
    "FP8 rollout": "quantized engines and caches; today the engine computes in float32, bfloat16 or float16",
    "evolving rubrics": "rubrics that change during a run; today the rubrics in the data do not change",
    "distillation": "distillation from a teacher",
    "multi-token prediction": "heads that predict several tokens",
    "PF-PPO": "weighting completions by their rewards",
}
"""Feature that other systems have and Shoal will have -> the reason in a refusal. When a feature arrives, delete its
row here and in docs/translation.md."""
Kind = Literal["text", "integer", "number", "flag", "texts", "integers", "numbers", "table", "any"]


class Fate(StrEnum):
    """The treatment of a field."""

    MAPPED = "mapped"
    """The field sets fields of Shoal."""
    IGNORED = "ignored"
    """No value of the field changes the training in Shoal; a note gives the reason."""
    ACCEPTED = "accepted"
    """The accepted values of the field match Shoal's behavior; other values are refused."""
    OUTSIDE = "outside"
    """Shoal does not have the field, but training is the same without it, so its refusal blocks nothing."""
    NOT_YET = "not yet available"
    """Like ACCEPTED, but refused values will be possible later."""
    REFUSED = "refused"
    """Like ACCEPTED, and refused values are not planned."""


@dataclass(frozen=True)
class Field:
    """A row of a system's table: a field of the system, and how Shoal treats it."""

    name: str
    kind: Kind
    default: Any
    """The source system's own default."""
    fate: Fate
    to: tuple[str, ...] = ()
    """Shoal's fields that this field decides, alone or with other fields (MAPPED)."""
    convert: Callable[[Any], Any] | None = None
    """Converts the value for the only field in `to`; None copies it."""
    composed: bool = False
    """Whether the system's `compose` reads the field, since several fields decide together."""
    accepts: tuple[Any, ...] = ()
    """Values that match Shoal's behavior."""
    why: str = ""
    """The reason for a refusal or a note, a key of `NOT_YET`, or the conversion of a mapped field."""
    aliases: tuple[str, ...] = ()
    """Earlier or alternative names."""

    @property
    def spellings(self) -> tuple[str, ...]:
        return (self.name, *self.aliases)


_PLAYED = (
    "Shoal cannot translate tools and environments that are code: declare them with --set environments=... "
    "(docs/environments.md), and name them in data.sources"
)


class Unfit(ValueError):
    """A value has no counterpart. The message is the reason, with the cure."""


def mapped(
    name: str,
    kind: Kind,
    default: Any,
    to: str,
    convert: Callable[[Any], Any] | None = None,
    *,
    why: str = "",
    aliases: Sequence[str] = (),
) -> Field:
    """Returns a row whose field sets one field of Shoal."""
    return Field(name, kind, default, Fate.MAPPED, (to,), convert, why=why, aliases=tuple(aliases))


def composed(
    name: str,
    kind: Kind,
    default: Any,
    to: str,
    *,
    why: str = "",
    aliases: Sequence[str] = (),
    accepts: Sequence[Any] = (),
) -> Field:
    """Returns a row that decides Shoal's fields together with other rows. Spaces separate the fields in `to`."""
    row = Field(name, kind, default, Fate.MAPPED, tuple(to.split()), composed=True)
    return replace(row, why=why, aliases=tuple(aliases), accepts=tuple(accepts))


def ignored(name: str, why: str, *, aliases: Sequence[str] = ()) -> Field:
    """Returns a row whose field changes no result in Shoal."""
    return Field(name, "any", None, Fate.IGNORED, why=why, aliases=tuple(aliases))


def accepted(name: str, kind: Kind, default: Any, why: str, *, accepts: Sequence[Any] = ()) -> Field:
    """Returns a row whose default and accepted values match Shoal's behavior. Other values are refused."""
    return Field(name, kind, default, Fate.ACCEPTED, accepts=(*accepts, default), why=why)


def outside(name: str, kind: Kind, default: Any, why: str, *, accepts: Sequence[Any] = (None, False)) -> Field:
    """Returns a row for a feature that Shoal does not have, and without which training is the same."""
    return Field(name, kind, default, Fate.OUTSIDE, accepts=tuple(accepts), why=why)


def refused(
    name: str,
    kind: Kind,
    default: Any,
    why: str,
    *,
    accepts: Sequence[Any] = (None, False),
    aliases: Sequence[str] = (),
    cure: str = "",
) -> Field:
    """Returns a row for a feature that Shoal does not have. `cure` is the field of Shoal that resolves the refusal."""
    to = (cure,) if cure else ()
    return Field(name, kind, default, Fate.REFUSED, to, accepts=(*accepts, default), why=why, aliases=tuple(aliases))


def played(name: str, kind: Kind, *, default: Any = None, accepts: Sequence[Any] = (None, False)) -> Field:
    """Returns a row for tools, environments and agents in the source's own code."""
    return refused(name, kind, default, _PLAYED, accepts=accepts, cure="environments")


def not_yet(
    name: str,
    kind: Kind,
    default: Any,
    feature: str,
    *,
    accepts: Sequence[Any] = (None, False),
    aliases: Sequence[str] = (),
) -> Field:
    """Returns a row for a feature that is not yet available, by its key in `NOT_YET`."""
    assert feature in NOT_YET, feature
    return Field(name, kind, default, Fate.NOT_YET, accepts=(*accepts, default), why=feature, aliases=tuple(aliases))


def rows(*described: Field) -> list[Field]:
    """Returns the rows of a table. A row whose name has several words becomes a row for each word."""
    return [replace(row, name=name) for row in described for name in row.name.split()]


def each(row: Field, names: str) -> list[Field]:
    """Returns a copy of `row` for each word in `names`. The name of a copy is `row.name` followed by the word."""
    return [replace(row, name=f"{row.name}{name}") for name in names.split()]


def read_value(kind: Kind, raw: Any) -> Any:
    """Converts a text of a command line, or a typed value of a file. Raises `Unfit`, which says what is expected."""
    if isinstance(raw, str) and raw.strip().lower() in ("none", "null", "~", ""):
        raw = None if kind != "text" or raw else ""
    if raw is None or kind == "any":
        return raw
    if kind == "table":
        if isinstance(raw, str):
            try:
                raw = parse_json(raw)
            except ValueError:
                raise Unfit("a table of settings is expected, as JSON") from None
        if not isinstance(raw, Mapping):
            raise Unfit("a table of settings is expected")
        return dict(raw)
    if kind in _ITEMS:
        items = raw if isinstance(raw, list | tuple) else str(raw).strip("[]()").replace(",", " ").split()
        return [read_value(_ITEMS[kind], item) for item in items]
    if isinstance(raw, list | tuple):
        if len(raw) != 1:
            raise Unfit(f"one value is expected, not {len(raw)}")
        raw = raw[0]
    if isinstance(raw, Mapping):
        raise Unfit("one value is expected, not a table")
    return _READERS[kind](raw)


def _flag(raw: Any) -> bool:
    if isinstance(raw, bool):
        return raw
    text = str(raw).strip().lower()
    if text in ("true", "1", "yes", "on", "t", "y"):
        return True
    if text in ("false", "0", "no", "off", "f", "n"):
        return False
    raise Unfit("true or false is expected")


def _integer(raw: Any) -> int:
    number = _number(raw)
    if number != int(number):
        raise Unfit("a whole number is expected")
    return int(number)


def _number(raw: Any) -> float:
    try:
        number = float(raw)
    except (TypeError, ValueError, OverflowError):
        raise Unfit("a number is expected") from None
    if not math.isfinite(number):
        raise Unfit("a finite number is expected")
    return number


_ITEMS: dict[str, Kind] = {"texts": "text", "integers": "integer", "numbers": "number"}
_READERS: dict[str, Callable[[Any], Any]] = {"text": str, "integer": _integer, "number": _number, "flag": _flag}


def text_list(value: Any) -> list[str]:
    """Converts one text, several texts or None to a list. Unlike the kind "texts", it does not split a text."""
    texts = value if isinstance(value, list | tuple) else [] if value is None else [value]
    if not all(isinstance(text, str) for text in texts):
        raise Unfit("a text or a list of texts is expected")
    return list(texts)


def kept(*values: Any) -> Callable[[Any], Any]:
    """Returns a conversion that keeps these values and refuses all others."""
    return choice({value: value for value in values})


def choice(options: dict[Any, Any]) -> Callable[[Any], Any]:
    """Returns a conversion that looks up the value in `options`. It raises `Unfit` for any other value."""

    def convert(value: Any) -> Any:
        if value not in options:
            raise Unfit(f"Shoal supports only {', '.join(map(str, options))}")
        return options[value]

    return convert


AGGREGATION = kept("token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm")
"""The conversion of verl's and ROLL's `loss_agg_mode`."""
