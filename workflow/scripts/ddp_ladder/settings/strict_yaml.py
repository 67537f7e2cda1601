"""Strict YAML: values mean what they look like.

PyYAML reads YAML 1.1 and silently changes what people write: ``1:30:00`` is 5400, ``012`` is 10,
``no`` is false, ``1e-3`` is text, and the second of two equal keys wins. Here plain values follow YAML 1.2, values that
readers interpret differently are refused with their line, and the line of each key is kept for later messages.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from yaml.events import AliasEvent

from ddp_ladder.common import meant
from ddp_ladder.common.messages import Problem, UserError, printable
from ddp_ladder.common.paths import places

KeyPath = tuple[str | int, ...]
Scalar = str | int | float | bool | None

_MAX_SHOWN = 100
_MAX_DIGITS = 18  # more do not fit into 64 bits


@dataclass(frozen=True)
class Document:
    """One YAML file as plain data, with the place of each part.

    lines: line (from 1) of each key and list item.
    texts: numbers, booleans and nulls as they were typed.
    overridden: keys with a value from another document that was laid over this one, or None for the command line.
    """

    file: Path
    data: dict[str, Any]
    lines: Mapping[KeyPath, int] = field(default_factory=dict)
    texts: Mapping[KeyPath, str] = field(default_factory=dict)
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

    def text(self, *path: str | int) -> str:
        """Return a scalar as it was typed: ``1e-4``, not 0.0001."""
        value: Any = self.data
        for part in path:
            value = value[part]
        return self.texts.get(path, str(value))

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
    return text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 3] + "..."


def has_control_characters(text: str, but: str = "") -> bool:
    """Return True if text holds line ends, tabs, terminal control sequences, NUL or lone surrogates.

    but: the tabs and line ends that are allowed.
    """
    return printable(text) != text or any(char in text and char not in but for char in "\t\n")


def read(file: Path) -> Document:
    """Read a YAML mapping. Raises UserError with every YAML problem of the file."""
    root = _compose(file, _text(file))
    if root is None or (isinstance(root, yaml.ScalarNode) and root.value in ("", "null", "~")):
        raise UserError(
            Problem(
                where=str(file),
                what="the file is empty",
                allowed="keys and values, such as those of the file that ships with ddp-ladder",
                next=f"write the settings, or restore the shipped file: git checkout -- {file}",
            )
        )
    if not isinstance(root, yaml.MappingNode):
        raise UserError(
            Problem(
                where=f"{file}, line {_line(root)}",
                what="the file does not hold keys with values",
                found="a list" if isinstance(root, yaml.SequenceNode) else shown(root.value),
                allowed="lines of the form key: value",
                next="start each setting with its name and a colon, see config/README.md",
            )
        )
    reader = _Reader(file)
    data = reader.mapping(root, ())
    if reader.problems:
        raise UserError(reader.problems)
    return Document(file, data, reader.lines, reader.texts)


def _text(file: Path) -> str:
    if has_control_characters(str(file)):
        raise UserError(
            Problem(
                where=shown(str(file)),
                what="a control character in the path of the file",
                allowed="printable characters",
                next="correct the path",
            )
        )
    try:
        return file.read_bytes().decode("utf-8-sig")
    except FileNotFoundError as error:
        raise UserError(
            Problem(
                where=str(file),
                what="there is no such file",
                allowed=f"a file, {places()}",
                next="check the spelling and the directory",
            )
        ) from error
    except OSError as error:
        raise UserError(
            Problem(
                where=str(file),
                what=f"the file cannot be read: {error.strerror}",
                allowed="a YAML file that you may read",
                next="check the path and its permissions with ls -l",
            )
        ) from error
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise UserError(
            Problem(
                where=f"{file}, line {line}",
                what="the file is not UTF-8 text",
                found=f"byte 0x{error.object[error.start]:02x}",
                allowed="text in UTF-8",
                next="save the file as UTF-8 in your editor",
            )
        ) from error


class _AliasError(yaml.YAMLError):
    """A YAML alias was used; nested aliases can expand exponentially."""

    def __init__(self, line: int, name: str) -> None:
        super().__init__(name)
        self.line, self.name = line, name


class _Loader(yaml.BaseLoader):
    """A loader that composes nodes with untyped scalars, and refuses aliases."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(AliasEvent):
            event = self.peek_event()  # type: ignore[no-untyped-call]
            raise _AliasError(event.start_mark.line + 1, f"*{event.anchor}")
        return super().compose_node(parent, index)


def _compose(file: Path, text: str) -> yaml.Node | None:
    try:
        return yaml.compose(text, Loader=_Loader)
    except _AliasError as error:
        problem = Problem(
            where=f"{file}, line {error.line}",
            what="YAML aliases are not used here",
            found=error.name,
            allowed="values written out",
            next="write the value again in place of the alias",
        )
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        reason = ", ".join(part for part in (error.context, error.problem) if part)
        tab = r"'\t'" in reason
        what = "not YAML: a tab where only spaces may stand" if tab else f"not YAML: {reason}"
        problem = Problem(where=f"{file}{place}", what=what, next=_yaml_advice(reason))
    except yaml.reader.ReaderError as error:
        line = text[: error.position].count("\n") + 1
        problem = Problem(
            where=f"{file}, line {line}",
            what="not YAML: a control character",
            found=shown(text[error.position : error.position + 1]),
            allowed="printable text, tabs and line ends",
            next="remove the character",
        )
    except RecursionError:
        problem = Problem(
            where=str(file),
            what="not YAML that can be read: brackets or keys are nested too deeply",
            next="look for a run of opening brackets and remove it",
        )
    raise UserError(problem)


def _yaml_advice(reason: str) -> str:
    if r"'\t'" in reason:
        return "put spaces in place of the tab"
    if "cannot start any token" in reason or "alphabetic or numeric" in reason:
        return "put the value in quotes"
    if "mapping values are not allowed" in reason:
        return "put text that holds a colon in quotes, and line keys up with the others of their level"
    if "quoted scalar" in reason:
        return "close the quotation mark"
    if "flow" in reason:
        return "close the bracket or quotation mark before this place, with commas between items"
    if "document" in reason:
        return "keep one document: remove the second ---"
    return "check the indentation, colons and quotes on this line and the one before"


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


class _TrapError(ValueError):
    """An unquoted value that YAML readers interpret differently."""

    def __init__(self, what: str, allowed: str, advice: str) -> None:
        super().__init__(what)
        self.what, self.allowed, self.advice = what, allowed, advice


class _Reader:
    """Converter of nodes to data, which collects problems, lines and texts."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.problems: list[Problem] = []
        self.lines: dict[KeyPath, int] = {}
        self.texts: dict[KeyPath, str] = {}

    def mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        data: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = self.key(key_node, path)
            if key is None:
                continue
            here = (*path, key)
            if key in data:
                self.problem(
                    key_node,
                    here,
                    f"duplicate key, first on line {self.lines[here]}",
                    found=self.source(value_node),
                    allowed="each key once",
                    advice="keep one of the two lines",
                )
                continue
            self.lines[here] = _line(key_node)
            data[key] = self.value(value_node, here)
        return data

    def key(self, node: yaml.Node, path: KeyPath) -> str | None:
        if not isinstance(node, yaml.ScalarNode):
            self.problem(
                node,
                path,
                "a list or mapping used as a key",
                found=self.source(node),
                allowed="text as key",
                advice='if you mean a placeholder such as "{lr}", put it in quotes',
            )
            return None
        text: str = node.value
        if node.style is not None:
            return text
        here = (*path, text)
        if text == "<<":
            self.problem(
                node,
                here,
                "YAML merge keys are not used here",
                found="<<",
                allowed="keys written out",
                advice="write the merged keys out",
            )
            return None
        try:
            is_text = isinstance(resolve(text), str)
        except _TrapError:
            is_text = False
        if is_text:
            return text
        self.problem(
            node,
            here,
            "a key that is not text",
            found=text or "nothing before the colon",
            allowed="text as key",
            advice=f'put it in quotes: "{text}"' if text else "write the key's name",
        )
        return None

    def value(self, node: yaml.Node, path: KeyPath) -> Any:
        if node.tag.rpartition(":")[2] not in ("map", "seq", "str"):
            self.problem(
                node,
                path,
                "YAML tags are not used here",
                found=node.tag.replace("tag:yaml.org,2002:", "!!"),
                allowed="plain values, lists and mappings",
                advice="remove the tag",
            )
            return None
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.item(item, (*path, index)) for index, item in enumerate(node.value)]
        assert isinstance(node, yaml.ScalarNode)
        return node.value if node.style is not None else self.scalar(node, path)

    def item(self, node: yaml.Node, path: KeyPath) -> Any:
        self.lines[path] = _line(node)
        return self.value(node, path)

    def scalar(self, node: yaml.ScalarNode, path: KeyPath) -> Scalar:
        try:
            value = resolve(node.value)
        except _TrapError as trap:
            of_runtime = meant.runtime(node.value) if path[-1] == "runtime" else None
            allowed = "a whole number of minutes" if of_runtime else trap.allowed
            advice = of_runtime or trap.advice
            self.problem(node, path, trap.what, found=node.value, allowed=allowed, advice=advice)
            return None
        if not isinstance(value, str):
            self.texts[path] = node.value
        return value

    def source(self, node: yaml.Node) -> str:
        if isinstance(node, yaml.ScalarNode):
            return shown(node.value) if node.style else node.value
        return "a list" if isinstance(node, yaml.SequenceNode) else "a mapping"

    def problem(self, node: yaml.Node, path: KeyPath, what: str, *, found: str, allowed: str, advice: str) -> None:
        place = f"{self.file}, line {_line(node)}"
        where = f"{place}: {key_name(path)}" if path else place
        self.problems.append(Problem(where, what, found, allowed, advice))


_NUMBER_OR_TEXT = "a plain number, or text in quotes"
_INTEGER = re.compile(r"[-+]?[0-9]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")


def resolve(text: str) -> Scalar:
    """Return an unquoted value with its YAML 1.2 type. Raises ValueError if readers differ."""
    if text in ("", "~", "null", "Null", "NULL"):
        return None
    if text in ("true", "True", "TRUE", "false", "False", "FALSE"):
        return text.lower() == "true"
    for trap in _TRAPS:
        if trap.pattern.fullmatch(text):
            raise _TrapError(trap.what(text), trap.allowed, trap.next(text))
    if not _FLOAT.fullmatch(text):
        return text
    if not math.isfinite(float(text)) or (_INTEGER.fullmatch(text) and len(text) > _MAX_DIGITS):
        raise _TrapError(
            "a number too large to be kept exactly",
            _NUMBER_OR_TEXT,
            "write a smaller number, or put it in quotes if you mean the text",
        )
    return int(text) if _INTEGER.fullmatch(text) else float(text)


@dataclass(frozen=True)
class _Trap:
    """A kind of unquoted value that YAML readers interpret differently."""

    pattern: re.Pattern[str]
    what: Callable[[str], str]
    next: Callable[[str], str]
    allowed: str = _NUMBER_OR_TEXT


def _base_60(text: str) -> int:
    value = 0
    for part in text.lstrip("+-").partition(".")[0].split(":"):
        value = value * 60 + int(part)
    return -value if text.startswith("-") else value


def _without_leading_zeros(text: str) -> str:
    sign = "-" if text.startswith("-") else ""
    return sign + (text.lstrip("+-0") or "0")


def _truth(text: str) -> str:
    return "true" if text.lower() in ("yes", "on", "y") else "false"


_TRAPS = (
    _Trap(
        re.compile(r"yes|no|on|off|y|n", re.IGNORECASE),
        lambda text: f"some YAML readers take the word {text} for {_truth(text)}",
        lambda text: f'write {_truth(text)}, null for none, or "{text}" in quotes for the word',
        "true, false, null, or text in quotes",
    ),
    _Trap(
        re.compile(r"[-+]?[0-9]{1,9}(:[0-5]?[0-9]){1,9}(\.[0-9]*)?"),
        lambda text: f"a time without quotes: some YAML readers take it for the number {_base_60(text)}",
        lambda text: f'write the plain number, or "{text}" in quotes for the text',
    ),
    _Trap(
        re.compile(r"[-+]?0[0-9]+"),
        lambda text: "a number with a leading zero: some YAML readers take it for octal",
        lambda text: f'write {_without_leading_zeros(text)}, or "{text}" in quotes for the text',
    ),
    _Trap(
        re.compile(r"[-+]?0([oO][0-7_]+|[xX][0-9a-fA-F_]+|[bB][01_]+)"),
        lambda text: "a number that is not decimal: not every YAML reader takes it for a number",
        lambda text: f'write the decimal number, or "{text}" in quotes for the text',
    ),
    _Trap(
        re.compile(r"[-+]?[0-9][0-9_]*_[0-9_]*(\.[0-9_]*)?([eE][-+]?[0-9]+)?"),
        lambda text: "a number with underscores: some YAML readers take it for text",
        lambda text: f'write {text.replace("_", "")}, or "{text}" in quotes for the text',
    ),
    _Trap(
        re.compile(r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}([Tt \t].*)?"),
        lambda text: "a date without quotes: some YAML readers make a date object of it",
        lambda text: f'write "{text}" in quotes',
        "text in quotes",
    ),
    _Trap(
        re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"),
        lambda text: "not a finite number",
        lambda text: f'write a number, null for none, or "{text}" in quotes for the text',
    ),
)
