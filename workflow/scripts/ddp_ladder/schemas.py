"""The JSON schemas in workflow/schemas."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator
from jsonschema.protocols import Validator
from jsonschema.validators import extend

DIRECTORY = Path(__file__).parents[2] / "schemas"
LONGEST_MESSAGE = 200  # characters


def _is_integer(_checker: object, value: object) -> bool:
    """JSON Schema takes 1.0 for an integer; no program here writes one so."""
    return isinstance(value, int) and not isinstance(value, bool)


StrictValidator = extend(  # type: ignore[no-untyped-call]
    Draft202012Validator, type_checker=Draft202012Validator.TYPE_CHECKER.redefine("integer", _is_integer)
)


@cache
def validator(name: str, part: str | None = None) -> Validator:
    """Validator of workflow/schemas/<name>.schema.yaml, or of one of its ``$defs``."""
    schema = yaml.safe_load((DIRECTORY / f"{name}.schema.yaml").read_text())
    if part is not None:
        schema = {"$defs": schema["$defs"], "$ref": f"#/$defs/{part}"}
    checker: Validator = StrictValidator(schema)
    return checker


def first_error(name: str, data: Any, part: str | None = None) -> str | None:
    """Place and message of the first violation; None when the data fits."""
    error = next(iter(validator(name, part).iter_errors(data)), None)
    if error is None:
        return None
    place = "/".join(str(key) for key in error.absolute_path) or "top level"
    return f"{place}: {_shortened(error.message)}"


def _shortened(message: str) -> str:
    """Both ends: the validator quotes the whole value, and then says what is wrong with it."""
    if len(message) <= LONGEST_MESSAGE:
        return message
    return f"{message[: LONGEST_MESSAGE // 2]} ... {message[-LONGEST_MESSAGE // 2 :]}"
