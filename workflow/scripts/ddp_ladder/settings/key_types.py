"""The types of keys: how a value of config.yaml or cluster.yaml is read, besides the bounds in its field."""

from __future__ import annotations

import ast
import inspect
import itertools
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, Field, PlainValidator, WithJsonSchema
from pydantic.annotated_handlers import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, PydanticKnownError, core_schema

from ddp_ladder.common import meant
from ddp_ladder.common.model import Model, Several
from ddp_ladder.settings.strict_yaml import has_control_characters
from ddp_ladder.settings.terms import Scale

T = TypeVar("T")
ABSENT = object()
"""In place of a value that must be given."""


class Section(Model, defer_build=True):
    """A section of a file. The text below a key describes it, in the JSON Schema too."""

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        # Not pydantic's use_attribute_docstrings, which reads the source at every import.
        json_schema = handler(schema)
        keys = handler.resolve_ref_schema(json_schema)["properties"]
        for section in reversed([base for base in cls.__mro__ if issubclass(base, Section)]):
            for key, text in _texts_below(section):
                keys[key]["description"] = text
        return json_schema


def _texts_below(section: type) -> Iterator[tuple[str, str]]:
    """Yield the keys in a section's source with the text below each."""
    (body,) = ast.parse(inspect.getsource(section)).body
    for key, text in itertools.pairwise(body.body):  # type: ignore[attr-defined]
        if isinstance(key, ast.AnnAssign) and isinstance(text, ast.Expr):
            yield key.target.id, " ".join(ast.literal_eval(text.value).split())  # type: ignore[union-attr]


def refused(what: str, advice: str, allowed: str | None = None) -> PydanticCustomError:
    """Return an error with the texts of its message. allowed: None for what the key's type says."""
    return PydanticCustomError("refused", "{what}", {"what": what, "allowed": allowed, "next": advice})


@dataclass(frozen=True)
class Text:
    """Text of a form: no control characters, and ``pattern``, which ``words`` describe."""

    words: str | None = None
    pattern: str | None = None
    most: int | None = None  # characters
    least: int | None = None
    lines: bool = False  # may hold line ends
    home: bool = False  # a first ~/ is the home directory
    path: bool = False  # as home, and without $NAME
    number: bool = False  # numbers too, as they are typed

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        text = core_schema.str_schema(
            strict=True, pattern=self.pattern, max_length=self.most, min_length=self.least, regex_engine="python-re"
        )
        return core_schema.no_info_before_validator_function(self._read, text)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        words = {"patternErrorMessage": self.words} if self.words else {}
        return {**handler(schema), **words, **({"type": ["string", "number"]} if self.number else {})}

    def _read(self, value: Any) -> Any:
        if self.number and isinstance(value, int | float) and not isinstance(value, bool):
            return getattr(value, "text", str(value))
        if not isinstance(value, str):
            return value
        if has_control_characters(value, but="\t\n" if self.lines else "\t"):
            raise refused(
                "a control character in a value"
                if self.lines
                else "a line end or another control character in a value",
                "remove the character; long data belongs in a file that the script reads",
                "printable text, line ends and tabs" if self.lines else "printable text on one line",
            )
        if self.path and meant.has_variables(value):
            raise refused(
                "a shell variable, which is not expanded here",
                meant.path(value),
                "a path without variables; ~/ at its start is the home directory",
            )
        return os.path.expanduser(value) if (self.home or self.path) and value.startswith("~/") else value


@dataclass(frozen=True)
class NullIs:
    """Marks a key that may be left empty, and says what that means."""

    value: Any

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self._filled, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"anyOf": [handler(schema), {"type": "null"}], "default": self.value}

    def _filled(self, value: Any) -> Any:
        if value is ABSENT:
            raise PydanticKnownError("missing")
        return self.value if value is None else value


@dataclass(frozen=True)
class NumberIs:
    """Marks a section that may be a whole number instead: the value of one of its keys."""

    key: str
    most: int

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self._in_section, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"anyOf": [handler(schema), {"type": "integer", "minimum": 1, "maximum": self.most}]}

    def _in_section(self, value: Any) -> Any:
        return {self.key: value} if isinstance(value, int) and not isinstance(value, bool) else value


def _scale(value: Any) -> Scale:
    if isinstance(value, Scale):
        return value
    if not isinstance(value, str):
        raise PydanticKnownError("string_type")
    if not re.fullmatch(_SCALE, value):
        raise PydanticKnownError("string_pattern_mismatch", {"pattern": _SCALE})
    return Scale.parse(value)


def _variant_name(name: str) -> str:
    if len(name) > VARIANT["maxLength"] or not re.fullmatch(VARIANT["pattern"], name):
        usable = re.sub(r"[^A-Za-z0-9._-]+", "-", name)[:40].strip("._-") or "variant-1"
        raise refused(
            "a name that cannot be used", f"rename it, for example to {usable}", VARIANT["patternErrorMessage"]
        )
    return name


def _different(items: tuple[T, ...]) -> tuple[T, ...]:
    if len(set(items)) < len(items):
        raise refused("an item twice", "remove the second of the two")
    return items


_SCALE = "^[1-9][0-9]{0,3}x[1-9][0-9]{0,3}$"
_SCALE_SCHEMA = {
    "type": "string",
    "patternErrorMessage": "nodes x GPUs per node, such as 2x4",
    "description": "Nodes x GPUs per node.",
    "pattern": _SCALE,
    "examples": ["2x4"],
}
_WORDS, _PATTERN, _MOST = "letters, digits and . _ - with a letter or digit first", "^[A-Za-z0-9][A-Za-z0-9._-]*$", 60
VARIANT: Any = {
    "patternErrorMessage": f"{_WORDS} (a variant's name becomes a directory)",
    "pattern": _PATTERN,
    "maxLength": _MOST,
}
DIFFERENT = AfterValidator(_different)

AnyScale = Annotated[Scale, PlainValidator(_scale), WithJsonSchema(_SCALE_SCHEMA)]
Name = Annotated[str, Text(_WORDS, _PATTERN, _MOST)]
VariantName = Annotated[str, AfterValidator(_variant_name)]
Items = Annotated[Several[T], Field(max_length=100), NullIs([])]
Argument = Annotated[
    str,
    Text(most=100_000, home=True, number=True),
    Field(description="One argument. Numbers are passed as written.", examples=["--epochs"]),
]
Arguments = Annotated[Several[Argument], Field(max_length=1000), NullIs([])]
Value = Annotated[
    str,
    Text(most=100_000, home=True, number=True),
    Field(description="Value of one variable. Numbers are passed as written.", examples=["INFO"]),
]
Environment = Annotated[dict[str, Value], Field(max_length=1000), NullIs({})]
