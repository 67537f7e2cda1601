"""Checks of config.yaml and cluster.yaml against their JSON Schemas, with messages for users."""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import yaml
from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError
from jsonschema.validators import extend

from ddp_ladder.common import meant
from ddp_ladder.common.formats import count
from ddp_ladder.common.messages import Problem, did_you_mean
from ddp_ladder.common.paths import SCHEMAS
from ddp_ladder.settings.strict_yaml import Document, KeyPath, has_control_characters, key_name, resolve, shown

Schema = Mapping[str, Any]

_SEE = "see config/README.md"


@cache
def load_schema(name: str) -> Schema:
    """Return the schema ``config`` or ``cluster``, with every ``$ref`` resolved."""
    return _inlined(_read_schema(f"{name}.schema.yaml"), f"{name}.schema.yaml")  # type: ignore[no-any-return]


@cache
def _read_schema(file: str) -> Any:
    return yaml.safe_load((SCHEMAS / file).read_text(encoding="utf-8"))


def _inlined(part: Any, home: str) -> Any:
    """Return the schema with each ``$ref`` replaced by its target; keywords beside it take precedence.

    home: the file of ``#/$defs/x``; ``other.schema.yaml#/$defs/x`` names another one.
    """
    if isinstance(part, list):
        return [_inlined(item, home) for item in part]
    if not isinstance(part, dict):
        return part
    inlined = {key: _inlined(value, home) for key, value in part.items() if key not in ("$defs", "$ref")}
    if "$ref" not in part:
        return inlined
    file, _, name = part["$ref"].partition("#/$defs/")
    target = file or home
    return {**_inlined(_read_schema(target)["$defs"][name], target), **inlined}


def schema_problems(checked: Sequence[tuple[Document, Schema]]) -> list[Problem]:
    """Return every violation of the schemas, in the order of the documents' lines."""
    problems: dict[Problem, None] = {}
    for document, schema in checked:
        unfit = dict(_unfit_texts(document, document.data, schema))
        errors = _Validator(schema).iter_errors(document.data)
        explained = [(document.line(*path), problem) for path, problem in unfit.items()] + [
            (document.line(*path), problem)
            for error in errors
            for path, problem in _explain(_Failure.of(error), document, checked)
            if path not in unfit
        ]
        explained.sort(key=lambda item: item[0])
        problems.update(dict.fromkeys(problem for _, problem in explained))
    return list(problems)


def _unfit_texts(document: Document, value: Any, schema: Schema, path: KeyPath = ()) -> Explained:
    """Yield a problem for each text with control characters, and each path with a shell variable.

    Line ends are allowed if the schema says ``multiline``.
    """
    multiline = schema.get("multiline", False)
    if isinstance(value, Mapping):
        properties, other = schema.get("properties", {}), schema.get("additionalProperties")
        for key, item in value.items():
            yield from _unfit_texts(document, item, properties.get(key) or other or {}, (*path, key))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _unfit_texts(document, item, schema.get("items", {}), (*path, index))
    elif isinstance(value, str) and has_control_characters(value, but="\t\n" if multiline else "\t"):
        yield (
            path,
            Problem(
                where=document.where(*path),
                what="a control character in a value"
                if multiline
                else "a line end or another control character in a value",
                found=shown(value),
                allowed="printable text, line ends and tabs" if multiline else "printable text on one line",
                next="remove the character; long data belongs in a file that the script reads",
            ),
        )
    elif isinstance(value, str) and schema.get("path", False) and meant.has_variables(value):
        yield (
            path,
            Problem(
                where=document.where(*path),
                what="a shell variable, which is not expanded here",
                found=shown(value),
                allowed="a path without variables; ~/ at its start is the home directory",
                next=meant.path(value),
            ),
        )


def at_home(value: Any, schema: Schema) -> Any:
    """Return data with a first ``~/`` expanded to the home directory if the schema says ``path`` or ``home``."""
    if isinstance(value, list):
        return [at_home(item, schema.get("items", {})) for item in value]
    if isinstance(value, dict):
        properties, other = schema.get("properties", {}), schema.get("additionalProperties") or {}
        return {key: at_home(item, properties.get(key, other)) for key, item in value.items()}
    is_path = schema.get("path", False) or schema.get("home", False)
    return os.path.expanduser(value) if is_path and isinstance(value, str) and value.startswith("~/") else value


def with_defaults(value: Any, schema: Schema) -> Any:
    """Return valid data with the schema's defaults for absent keys and empty (null) sections."""
    if value is None:
        value = copy.deepcopy(schema.get("default"))
    if isinstance(value, list):
        return [with_defaults(item, schema.get("items", {})) for item in value]
    if not isinstance(value, dict):
        return value
    properties: Schema = schema.get("properties", {})
    other: Any = schema.get("additionalProperties")
    filled = {key: with_defaults(item, properties.get(key, other or {})) for key, item in value.items()}
    for key, part in properties.items():
        if key not in filled and "default" in part:
            filled[key] = with_defaults(None, part)
    return filled


def typed_override(value: Any, schema: Schema) -> Any:
    """Return data with the schema's types in place of the text that ``snakemake --config`` makes of nested values.

    Text stays text if the schema takes text (except null, if it takes that too), or if it is not a number.
    """
    if isinstance(value, Mapping):
        properties = schema.get("properties", {})
        other = schema.get("additionalProperties") or {}
        return {str(key): typed_override(item, properties.get(key, other)) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [typed_override(item, schema.get("items", {})) for item in value]
    if not isinstance(value, str):
        return value
    types = _types(schema)
    if "null" in types and value in ("", "~", "null", "Null", "NULL", "None"):
        return None
    if "string" in types or not types:
        return value
    try:
        return resolve(value)
    except ValueError:
        return value


def _pattern(validator: Any, pattern: str, instance: Any, schema: Schema) -> Iterator[ValidationError]:
    """Check the pattern keyword, also against a last line end, which Python's ``$`` would accept."""
    if validator.is_type(instance, "string") and (instance.endswith("\n") or not re.search(pattern, instance)):
        yield ValidationError(f"{instance!r} does not match {pattern!r}")


_Validator = extend(Draft202012Validator, {"pattern": _pattern})  # type: ignore[no-untyped-call]

Explained = Iterator[tuple[KeyPath, Problem]]
Checked = Sequence[tuple[Document, Schema]]


@dataclass(frozen=True)
class _Failure:
    """One failed schema keyword: ``value`` at ``path`` violates ``schema[keyword]``."""

    path: KeyPath
    keyword: str
    value: Any
    schema: Schema
    message: str
    of_name: bool  # the name of a key failed, not its value

    @property
    def wanted(self) -> Any:
        return self.schema[self.keyword]

    @classmethod
    def of(cls, error: ValidationError) -> _Failure:
        schema: Any = error.schema
        return cls(
            path=tuple(error.absolute_path),
            keyword=str(error.validator),
            value=error.instance,
            schema=schema,
            message=error.message,
            of_name="propertyNames" in error.relative_schema_path,
        )


def _explain(error: _Failure, document: Document, checked: Checked) -> Explained:
    path = error.path
    if error.of_name:
        yield _name_problem(error, document, (*path, error.value))
    elif error.keyword == "additionalProperties":
        for key in error.value:
            if key not in error.schema.get("properties", {}):
                yield _unknown_key(error, document, (*path, key), checked)
    elif error.keyword == "required":
        for key in error.wanted:
            if key not in error.value:
                yield _missing_key(error, document, (*path, key))
    else:
        yield _wrong_value(error, document, path)


def _name_problem(error: _Failure, document: Document, path: KeyPath) -> tuple[KeyPath, Problem]:
    return path, Problem(
        where=document.where(*path),
        what="a name that cannot be used",
        found=shown(error.value),
        allowed=_in_words(error.schema),
        next=f"rename it, for example to {_usable_name(error.value)}",
    )


def _usable_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name)[:40].strip("._-") or "variant-1"


def _unknown_key(error: _Failure, document: Document, path: KeyPath, checked: Checked) -> tuple[KeyPath, Problem]:
    key, known = str(path[-1]), list(error.schema.get("properties", {}))
    homes = [(home.file, home_path) for home, schema in checked for home_path in _paths_to(key, schema)]
    homes.sort(key=lambda place: len(place[1]))  # the site's own before a stage's override
    if guess := did_you_mean(key, known):
        advice = guess
    elif homes:
        advice = f"move it to where it belongs: {' or '.join(f'{file}: {key_name(home)}' for file, home in homes[:3])}"
    else:
        advice = f"remove it; {_SEE} for all keys"
    return path, Problem(
        where=document.where(*path),
        what="unknown key",
        found=shown(key),
        allowed=", ".join(known),
        next=advice,
    )


def _paths_to(key: str, schema: Schema, path: KeyPath = ()) -> Iterator[KeyPath]:
    for name, part in schema.get("properties", {}).items():
        if name == key:
            yield (*path, name)
        yield from _paths_to(key, part, (*path, name))


def _missing_key(error: _Failure, document: Document, path: KeyPath) -> tuple[KeyPath, Problem]:
    properties = error.schema.get("properties", {})
    part = properties.get(path[-1], error.schema.get("additionalProperties"))
    place = f" under {key_name(path[:-1])}" if len(path) > 1 else ""
    return path, Problem(
        where=document.where(*path),
        what="missing key",
        allowed=_in_words(part),
        next=f"add {path[-1]}: {_flow(part['default'])}{place}"
        if "default" in part
        else f"add {_example(part, str(path[-1])) or path[-1]}{place}",
    )


def _wrong_value(error: _Failure, document: Document, path: KeyPath) -> tuple[KeyPath, Problem]:
    what = _WHAT.get(error.keyword)
    size = error.keyword in ("maxLength", "maxItems", "maxProperties")
    found = shown(error.value)
    if error.keyword == "type" and error.value is not None:
        found += f" ({_kind(error.value)})"
    return path, Problem(
        where=document.where(*path),
        what=what or f"not valid: {error.message}",
        found=found,
        allowed=f"at most {error.wanted}" if size else _in_words(error.schema),
        next="shorten it" if size else _advice(error, path),
    )


_WHAT = {
    "type": "a value of the wrong type",
    "enum": "not one of the allowed values",
    "minimum": "too small",
    "exclusiveMinimum": "too small",
    "maximum": "too large",
    "pattern": "not in the expected format",
    "minLength": "empty",
    "maxLength": "too many characters",
    "minItems": "an empty list",
    "maxItems": "too many items",
    "minProperties": "empty",
    "maxProperties": "too many keys",
    "uniqueItems": "an item twice",
}


def _advice(error: _Failure, path: KeyPath) -> str:
    value, schema = error.value, error.schema
    key = next((part for part in reversed(path) if isinstance(part, str)), "")
    in_list = bool(path) and isinstance(path[-1], int)
    if text := _advice_on_quantity(value, path):
        return text
    if error.keyword == "type":
        for advice in (_advice_on_text, _advice_on_number, _advice_on_list):
            if text := advice(value, schema, key):
                return text
        if value is None and "default" in schema and not in_list:
            return f"remove the line for the default ({shown(schema['default'])}), or give a value"
    if error.keyword == "enum":
        guess = did_you_mean(str(value), [word for word in schema["enum"] if word])
        if guess:
            return guess
    if error.keyword == "uniqueItems":
        return "remove the second of the two"
    example = _example(schema, "" if in_list else key)
    return f"for example {example}" if example else _SEE


def _advice_on_quantity(value: Any, path: KeyPath) -> str | None:
    """Return advice for a time, an amount of memory or a scale in another notation."""
    if path[-1:] == ("runtime",) and isinstance(value, str):
        return meant.runtime(value)
    if path[-1:] == ("memory_mb",) and isinstance(value, str) and (memory := meant.megabytes(value)):
        return f"write MB: memory_mb: {memory}"
    if path[-1:] == ("scales",) and isinstance(value, str | int):
        scales = [meant.scale(part, str(path[1])) for part in re.split(r"[,\s]+", str(value).strip())]
        if None not in scales:
            return f"write a list: scales: [{', '.join(map(str, scales))}]"
    if path[-2:-1] == ("scales",) and (scale := meant.scale(value, str(path[1]))):
        nodes, gpus = scale.split("x")
        each = " each" if nodes != "1" else ""
        return f"write {scale}: {count(int(nodes), 'node')} with {count(int(gpus), 'GPU')}{each}"
    return None


def _advice_on_text(value: Any, schema: Schema, key: str) -> str | None:
    """Return advice if the schema wants text and YAML read something else."""
    if "string" not in _types(schema):
        return None
    if isinstance(value, dict) and len(value) == 1 and next(iter(value.values())) is None:
        return f'put placeholders in quotes: "{{{next(iter(value))}}}"'
    if isinstance(value, bool | int | float) or value is None:
        return f'put it in quotes if you mean the text: "{shown(value)}"'
    return None


def _advice_on_number(value: Any, schema: Schema, key: str) -> str | None:
    if not isinstance(value, str) or not {"integer", "number"} & set(_types(schema)):
        return None
    try:
        number = resolve(value)
    except ValueError:
        return None
    is_number = isinstance(number, int | float) and not isinstance(number, bool)
    return f"write it without quotes: {key}: {value}" if is_number else None


def _advice_on_list(value: Any, schema: Schema, key: str) -> str | None:
    if "array" not in _types(schema) or isinstance(value, dict | list) or value is None:
        return None
    text = str(value)
    items = re.split(r"[,\s]+", text.strip()) if _names_only(schema["items"]) else meant.words(text)
    if isinstance(value, bool) or not items or len(text) > _MOST_SPLIT:
        return f"write a list: {key}: [{shown(value)}]"
    return f"write a list: {key}: {_flow([int(item) if _COUNT.fullmatch(item) else item for item in items])}"


_MOST_SPLIT = 1000  # characters; longer text is not shown as a list
_COUNT = re.compile(r"0|[1-9][0-9]{0,8}")


def _names_only(schema: Schema) -> bool:
    """Return True if items cannot hold spaces or commas, so that these separate items."""
    return "pattern" in schema or "enum" in schema


def _types(schema: Schema) -> list[str]:
    types = schema.get("type", [])
    return [types] if isinstance(types, str) else list(types)


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "a truth value"
    kinds: dict[type, str] = {
        str: "text",
        int: "a whole number",
        float: "a number",
        list: "a list",
        dict: "a mapping",
    }
    return kinds.get(type(value), type(value).__name__)


def _in_words(schema: Schema) -> str:
    """Return what a schema accepts: ``a whole number from 1 to 100``."""
    types = [name for name in _types(schema) if name != "null"]
    if "enum" in schema:
        words = "one of " + ", ".join(str(item) for item in schema["enum"] if item is not None)
    elif "title" in schema:
        words = schema["title"]
    elif types == ["array"]:
        words = f"a list, each item {_in_words(schema['items'])}"
        if schema.get("minItems"):
            words += ", at least one"
    elif types == ["object"]:
        properties = list(schema.get("properties", {}))
        words = "keys " + ", ".join(properties) if properties else "keys with values"
    else:
        words = " or ".join(_TYPE_WORDS[name] for name in types) + _bounds(schema)
    return f"{words}, or null" if "null" in _types(schema) else str(words)


_TYPE_WORDS: Mapping[str, str] = {
    "integer": "a whole number",
    "number": "a number",
    "string": "text",
    "boolean": "true or false",
}


def _bounds(schema: Schema) -> str:
    low, above, high = (schema.get(word) for word in ("minimum", "exclusiveMinimum", "maximum"))
    if low is not None and high is not None:
        return f" from {low} to {high}"
    parts = [] if above is None else [f"above {above}"]
    parts += [] if low is None else [f"at least {low}"]
    parts += [] if high is None else [f"at most {high}"]
    return f" {' and '.join(parts)}" if parts else ""


def _example(schema: Schema, key: str) -> str | None:
    """Return a line to type, ``repeats: 3``; only the value if key is empty."""
    values = [*schema.get("examples", []), *schema.get("enum", [])]
    if schema.get("default") is not None:
        values.append(schema["default"])
    if not values:
        return None
    return f"{key}: {_flow(values[0])}" if key else _flow(values[0])


def _flow(value: Any) -> str:
    """Return a value as one line of YAML."""
    text = yaml.safe_dump(value, default_flow_style=True, width=10**6, sort_keys=False)
    return text.removesuffix("\n").removesuffix("\n...")
