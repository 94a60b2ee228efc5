"""The base class of every section of the configuration."""

from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, model_validator

_NUMBERS = (int, float, int | None, float | None)


@dataclass(frozen=True)
class Fixed:
    """Marks a field, or a whole table, that keeps its value when a run is resumed: `Annotated[int, Fixed("why")]`.

    Any other field may change then, and takes effect from the first step of the resumed run.
    """

    reason: str


@dataclass(frozen=True)
class Live:
    """Marks a field, or a whole table, that may change while a run is active: `Annotated[int, Live("at once")]`.

    "at once" is for what does not alter training, "next step" for what does: it changes between two train steps, after
    a checkpoint. Every other field that is not `Fixed` changes when a run is resumed.
    """

    when: Literal["at once", "next step"]


AT_ONCE = Live("at once")
NEXT_STEP = Live("next step")


class Section(BaseModel):
    """A table of the configuration file.

    Unknown keys are errors. Validation is lax about number types, because a configuration also travels as a
    `google.protobuf.Struct`, whose numbers are all doubles: 1.0 is a valid integer.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False, validate_default=True
    )

    @model_validator(mode="before")
    @classmethod
    def _refuse_flags_as_numbers(cls, values: Any) -> Any:
        # Lax validation would read true as 1.
        for name, value in values.items() if isinstance(values, dict) else ():
            if isinstance(value, bool) and name in cls.model_fields and cls.model_fields[name].annotation in _NUMBERS:
                raise ValueError(f"{name} must be a number (given: {str(value).lower()})")
        return values
