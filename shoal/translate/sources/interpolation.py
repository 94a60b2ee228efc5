"""References between the settings of one file: OmegaConf's `${name}`, `${oc.env:NAME,default}`, `${oc.select:name}`."""

import re
from collections.abc import Mapping
from typing import Any

from shoal.errors import InvalidArgument
from shoal.parsing import parse_yaml

_REFERENCE = re.compile(r"\$\{([^${}]+)\}")
_ENVIRONMENT = re.compile(r"oc\.env:\s*\w+\s*(?:,(.*))?")
_SELECT = re.compile(r"oc\.select:\s*([^,]+?)\s*(?:,(.*))?")
_MISSING = object()
_MAX_CHARS = 1 << 20


class References:
    """Replaces references by their targets; `names` collects the settings that references name."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values
        self._num_chars = 0
        self.names: set[str] = set()

    def resolved(self, value: Any, path: tuple[str, ...] = ()) -> Any:
        """Returns a value with its references replaced, even inside tables and lists. Unknown references stay.

        Raises `InvalidArgument` if references that contain references make a text too long.
        """
        if isinstance(value, Mapping):
            return {key: self.resolved(item, path) for key, item in value.items()}
        if isinstance(value, list):
            return [self.resolved(item, path) for item in value]
        if not isinstance(value, str) or "${" not in value:
            return value
        self._num_chars += len(value)
        if self._num_chars > _MAX_CHARS:
            raise InvalidArgument(f"the references (${{...}}) expand to more than {_MAX_CHARS} characters: use fewer")
        if whole := _REFERENCE.fullmatch(value):
            target = self._target(whole[1], path)
            return value if target is _MISSING else target
        text = _REFERENCE.sub(lambda match: self._text(match, path), value)
        # A reference inside a reference is replaced first.
        return text if text == value else self.resolved(text, path)

    def _text(self, match: re.Match[str], path: tuple[str, ...]) -> str:
        target = self._target(match[1], path)
        return match[0] if target is _MISSING or isinstance(target, Mapping | list) else str(target)

    def _target(self, name: str, path: tuple[str, ...]) -> Any:
        """Returns the target of a reference, or `_MISSING`; `path` has the references that led to this reference."""
        if environment := _ENVIRONMENT.fullmatch(name):
            return _MISSING if environment[1] is None else scalar(environment[1])
        select = _SELECT.fullmatch(name)
        wanted = select[1] if select else name
        found = _MISSING if wanted in path else _walk(self._values, wanted)
        if found is not _MISSING:
            self.names.add(wanted)
            return self.resolved(found, (*path, wanted))
        return scalar(select[2] or "null") if select else _MISSING


def _walk(values: Any, name: str) -> Any:
    if isinstance(values, Mapping) and name in values:
        return values[name]
    for part in name.split("."):
        if not isinstance(values, Mapping) or part not in values:
            return _MISSING
        values = values[part]
    return values


def scalar(text: str) -> Any:
    """Returns the value of a text as YAML, or the text itself if it is not valid YAML."""
    try:
        return parse_yaml(text)
    except ValueError:
        return text
