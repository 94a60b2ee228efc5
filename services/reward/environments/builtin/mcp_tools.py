"""The form in which a policy is offered tools of an MCP server: possibly other names and fewer parameters."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shoal.conversation import ToolDefinition

_KEYS = ("tool", "parameters", "arguments")


@dataclass(frozen=True)
class OfferedTool:
    """A tool that a policy is offered."""

    name: str
    """The name that the policy calls."""
    tool: str
    """Its name at the server."""
    parameters: tuple[str, ...] | None = None
    """The parameters that the policy may give; None for all that `arguments` does not have."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Arguments that the server gets if the policy does not give them."""

    def definition(self, there: Mapping[str, ToolDefinition]) -> ToolDefinition:
        """Returns the definition for the policy; the server's tools `there` describe the arguments.

        Raises `ValueError` for a tool or a parameter that the server does not have, and for a required parameter
        without a source.
        """
        if self.tool not in there:
            raise ValueError(f"the MCP server has no tool {self.tool!r}; it has: {', '.join(there)}")
        described, schema = there[self.tool].description, there[self.tool].parameters
        if self.parameters is None and not self.arguments:
            return ToolDefinition(self.name, described, schema)
        properties = schema.get("properties") or {}
        for name in (*(self.parameters or ()), *self.arguments):
            if name not in properties:
                has = ", ".join(properties) or "none"
                raise ValueError(f"tools.{self.name}: {self.tool} has no parameter {name!r}; it has: {has}")
        given = self.parameters
        if given is None:
            given = tuple(name for name in properties if name not in self.arguments)
        required = [name for name in schema.get("required") or () if name not in self.arguments]
        for name in required:
            if name not in given:
                raise ValueError(f"tools.{self.name}: {self.tool} needs {name!r}: name it in parameters or arguments")
        shown = {key: value for key, value in schema.items() if key != "patternProperties"} | {
            "properties": {name: properties[name] for name in given},
            "required": required,
            "additionalProperties": False,
        }
        return ToolDefinition(self.name, described, shown)


def offered_tools(tools: Sequence[str] | Mapping[str, Mapping[str, Any]]) -> dict[str, OfferedTool]:
    """Reads the setting `tools`: names, or tables by name. Raises `ValueError`.

    Tables are in the order of their names, since settings lose the order of keys on their way here.
    """
    if not isinstance(tools, Mapping):
        return {name: OfferedTool(name, name) for name in tools}
    return {name: _offered(name, table) for name, table in sorted(tools.items())}


def _offered(name: str, table: Any) -> OfferedTool:
    if not isinstance(table, Mapping) or (unknown := sorted({*table} - {*_KEYS})):
        problem = f"unknown key {unknown[0]!r}" if isinstance(table, Mapping) else "must be a table"
        raise ValueError(f"tools.{name}: {problem}; a tool may have {', '.join(_KEYS)}")
    parameters, arguments = table.get("parameters"), table.get("arguments", {})
    if parameters is not None and not _are_texts(parameters):
        raise ValueError(f"tools.{name}.parameters must be a list of names (given: {parameters!r:.80})")
    if not isinstance(arguments, Mapping):
        raise ValueError(f"tools.{name}.arguments must be a table (given: {arguments!r:.80})")
    tool = table.get("tool", name)
    if not isinstance(tool, str) or not tool:
        raise ValueError(f"tools.{name}.tool must be the name of a tool (given: {tool!r:.80})")
    return OfferedTool(name, tool, None if parameters is None else tuple(parameters), arguments)


def _are_texts(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(item, str) for item in value)
