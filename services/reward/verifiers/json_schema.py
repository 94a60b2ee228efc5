"""JSON that matches a schema (json-schema.org)."""

import importlib
import json
import sys
from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from typing import Any

from pydantic import Field

from services.reward.common.deadline import within
from services.reward.common.json_text import NumberTooLarge, exact_json, is_json, json_part
from services.reward.common.text import tagged_or_all
from services.reward.common.verdict import Unscorable, Verdict
from services.reward.common.verifier import Verifier
from shoal.config.tables.section import Section
from shoal.parsing import compile_schema, unique_keys

_LARGEST_DOUBLE = Decimal(sys.float_info.max)


class JsonSchemaOptions(Section):
    timeout_s: float = Field(default=2.0, gt=0)
    """Longest time for validating one completion. After this time the completion is UNSCORABLE."""


def load() -> None:
    """Imports jsonschema."""
    importlib.import_module("jsonschema")


def verify(completion: str, label: Any, options: JsonSchemaOptions = JsonSchemaOptions()) -> Verdict:
    """Validates the completion's JSON against the label's schema.

    The JSON is the whole answer, or the last fenced block in it, or the last <answer>...</answer>. Numbers are compared
    as they are written. Label: a JSON schema, as an object or as text; without "$schema" its draft is 2020-12.
    References to other documents are not followed. Value: 1 if the JSON is valid, else 0. The completion is
    unscorable if its JSON is nested too deeply, has a number that exceeds a double or has more than 10,000 digits, or
    takes longer than `timeout_s` to validate.
    """
    import jsonschema

    validator = _validator(label if isinstance(label, str) else json.dumps(label))
    try:
        return within(options.timeout_s, "validating the JSON", lambda: _validate(completion, validator))
    except NumberTooLarge as error:
        raise Unscorable(f"the completion's JSON holds a number too large to be judged: {error}") from None
    except RecursionError:
        raise Unscorable("the completion's JSON is nested too deeply to be judged") from None
    except jsonschema.exceptions._WrappedReferencingError as error:
        raise Unscorable(f"the label's schema refers to another document: {error}") from None


def _validate(completion: str, validator: Any) -> Verdict:
    try:
        document = exact_json(completion if is_json(completion) else json_part(tagged_or_all(completion)))
    except ValueError as error:
        return Verdict(0.0, f"not JSON: {error}")
    wrong = next(validator.iter_errors(document), None)
    return Verdict(float(wrong is None), "" if wrong is None else f"{wrong.json_path}: {wrong.message}")


def _multiple_of(validator: Any, factor: Any, number: Any, schema: Any) -> Iterator[Exception]:
    """Divides the numbers as they are written. In binary, 0.3 is not a multiple of 0.1."""
    import jsonschema

    if isinstance(number, Decimal) and abs(number) > _LARGEST_DOUBLE:
        raise NumberTooLarge(f"{number!s:.20}")
    if validator.is_type(number, "number") and (Fraction(number) / Fraction(factor)).denominator != 1:
        yield jsonschema.ValidationError(f"{number!r} is not a multiple of {factor!r}")


@lru_cache(maxsize=64)
def _validator(label: str) -> Any:
    try:
        schema = exact_json(label, object_pairs_hook=unique_keys)
        return compile_schema(schema, {"multipleOf": _multiple_of})
    except NumberTooLarge as error:
        raise Unscorable(
            f"the label is not a usable JSON schema: it holds a number too large to judge by: {error}"
        ) from None
    except (ValueError, RecursionError) as error:
        raise Unscorable(f"the label is not a usable JSON schema: {error!s:.200}") from None


VERIFIER = Verifier(verify, values="1 or 0", options=JsonSchemaOptions, load=load, package="jsonschema")
