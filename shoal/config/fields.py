"""Looks up fields of RunConfig by their place: "data.sources.0.path" is ["data", "sources", "0", "path"]."""

from collections.abc import Mapping, Sequence
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel

from shoal.config.run import RunConfig

_MAY_HOLD_KEYS = tuple([table, field] for table in ("judge", "model") for field in ("api_key_env", "base_url"))


def all_fields(section: type[BaseModel], prefix: str = "") -> list[str]:
    """Returns the dotted names of all fields of a configuration file, without fields under names that users choose."""
    names = []
    for name, field in section.model_fields.items():
        names.append(f"{prefix}{name}")
        inner = section_type(field.annotation)
        if inner is not None and get_origin(field.annotation) not in (dict, list):
            names += all_fields(inner, f"{prefix}{name}.")
    return names


def may_hold_key(location: Sequence[str]) -> bool:
    """Returns whether a field may contain a key by mistake. Messages do not repeat the value of such a field."""
    return list(location[-2:]) in _MAY_HOLD_KEYS


def takes_as_text(location: Sequence[str], value: Any) -> bool:
    """Returns whether the field at a location in RunConfig takes a TOML value as the literal text in the file.

    A text field takes the literal text. A field that also takes a list of texts does so unless the value is a list.
    """
    if isinstance(value, str):
        return False
    kinds = _kinds(annotation_at(location))
    others = {kind for kind in kinds if kind not in (str, type(None))}
    return str in kinds and (not others or (others == {list[str]} and not isinstance(value, list)))


def annotation_at(location: Sequence[str]) -> Any:
    """Returns the type of a field of RunConfig, or of a list's or table's item, by its location, or None."""
    section = _section_at(location[:-1])
    if section is not None:
        field = section.model_fields.get(location[-1])
        return field.annotation if field else None
    holders = _kinds(annotation_at(location[:-1])) if location[1:] else ()
    item = next((get_args(kind)[-1] for kind in holders if get_origin(kind) in (list, dict)), None)
    return get_args(item)[0] if get_origin(item) is Annotated else item


def _kinds(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)


def listed(value: Any, location: Sequence[str] = ()) -> Any:
    """Turns a table with which overrides set all items of a list of RunConfig into a list: {"0": x} becomes [x]."""
    if not isinstance(value, Mapping):
        return value
    items = {str(key): listed(item, [*location, str(key)]) for key, item in value.items()}
    is_list = bool(items and location) and get_origin(annotation_at(location)) is list
    numbers = [str(number) for number in range(len(items))]
    return [items[number] for number in numbers] if is_list and items.keys() == set(numbers) else items


def field_names(location: Sequence[str]) -> list[str]:
    """Returns the names of the fields in the section at a location in RunConfig."""
    section = _section_at(location)
    return sorted(section.model_fields) if section else []


def _section_at(location: Sequence[str]) -> type[BaseModel] | None:
    section: type[BaseModel] = RunConfig
    is_key = False
    for part in location:
        if part.isdigit() or is_key:
            is_key = False
            continue
        field = section.model_fields.get(part)
        inner = section_type(field.annotation) if field else None
        if field is None or inner is None:
            return None
        section, is_key = inner, get_origin(field.annotation) is dict
    return section


def section_type(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if get_origin(annotation) in (list, dict, Union, UnionType):
        for argument in get_args(annotation):
            if (found := section_type(argument)) is not None:
                return found
    return None
