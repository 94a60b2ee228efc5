"""The base class of every section of the configuration."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, model_validator

_NUMBERS = (int, float, int | None, float | None)


@dataclass(frozen=True)
class Fixed:
    """Marks a field, or a whole table, that keeps its value when a run is resumed: `Annotated[int, Fixed("why")]`.

    A field without this mark may change at a resume, and takes effect from the first step of the resumed run.
    """

    reason: str


@dataclass(frozen=True)
class Live:
    """Marks a field, or a whole table, that may change while a run is active: `Annotated[int, Live("at once")]`.

    "at once" is for fields that do not alter training. "next step" is for fields that do: such a field changes between
    two train steps, after a checkpoint. Every other field that is not `Fixed` changes when a run is resumed.
    """

    when: Literal["at once", "next step"]


class OptionOf:
    """Marks an option that only some choices of another field have: `Annotated[float, OptionOf("sapo")]`."""

    def __init__(self, *choices: str) -> None:
        self.choices = choices


Mark = TypeVar("Mark", Fixed, Live)
AT_ONCE = Live("at once")
NEXT_STEP = Live("next step")


def marked_fields(kind: type[Mark], section: type[BaseModel], path: str = "") -> Iterator[tuple[str, Mark]]:
    """Yields the dotted name of each field and table of a section that has a mark of this kind, and the mark."""
    for name, field in section.model_fields.items():
        mark = next((item for item in field.metadata if isinstance(item, kind)), None)
        if mark is not None:
            yield path + name, mark
        elif isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from marked_fields(kind, field.annotation, f"{path}{name}.")


class Section(BaseModel):
    """A table of the configuration file.

    Unknown keys are errors. Validation is lax about number types, because a configuration also travels as a
    `google.protobuf.Struct`, whose numbers are all doubles: 1.0 is a valid integer.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False, validate_default=True
    )

    def check_options(self, chooser: str) -> None:
        """Raises `ValueError` if an option is set that belongs to another choice of the field `chooser`."""
        choice = getattr(self, chooser)
        for name, field in type(self).model_fields.items():
            owner = next((item for item in field.metadata if isinstance(item, OptionOf)), None)
            if owner is not None and choice not in owner.choices and getattr(self, name) != field.default:
                raise ValueError(
                    f"{name} is an option of {chooser} {' and '.join(owner.choices)}, but {chooser} is {choice}: "
                    f"remove {name}, or change {chooser}"
                )

    @model_validator(mode="before")
    @classmethod
    def _refuse_flags_as_numbers(cls, values: Any) -> Any:
        # Lax validation would read true as 1.
        for name, value in values.items() if isinstance(values, dict) else ():
            if isinstance(value, bool) and name in cls.model_fields and cls.model_fields[name].annotation in _NUMBERS:
                raise ValueError(f"{name} must be a number (given: {str(value).lower()})")
        return values
