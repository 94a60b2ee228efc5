"""How a command writes its result."""

from enum import StrEnum


class Output(StrEnum):
    """How results are written."""

    TABLE = "table"
    JSON = "json"
