"""A tool call as a person types it: "/tool {...}"."""

import json
from collections.abc import Sequence

from shoal.conversation import ToolDefinition
from shoal.errors import InvalidArgument


def typed_call(line: str, tools: Sequence[ToolDefinition]) -> str:
    """Returns a line in the policy's form: "/tool {...}" becomes a call in the form "hermes" if there are tools, and
    any other line stays unchanged. Raises `InvalidArgument` for arguments that are not a JSON object."""
    if not (tools and line.startswith("/")):
        return line
    name, _, arguments = line[1:].partition(" ")
    arguments = arguments.strip() or "{}"
    if not _is_object(arguments):
        parameters = next((tool.parameters for tool in tools if tool.name == name), {})
        gaps = ", ".join(f"{json.dumps(key)}: ..." for key in parameters.get("properties", {}))
        raise InvalidArgument(f"arguments must be a JSON object, as in /{name} {{{gaps}}}")
    return f'<tool_call>{{"name": {json.dumps(name)}, "arguments": {arguments}}}</tool_call>'


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False
