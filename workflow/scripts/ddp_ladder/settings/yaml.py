"""Read YAML 1.2: ``no`` and ``1:30:00`` are text, ``012`` is twelve; each key once, and the line of each is kept."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from ddp_ladder.common.files import places
from ddp_ladder.common.formats import shortened
from ddp_ladder.common.messages import Problem, UserError, printable

KeyPath = tuple[str | int, ...]

AS_TYPED = frozenset({"args", "env", "prepare"})
"""Keys below which a value is the text that was typed: ``1e-4`` reaches the script as that."""
NULLS = ("", "~", "null", "Null", "NULL")
_LONGEST_SHOWN = 100
_INTEGER = re.compile(r"[-+]?[0-9]{1,18}")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")


@dataclass(frozen=True)
class YamlFile:
    """One YAML file as plain data, with the place of each part."""

    file: Path
    data: dict[str, Any] = field(default_factory=dict)
    lines: Mapping[KeyPath, int] = field(default_factory=dict)  # from 1, of each key and list item
    # Keys with a value from another file that was laid over this one, or from the command line (None).
    overridden: Mapping[KeyPath, YamlFile | None] = field(default_factory=dict)

    def where(self, *path: str | int) -> str:
        """Return ``config/config.yaml, line 14: measure.max_steps``."""
        if (key := self._overridden_at(path)) is not None:
            over = self.overridden[key]
            return over.where(*path) if over else f"--config: {key_name(path)}"
        line = self.line(*path)
        place = f"{self.file}, line {line}" if line else str(self.file)
        return f"{place}: {key_name(path)}" if path else place

    def line(self, *path: str | int) -> int:
        """Return the line of a key, or of its nearest parent in the file; 0 if there is none."""
        if self._overridden_at(path) is not None:
            return 0
        return next((self.lines[head] for head in _heads(path) if head in self.lines), 0)

    def _overridden_at(self, path: KeyPath) -> KeyPath | None:
        """Return the path, or its nearest parent, that was overridden; None if neither was."""
        return next((head for head in _heads(path) if head in self.overridden), None)


def _heads(path: KeyPath) -> Iterator[KeyPath]:
    """Yield the path, then its parents, the nearest first."""
    return (path[:length] for length in range(len(path), 0, -1))


def key_name(path: KeyPath) -> str:
    """Return ``stages.stage2.scales[0]`` for a key path."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            name = part if re.fullmatch(r"[\w+-]+", part) else shown(part)
            text += f".{name}" if text else name
    return text


def texts(data: object, path: KeyPath = ()) -> Iterator[tuple[KeyPath, str]]:
    """Yield every text in plain data, keys too, with its place."""
    if isinstance(data, str):
        yield path, data
    elif isinstance(data, dict | list):
        for key, value in data.items() if isinstance(data, dict) else enumerate(data):
            yield from texts(key, (*path, key))
            yield from texts(value, (*path, key))


def shown(value: object) -> str:
    """Return a value for a message: one printable line, text in quotes, long values cut."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    text = "".join(char if char.isprintable() else f"\\u{ord(char):04x}" for char in text)
    return shortened(text, _LONGEST_SHOWN)


def scalar(text: str) -> str | int | float | bool | None:
    """Return an unquoted value with its type in YAML 1.2."""
    if text in NULLS:
        return None
    if text in ("true", "True", "TRUE", "false", "False", "FALSE"):
        return text.lower() == "true"
    if _INTEGER.fullmatch(text):
        return int(text)
    is_number = _FLOAT.fullmatch(text) and math.isfinite(float(text))
    return float(text) if is_number else text


def read(file: Path, content: bytes | None = None) -> YamlFile:
    """Read a YAML mapping, from ``content`` if it is not yet in its file. Raises UserError for what is none."""
    lines: dict[KeyPath, int] = {}
    place, allowed = "", "lines of the form key: value, in YAML"
    advice = (
        "check indentation, brackets and quotation marks there and on the line before; put text with a colon, @ or % "
        'and placeholders such as "{lr}" in quotes'
    )
    try:
        root = yaml.compose(
            (file.read_bytes() if content is None else content).decode("utf-8-sig"), Loader=yaml.BaseLoader
        )
        if isinstance(root, yaml.MappingNode):
            return YamlFile(file, _mapping(root, (), lines), lines)
        what, advice = "the file is empty, or holds no keys", f"restore the shipped file: git checkout -- {file}"
    except FileNotFoundError:
        what, allowed, advice = "there is no such file", f"a file, {places()}", "check the spelling and the directory"
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        reason = ", ".join(part for part in (error.context, error.problem) if part)
        if r"'\t'" in reason:
            reason = "a tab where only spaces may stand"
        what = f"not YAML: {reason}"
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:  # ValueError: not UTF-8
        what = f"the file cannot be read: {getattr(error, 'strerror', None) or ' '.join(str(error).split())}"
    raise UserError(Problem(printable(f"{file}{place}"), what, None, allowed, advice))


def _mapping(node: yaml.MappingNode, path: KeyPath, lines: dict[KeyPath, int]) -> dict[str, Any]:
    data: dict[str, Any] = {}
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise yaml.MarkedYAMLError(problem="a list or mapping as a key", problem_mark=key.start_mark)
        inner = (*path, key.value)
        if inner in lines:
            problem = f"duplicate key {key_name(inner)}, first on line {lines[inner]}"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
        lines[inner] = key.start_mark.line + 1
        data[key.value] = _value(value, inner, lines)
    return data


def _value(node: yaml.Node, path: KeyPath, lines: dict[KeyPath, int]) -> Any:
    if isinstance(node, yaml.MappingNode):
        return _mapping(node, path, lines)
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            lines[*path, index] = item.start_mark.line + 1
        return [_value(item, (*path, index), lines) for index, item in enumerate(node.value)]
    assert isinstance(node, yaml.ScalarNode)
    as_typed = node.style is not None or not AS_TYPED.isdisjoint(path[:-1])
    return node.value if as_typed else scalar(node.value)
