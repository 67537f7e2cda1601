"""The JSON schemas in workflow/schemas."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator

DIRECTORY = Path(__file__).parents[2] / "schemas"


@cache
def validator(name: str) -> Draft202012Validator:
    """Validator of workflow/schemas/<name>.schema.yaml."""
    return Draft202012Validator(yaml.safe_load((DIRECTORY / f"{name}.schema.yaml").read_text()))


def first_error(name: str, data: Any) -> str | None:
    """Place and message of the first violation; None when the data fits."""
    error = next(iter(validator(name).iter_errors(data)), None)
    if error is None:
        return None
    place = "/".join(str(part) for part in error.absolute_path) or "top level"
    return f"{place}: {error.message}"
