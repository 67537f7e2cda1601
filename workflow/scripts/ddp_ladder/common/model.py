"""The base of every model of a file: it reads the file and writes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Self, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, Strict, ValidationError
from pydantic.json_schema import GenerateJsonSchema

LONGEST_VALUE = 80  # characters of a value in a message

T = TypeVar("T")
Several = Annotated[tuple[T, ...], Strict(False)]  # a tuple, read from a JSON array; its items are strict
Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]
Name = Annotated[str, Field(min_length=1)]
Amount = Annotated[float, Field(ge=0)]
Duration = Amount  # seconds


def _only(version: int) -> Callable[[int], int]:
    def check(given: int) -> int:
        if given != version:
            raise ValueError(f"{given}, not {version}: another version of ddp-ladder wrote this file")
        return given

    return check


Version1 = Annotated[int, AfterValidator(_only(1)), Field(description="Version of this format.")]
"""Not a Literal, which also accepts 1.0 and true."""
Version2 = Annotated[int, AfterValidator(_only(2)), Field(description="Version of this format.")]
Version3 = Annotated[int, AfterValidator(_only(3)), Field(description="Version of this format.")]

IN_A_MODEL = ConfigDict(strict=False, extra="forbid")
"""For a dataclass that is part of a model: a strict one accepts only its instances, and no mapping from a file."""


class Model(BaseModel):
    """Values of exactly the declared types: no key may be unknown, and no value is converted."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)

    @classmethod
    def from_json(cls, data: Any) -> Self:
        """Build from JSON. Raises ValueError with place and message of the first violation."""
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            raise ValueError(first_error(error)) from None

    def replace(self, **changes: Any) -> Self:
        """Return a copy with other values, which are checked. Raises ValidationError, a ValueError."""
        return self.model_validate({**dict(self), **changes})


class Schema(GenerateJsonSchema):
    """JSON Schema without a title for each field, which would only repeat its name."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def schema_of(model: type[Model]) -> dict[str, Any]:
    """Return the JSON Schema of the files that the model reads and writes."""
    return {"$schema": Schema.schema_dialect, **model.model_json_schema(schema_generator=Schema)}


def first_error(error: ValidationError) -> str:
    """Return place and message of the first violation: ``spec/nodes: should be a valid integer, found '1'``."""
    first = error.errors(include_url=False)[0]
    place = "/".join(str(key) for key in first["loc"])
    if first["type"] == "missing":
        return f"{place} is missing"
    if first["type"] == "extra_forbidden":
        return f"{place}: there is no such key"
    if first["type"] in ("value_error", "assertion_error"):
        return ": ".join(part for part in (place, str(first["ctx"]["error"])) if part)
    value = repr(first["input"])
    value = value if len(value) <= LONGEST_VALUE else f"{value[:LONGEST_VALUE]}..."
    return f"{place or 'top level'}: {first['msg'].removeprefix('Input ')}, found {value}"
