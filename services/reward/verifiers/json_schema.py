"""JSON that matches a schema (json-schema.org)."""

import importlib
import json
from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache
from typing import Any

from pydantic import Field

from services.reward.common.deadline import deadline
from services.reward.common.text import last_between
from services.reward.common.verdict import Unscorable, Verdict
from services.reward.common.verifier import Verifier
from shoal.config.section import Section
from shoal.parsing import compile_schema

_FENCE = "```"


class JsonSchemaOptions(Section):
    timeout_s: float = Field(default=2.0, gt=0)
    """Longest time for validating one completion; past it the completion is UNSCORABLE."""


def load() -> None:
    """Imports jsonschema."""
    importlib.import_module("jsonschema")


def verify(completion: str, label: Any, options: JsonSchemaOptions = JsonSchemaOptions()) -> Verdict:
    """Validates the completion's JSON against the label's schema.

    The JSON is the whole answer, or the last fenced block in it, or the last <answer>...</answer>.
    Label: a JSON schema, as an object or as text; without "$schema" its draft is 2020-12. References to other
    documents are not followed. Value: 1 if the JSON is valid, else 0. JSON that is nested too deeply, or takes longer
    than `timeout_s` to validate, makes the completion unscorable.
    """
    import jsonschema

    validator = _validator(label if isinstance(label, str) else json.dumps(label))
    text = _json_text(completion)
    try:
        document = json.loads(text, parse_constant=_refuse)
    except ValueError as error:
        return Verdict(0.0, f"not JSON: {error}")
    except RecursionError:
        raise Unscorable("the completion's JSON is nested too deeply to be read") from None
    try:
        with deadline(options.timeout_s, "validating the JSON"):
            wrong = next(validator.iter_errors(document), None)
    except OverflowError:
        raise Unscorable("the completion's JSON holds a number too large to be judged") from None
    except RecursionError:
        raise Unscorable("the completion's JSON is nested too deeply to be judged") from None
    except jsonschema.exceptions._WrappedReferencingError as error:
        raise Unscorable(f"the label's schema refers to something outside of it: {error}") from None
    return Verdict(float(wrong is None), "" if wrong is None else f"{wrong.json_path}: {wrong.message}")


def _number(text: str) -> float:
    """Reads 3.0, as it comes from the wire, as 3: older drafts accept no 3.0 as an integer."""
    number = float(text)
    return int(number) if number.is_integer() else number


def _multiple_of(validator: Any, factor: float, number: Any, schema: Any) -> Iterator[Exception]:
    """Divides as the numbers are written: in binary, 0.3 is not a multiple of 0.1."""
    import jsonschema

    if validator.is_type(number, "number") and (_exact(number) / _exact(factor)).denominator != 1:
        yield jsonschema.ValidationError(f"{number!r} is not a multiple of {factor!r}")


def _exact(number: float) -> Fraction:
    return Fraction(number) if number in (float("inf"), float("-inf")) else Fraction(repr(number))


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _json_text(completion: str) -> str:
    answer = last_between(completion, "<answer>", "</answer>")
    text = completion if answer is None else answer
    block = last_between(text, _FENCE, _FENCE)
    if block is None:
        return text.strip()
    first_line, _, rest = block.partition("\n")
    return (rest if first_line.strip().isalnum() else block).strip()


@lru_cache(maxsize=64)
def _validator(label: str) -> Any:
    try:
        return compile_schema(json.loads(label, parse_float=_number), {"multipleOf": _multiple_of})
    except (ValueError, RecursionError) as error:
        raise Unscorable(f"the label is no usable JSON schema: {error!s:.200}") from None


VERIFIER = Verifier(verify, values="1 or 0", options=JsonSchemaOptions, load=load, package="jsonschema")
