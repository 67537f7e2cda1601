"""Read YAML 1.2: ``no`` and ``1:30:00`` are text, ``012`` is twelve; each key once, and the line of each is kept."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from ddp_ladder.common.files import places
from ddp_ladder.common.messages import Problem, UserError, printable

KeyPath = tuple[str | int, ...]

AS_TYPED = frozenset({"args", "env", "prepare"})
"""Keys below which a value is the text that was typed: ``1e-4`` reaches the script as that."""
NULLS = ("", "~", "null", "Null", "NULL")
_LONGEST_SHOWN = 100
_INTEGER = re.compile(r"[-+]?[0-9]{1,18}")
_OTHER_BASE = re.compile(r"0o[0-7]{1,18}|0x[0-9a-fA-F]{1,15}")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")


@dataclass(frozen=True)
class Document:
    """One YAML file as plain data, with the place of each part.

    lines: line (from 1) of each key and list item.
    overridden: keys with a value from another document that was laid over this one, or None for the command line.
    """

    file: Path
    data: dict[str, Any] = field(default_factory=dict)
    lines: Mapping[KeyPath, int] = field(default_factory=dict)
    overridden: Mapping[KeyPath, Document | None] = field(default_factory=dict)

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
        prefixes = (path[:length] for length in range(len(path), 0, -1))
        return next((self.lines[prefix] for prefix in prefixes if prefix in self.lines), 0)

    def _overridden_at(self, path: KeyPath) -> KeyPath | None:
        """Return the path, or its nearest parent, that was overridden; None if neither was."""
        heads = (path[:length] for length in range(len(path), 0, -1))
        return next((head for head in heads if head in self.overridden), None)


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


def shown(value: object) -> str:
    """Return a value for a message: one printable line, text in quotes, long values cut."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    text = "".join(char if char.isprintable() else f"\\u{ord(char):04x}" for char in text)
    return text if len(text) <= _LONGEST_SHOWN else text[: _LONGEST_SHOWN - 3] + "..."


def has_control_characters(text: str, but: str = "") -> bool:
    """Return True if text holds line ends, tabs, terminal control sequences, NUL or lone surrogates.

    but: the tabs and line ends that are allowed.
    """
    return printable(text) != text or any(char in text and char not in but for char in "\t\n")


def scalar(text: str) -> str | int | float | bool | None:
    """Return an unquoted value with its type in YAML 1.2."""
    if text in NULLS:
        return None
    if text in ("true", "True", "TRUE", "false", "False", "FALSE"):
        return text.lower() == "true"
    if _INTEGER.fullmatch(text):
        return int(text)
    if _OTHER_BASE.fullmatch(text):
        return int(text, 0)
    is_number = _FLOAT.fullmatch(text) and math.isfinite(float(text))
    return float(text) if is_number else text


def read(file: Path) -> Document:
    """Read a YAML mapping. Raises UserError with every YAML problem of the file."""
    reader = _Reader(file)
    root = reader.composed(_text(file))
    if root is None or (isinstance(root, yaml.ScalarNode) and root.value in NULLS):
        restore = f"write the settings, or restore the shipped file: git checkout -- {file}"
        raise UserError(Problem(str(file), "the file is empty", None, "lines of the form key: value", restore))
    if not isinstance(root, yaml.MappingNode):
        what, start = "the file does not hold keys with values", "see config/README.md for the keys"
        raise UserError(
            Problem(f"{file}, line {_line(root)}", what, allowed="lines of the form key: value", next=start)
        )
    data = reader.mapping(root, ())
    if reader.problems:
        raise UserError(reader.problems)
    return Document(file, data, reader.lines)


def _text(file: Path) -> str:
    try:
        return file.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        what, allowed, advice = "there is no such file", f"a file, {places()}", "check the spelling and the directory"
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        what = f"the file is not UTF-8 text (line {line})"
        allowed, advice = "text in UTF-8", "save the file as UTF-8 in your editor"
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        what = f"the file cannot be read: {getattr(error, 'strerror', None) or error}"
        allowed, advice = "a YAML file that you may read", "check the path and its permissions with ls -l"
    raise UserError(Problem(printable(str(file)), what, None, allowed, advice))


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


class _Loader(yaml.BaseLoader):
    """A loader of nodes with untyped scalars. It refuses aliases, which can multiply."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.MarkedYAMLError(problem="an alias; write the value again in its place", problem_mark=mark)
        return super().compose_node(parent, index)


class _Reader:
    """Converter of YAML nodes to data, which collects problems and lines."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.problems: list[Problem] = []
        self.lines: dict[KeyPath, int] = {}

    def composed(self, text: str) -> yaml.Node | None:
        """Return the root node. Raises UserError for text that is not YAML."""
        try:
            return yaml.compose(text, Loader=_Loader)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark
            place = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
            reason = ", ".join(part for part in (error.context, error.problem) if part)
            what = "a tab where only spaces may stand" if r"'\t'" in reason else reason
        except yaml.YAMLError as error:
            place, what = "", " ".join(str(error).split())
        except RecursionError:
            place, what = "", "brackets or keys are nested too deeply"
        advice = "check indentation, brackets and quotation marks there and on the line before; put text with a colon, "
        raise UserError(Problem(f"{self.file}{place}", f"not YAML: {what}", next=f"{advice}@ or % in quotes"))

    def mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        data: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                what, advice = "a list or mapping as a key", 'put a placeholder such as "{lr}" in quotes'
                self.problem(key_node, path, what, "text as key", advice)
                continue
            key = key_node.value
            here = (*path, key)
            if key in data:
                what = f"duplicate key, first on line {self.lines[here]}"
                self.problem(key_node, here, what, "each key once", "keep one of the two lines")
                continue
            self.lines[here] = _line(key_node)
            data[key] = self.value(value_node, here)
        return data

    def value(self, node: yaml.Node, path: KeyPath) -> Any:
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.item(item, (*path, index)) for index, item in enumerate(node.value)]
        if node.tag.startswith(("!", "tag:yaml.org,2002:python")):
            self.problem(node, path, f"a YAML tag: {node.tag}", "plain values, lists and mappings", "remove the tag")
        assert isinstance(node, yaml.ScalarNode)
        as_typed = node.style is not None or not AS_TYPED.isdisjoint(path[:-1])
        return node.value if as_typed else scalar(node.value)

    def item(self, node: yaml.Node, path: KeyPath) -> Any:
        self.lines[path] = _line(node)
        return self.value(node, path)

    def problem(self, node: yaml.Node, path: KeyPath, what: str, allowed: str, advice: str) -> None:
        place = f"{self.file}, line {_line(node)}"
        where = f"{place}: {key_name(path)}" if path else place
        self.problems.append(Problem(where, what, allowed=allowed, next=advice))
