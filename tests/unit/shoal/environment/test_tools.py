from enum import StrEnum
from typing import Any, Literal

import pytest

from shoal.environment import Environment, tool
from shoal.environment.tools import definition, marked_tools


class Color(StrEnum):
    RED = "red"


def search(query: str, limit: int = 5, *, kinds: list[str] | None = None) -> str:
    """Search the library.

    Looks at titles alone.

    Args:
        query: words,
            all of which occur
        limit (int): how many

    Returns:
        titles: one a line
    """
    return f"{query} {limit} {kinds}"


def test_a_function_is_described_by_its_signature_and_docstring() -> None:
    described = definition(search)
    assert described.name == "search"
    assert described.description == "Search the library.\n\nLooks at titles alone."
    assert described.parameters == {
        "type": "object",
        "properties": {
            "query": {"type": "string", "description": "words, all of which occur"},
            "limit": {"type": "integer", "description": "how many"},
            "kinds": {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}]},
        },
        "additionalProperties": False,
        "required": ["query"],
    }


@pytest.mark.parametrize(
    ("annotation", "schema"),
    [
        (Any, {}),
        (bool, {"type": "boolean"}),
        (float, {"type": "number"}),
        (dict[str, int], {"type": "object"}),
        (list, {"type": "array"}),
        (Literal["a", 1], {"enum": ["a", 1]}),
        (Color, {"enum": ["red"]}),
        (int | str, {"anyOf": [{"type": "integer"}, {"type": "string"}]}),
    ],
)
def test_types_have_their_schema(annotation: Any, schema: dict[str, Any]) -> None:
    def function(value: Any) -> None: ...

    function.__annotations__["value"] = annotation
    assert definition(function).parameters["properties"]["value"] == schema


def test_parameters_that_a_call_cannot_give_are_refused() -> None:
    def positional(*values: int) -> None: ...

    def odd(value: complex) -> None: ...

    with pytest.raises(ValueError, match="'values' by position"):
        definition(positional)
    with pytest.raises(ValueError, match=r"odd: value .*complex"):
        definition(odd)


class Base(Environment):
    @tool
    def first(self) -> str:
        """One."""
        return "1"


class Derived(Base):
    @tool
    def second(self) -> str:
        """Two."""
        return "2"

    def third(self) -> str:
        return "3"


def test_marked_methods_are_tools_in_their_order_bases_first() -> None:
    assert [method.__name__ for method in marked_tools(Derived())] == ["first", "second"]
