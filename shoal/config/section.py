"""What every section of the configuration has in common."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A table of the configuration file.

    Unknown keys are errors. Validation is lax about number types, because a configuration also travels
    as a `google.protobuf.Struct`, whose numbers are all doubles: 1.0 is a fine integer.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False, validate_default=True
    )
