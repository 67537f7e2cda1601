"""The JSON schemas in workflow/schemas."""

from __future__ import annotations

from functools import cache
from typing import Any

import yaml
from jsonschema import Draft202012Validator
from jsonschema.protocols import Validator
from jsonschema.validators import extend

from ddp_ladder.common.paths import SCHEMAS

LONGEST_MESSAGE = 200  # characters


def _is_integer(_checker: object, value: object) -> bool:
    """Return True for an int; JSON Schema also accepts 1.0, which no program here writes."""
    return isinstance(value, int) and not isinstance(value, bool)


StrictValidator = extend(  # type: ignore[no-untyped-call]
    Draft202012Validator, type_checker=Draft202012Validator.TYPE_CHECKER.redefine("integer", _is_integer)
)


@cache
def validator(name: str, part: str | None = None) -> Validator:
    """Return the validator of workflow/schemas/<name>.schema.yaml, or of one of its ``$defs``."""
    schema = yaml.safe_load((SCHEMAS / f"{name}.schema.yaml").read_text())
    if part is not None:
        schema = {"$defs": schema["$defs"], "$ref": f"#/$defs/{part}"}
    checker: Validator = StrictValidator(schema)
    return checker


def first_error(name: str, data: Any, part: str | None = None) -> str | None:
    """Return place and message of the first violation; None if the data is valid."""
    error = next(iter(validator(name, part).iter_errors(data)), None)
    if error is None:
        return None
    place = "/".join(str(key) for key in error.absolute_path) or "top level"
    return f"{place}: {_shortened(error.message)}"


def _shortened(message: str) -> str:
    """Return both ends of a long message: the validator quotes the whole value before it names the error."""
    if len(message) <= LONGEST_MESSAGE:
        return message
    return f"{message[: LONGEST_MESSAGE // 2]} ... {message[-LONGEST_MESSAGE // 2 :]}"
