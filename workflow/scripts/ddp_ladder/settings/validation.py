"""Check a document with its model; pydantic's errors become messages for users."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from ddp_ladder.common import meant
from ddp_ladder.common.formats import count
from ddp_ladder.common.messages import Problem, UserError, did_you_mean
from ddp_ladder.common.model import Model
from ddp_ladder.common.redaction import NOT_SHOWN
from ddp_ladder.settings.json_schema import Part, types_of, written_out
from ddp_ladder.settings.strict_yaml import (
    NULLS,
    DisputedError,
    Document,
    KeyPath,
    is_at_secret,
    key_name,
    resolve,
    shown,
)

Checked = Sequence[tuple[Document, type[Model]]]


def validated(checked: Checked) -> list[Any]:
    """Return the sections that documents hold. Raises UserError with all mistakes, in the order of their lines."""
    values: list[Any] = []
    problems: list[Problem] = []
    for document, model in checked:
        try:
            values.append(model.model_validate(document.data))
        except ValidationError as errors:
            found = [_explained(error, document, model, checked) for error in errors.errors() if not _follows(error)]
            problems += [problem for _, problem in sorted(found, key=lambda item: item[0])]
    if problems:
        raise UserError(problems)
    return values


def _follows(error: ErrorDetails) -> bool:
    """Return True for a list that is too short because its items are wrong."""
    return error["type"] == "too_short" and len(error["input"]) >= error["ctx"]["min_length"]


def typed_override(value: Any, part: Part) -> Any:
    """Return data with the schema's types in place of the text that ``snakemake --config`` makes of nested values.

    Text stays text if the schema takes text (except null, if it takes that too), or if it is not a number.
    """
    if isinstance(value, Mapping):
        return {str(key): typed_override(item, _inside(part, key)) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [typed_override(item, _inside(part, 0)) for item in value]
    types = types_of(part)
    if "null" in types and value in (*NULLS, "None"):
        return None
    if isinstance(value, str) and types and "string" not in types:
        with suppress(DisputedError):
            value = resolve(value)
    is_whole = isinstance(value, float) and value.is_integer() and "integer" in types
    return int(value) if is_whole else value


def _inside(part: Part, key: str | int) -> Part:
    """Return the schema of a key or an item; empty for an unknown key."""
    if isinstance(key, int):
        return part.get("items", {})  # type: ignore[no-any-return]
    return part.get("properties", {}).get(key) or part.get("additionalProperties") or {}


def _explained(error: ErrorDetails, document: Document, model: type[Model], checked: Checked) -> tuple[int, Problem]:
    """Return the line and the message of an error."""
    part = section = written_out(model)
    data: Any = document.data
    path: KeyPath = ()
    for key in error["loc"]:  # also has names of pydantic's own, such as [key]
        if key in data if isinstance(data, dict) else isinstance(data, list) and isinstance(key, int):
            part, section, path, data = _inside(part, key), part, (*path, key), data[key]
    if error["type"] == "missing":
        path = (*path, error["loc"][-1])
        problem = _missing_key(document.where(*path), _inside(part, path[-1]), path)
    elif error["type"] == "extra_forbidden":
        problem = _unknown_key(document.where(*path), section, str(path[-1]), checked)
    elif error["type"] == "refused":
        texts = {"allowed": _in_words(part), **{key: text for key, text in error["ctx"].items() if text}}
        problem = Problem(document.where(*path), found=shown(error["input"]), **texts)
    else:
        problem = _wrong_value(document.where(*path), error, part, path)
    if is_at_secret(path):
        problem = replace(problem, found=NOT_SHOWN, next="write it as text, in quotes, on one line")
    return document.line(*path), problem


def _unknown_key(where: str, section: Part, key: str, checked: Checked) -> Problem:
    known = list(section["properties"])
    homes = [(document.file, path) for document, model in checked for path in _paths_to(key, written_out(model))]
    homes.sort(key=lambda home: len(home[1]))  # the site's own before a stage's override
    places = " or ".join(f"{file}: {key_name(path)}" for file, path in homes[:3])
    move = f"move it to where it belongs: {places}" if places else f"remove it; {_SEE} for all keys"
    return Problem(where, "unknown key", shown(key), ", ".join(known), did_you_mean(key, known) or move)


def _paths_to(key: str, part: Part, path: KeyPath = ()) -> Iterator[KeyPath]:
    for name, inner in part.get("properties", {}).items():
        if name == key:
            yield (*path, name)
        yield from _paths_to(key, inner, (*path, name))


def _missing_key(where: str, part: Part, path: KeyPath) -> Problem:
    key, place = str(path[-1]), f" under {key_name(path[:-1])}" if len(path) > 1 else ""
    line = f"{key}: {_flow(part['default'])}" if "default" in part else _example(part, key) or key
    return Problem(where, "missing key", allowed=_in_words(part), next=f"add {line}{place}")


_SEE = "see config/README.md"
_WRONG_TYPE = "a value of the wrong type"
_WHAT = {
    "literal_error": "not one of the allowed values",
    "greater_than": "too small",
    "greater_than_equal": "too small",
    "less_than_equal": "too large",
    "string_pattern_mismatch": "not in the expected format",
    "string_too_short": "empty",
    "string_too_long": "too many characters",
}


def _wrong_value(where: str, error: ErrorDetails, part: Part, path: KeyPath) -> Problem:
    value, kind, found = error["input"], error["type"], shown(error["input"])
    if kind.endswith("too_long"):
        most = error["ctx"]["max_length"]
        units = "characters" if isinstance(value, str) else "keys" if isinstance(value, dict) else "items"
        return Problem(where, f"too many {units}", found, f"at most {most}", "shorten it")
    if kind == "too_short":
        what = "empty" if isinstance(value, dict) else "an empty list"
    else:
        what = _WRONG_TYPE if value is None else _WHAT.get(kind, _WRONG_TYPE)
    if what == _WRONG_TYPE and value is not None:
        found += f" ({_kind(value)})"
    return Problem(where, what, found, _in_words(part), _advice(value, part, path, what == _WRONG_TYPE))


def _advice(value: Any, part: Part, path: KeyPath, wrong_type: bool) -> str:
    key = next((name for name in reversed(path) if isinstance(name, str)), "")
    in_list = isinstance(path[-1], int)
    advice = _advice_on_quantity(value, path) or did_you_mean(
        str(value), [word for word in part.get("enum", ()) if word]
    )
    if not advice and wrong_type:
        advice = (
            _advice_on_text(value, part) or _advice_on_number(value, part, key) or _advice_on_list(value, part, key)
        )
        if value is None and "default" in part and not in_list:
            advice = advice or f"remove the line for the default ({shown(part['default'])}), or give a value"
    example = _example(part, "" if in_list else key)
    return advice or (f"for example {example}" if example else _SEE)


def _advice_on_quantity(value: Any, path: KeyPath) -> str | None:
    """Return advice for a time, an amount of memory or a scale in another notation."""
    if path[-1:] == ("runtime",) and isinstance(value, str):
        return meant.runtime(value)
    if path[-1:] == ("memory_mb",) and isinstance(value, str) and (memory := meant.megabytes(value)):
        return f"write MB: memory_mb: {memory}"
    if path[-1:] == ("scales",) and isinstance(value, str | int):
        scales = [meant.scale(word, str(path[1])) for word in re.split(r"[,\s]+", str(value).strip())]
        if None not in scales:
            return f"write a list: scales: [{', '.join(map(str, scales))}]"
    if path[-2:-1] == ("scales",) and (scale := meant.scale(value, str(path[1]))):
        nodes, gpus = scale.split("x")
        each = " each" if nodes != "1" else ""
        return f"write {scale}: {count(int(nodes), 'node')} with {count(int(gpus), 'GPU')}{each}"
    return None


def _advice_on_text(value: Any, part: Part) -> str | None:
    """Return advice if text is wanted and YAML read something else."""
    if "string" not in types_of(part):
        return None
    if isinstance(value, dict) and len(value) == 1 and next(iter(value.values())) is None:
        return f'put placeholders in quotes: "{{{next(iter(value))}}}"'
    if isinstance(value, bool | int | float) or value is None:
        return f'put it in quotes if you mean the text: "{shown(value)}"'
    return None


def _advice_on_number(value: Any, part: Part, key: str) -> str | None:
    if not isinstance(value, str) or not {"integer", "number"} & set(types_of(part)):
        return None
    try:
        number = resolve(value)
    except ValueError:
        return None
    is_number = isinstance(number, int | float) and not isinstance(number, bool)
    return f"write it without quotes: {key}: {value}" if is_number else None


def _advice_on_list(value: Any, part: Part, key: str) -> str | None:
    if "array" not in types_of(part) or isinstance(value, dict | list) or value is None:
        return None
    text, item = str(value), part["items"]
    # Items of a pattern cannot hold spaces or commas, so these separate them.
    words = re.split(r"[,\s]+", text.strip()) if "pattern" in item or "enum" in item else meant.words(text)
    if isinstance(value, bool) or not words or len(text) > _MOST_SPLIT:
        return f"write a list: {key}: [{shown(value)}]"
    return f"write a list: {key}: {_flow([int(word) if _COUNT.fullmatch(word) else word for word in words])}"


_MOST_SPLIT = 1000  # characters; longer text is not shown as a list
_COUNT = re.compile(r"0|[1-9][0-9]{0,8}")


def _kind(value: Any) -> str:
    kinds = {
        bool: "a truth value",
        str: "text",
        int: "a whole number",
        float: "a number",
        list: "a list",
        dict: "a mapping",
    }
    return next((words for kind, words in kinds.items() if isinstance(value, kind)), type(value).__name__)


def _in_words(part: Part) -> str:
    """Return what a key accepts: ``a whole number from 1 to 100``."""
    types = [name for name in types_of(part) if name != "null"]
    if "enum" in part:
        words = "one of " + ", ".join(str(item) for item in part["enum"] if item is not None)
    elif "patternErrorMessage" in part:
        words = part["patternErrorMessage"]
    elif types == ["array"]:
        words = f"a list, each item {_in_words(part['items'])}" + (", at least one" if part.get("minItems") else "")
    elif "object" in types:
        keys = ", ".join(part.get("properties", {}))
        words = f"keys {keys}" if keys else "keys with values"
        if others := [name for name in types if name != "object"]:
            words = f"{_in_words({**part, 'type': others})}, or {words}"
    else:
        words = " or ".join(_TYPE_WORDS[name] for name in types) + _bounds(part)
    return f"{words}, or null" if "null" in types_of(part) else str(words)


_TYPE_WORDS = {"integer": "a whole number", "number": "a number", "string": "text", "boolean": "true or false"}


def _bounds(part: Part) -> str:
    low, above, high = (part.get(word) for word in ("minimum", "exclusiveMinimum", "maximum"))
    if low is not None and high is not None:
        return f" from {low} to {high}"
    bounds = {"above": above, "at least": low, "at most": high}
    words = " and ".join(f"{word} {bound}" for word, bound in bounds.items() if bound is not None)
    return f" {words}" if words else ""


def _example(part: Part, key: str) -> str | None:
    """Return a line to type, ``repeats: 3``; only the value if key is empty."""
    values = [*part.get("examples", []), *part.get("enum", [])]
    if part.get("default") is not None:
        values.append(part["default"])
    if not values:
        return None
    return f"{key}: {_flow(values[0])}" if key else _flow(values[0])


def _flow(value: Any) -> str:
    """Return a value as one line of YAML."""
    text = yaml.safe_dump(value, default_flow_style=True, width=10**6, sort_keys=False)
    return text.removesuffix("\n").removesuffix("\n...")
