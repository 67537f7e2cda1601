"""The JSON Schema of config.yaml or cluster.yaml, in the form that messages need."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from ddp_ladder.common.model import Model, Schema

Part = Mapping[str, Any]


@cache
def written_out(model: type[Model]) -> Part:
    """Return a model's JSON Schema: each part stands where it belongs, with a list of types in place of ``anyOf``."""
    schema = model.model_json_schema(schema_generator=_InOrder)
    return _written_out(schema, schema.pop("$defs"))  # type: ignore[no-any-return]


class _InOrder(Schema):
    """JSON Schema with the keys of examples in the models' order."""

    def sort(self, value: Any, parent_key: str | None = None) -> Any:
        return value


def _written_out(part: Any, definitions: Part) -> Any:
    if isinstance(part, list):
        return [_written_out(item, definitions) for item in part]
    if not isinstance(part, dict):
        return part
    part = {key: _written_out(value, definitions) for key, value in part.items()}
    if "$ref" in part:
        name = part.pop("$ref").rpartition("/")[2]
        part = {**_written_out(definitions[name], definitions), **part}
    if options := [*part.pop("anyOf", []), *part.pop("oneOf", [])]:
        types = [name for option in options for name in types_of(option)]
        part = {key: value for option in options for key, value in option.items()} | part
        part["type"] = list(dict.fromkeys(types))
        if "enum" in part and "null" in types:
            part["enum"] += [None]
    return part


def types_of(part: Part) -> list[str]:
    """Return the JSON types that a part allows."""
    types = part.get("type", [])
    return types if isinstance(types, list) else [types]
