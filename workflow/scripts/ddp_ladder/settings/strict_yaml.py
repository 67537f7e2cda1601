"""Strict YAML: values mean what they look like.

PyYAML reads YAML 1.1 and silently changes what people write: ``1:30:00`` is 5400, ``012`` is 10,
``no`` is false, ``1e-3`` is text, and the second of two equal keys wins. Here plain values follow YAML 1.2, values that
PyYAML would take for something else are refused with their line, and the line of each key is kept for later messages.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from yaml.events import AliasEvent

from ddp_ladder.common import meant
from ddp_ladder.common.messages import Problem, UserError, printable
from ddp_ladder.common.paths import places
from ddp_ladder.common.redaction import NOT_SHOWN, is_secret_name

KeyPath = tuple[str | int, ...]
Scalar = str | int | float | bool | None

NULLS = ("", "~", "null", "Null", "NULL")
_TRUTHS = ("true", "True", "TRUE", "false", "False", "FALSE")
_MAX_SHOWN = 100
_MAX_DIGITS = 18  # more do not fit into 64 bits


class TypedInt(int):
    """A whole number of a file, with the ``text`` that was typed: ``+5``, ``16.0``."""

    text: str


class TypedFloat(float):
    """A number of a file, with the ``text`` that was typed: ``1e-4``."""

    text: str


@dataclass(frozen=True)
class Document:
    """One YAML file as plain data, with the place of each part.

    lines: line (from 1) of each key and list item.
    overridden: keys with a value from another document that was laid over this one, or None for the command line.
    """

    file: Path
    data: dict[str, Any]
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

    def has_comment(self, *path: str | int) -> bool:
        """Return True if a comment in the file is on the line of a key, or directly above a line of its own.

        False for a key of the command line.
        """
        if (key := self._overridden_at(path)) is not None:
            over = self.overridden[key]
            return over is not None and over.has_comment(*path)
        line = self.line(*path)
        if not line or not self.file.is_file():  # the config of a module is no file
            return False
        texts = self.file.read_bytes().decode("utf-8-sig").splitlines()[:line]
        above = texts[-2:-1] if line != self.line(*path[:-1]) else []
        said = [_QUOTED.sub("", texts[-1]), *(text for text in above if text.lstrip().startswith("#"))]
        return any(_COMMENT.search(text) for text in said)

    def _overridden_at(self, path: KeyPath) -> KeyPath | None:
        """Return the path, or its nearest parent, that was overridden; None if neither was."""
        heads = (path[:length] for length in range(len(path), 0, -1))
        return next((head for head in heads if head in self.overridden), None)


_QUOTED = re.compile(r""" "[^"]*" | '[^']*' """, re.VERBOSE)
_COMMENT = re.compile(r"(?:^|\s)#.*\w")


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


def is_at_secret(path: KeyPath) -> bool:
    """Return True for the place of an environment variable whose value must not be shown."""
    names = path[path.index("env") + 1 :] if "env" in path else ()
    return bool(names) and is_secret_name(str(names[0]))


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
    if root is None or (isinstance(root, yaml.ScalarNode) and root.value in NULLS):
        shipped = "keys and values, such as those of the file that ships with ddp-ladder"
        restore = f"write the settings, or restore the shipped file: git checkout -- {file}"
        raise UserError(Problem(str(file), "the file is empty", None, shipped, restore))
    if not isinstance(root, yaml.MappingNode):
        found = "a list" if isinstance(root, yaml.SequenceNode) else shown(root.value)
        start = "start each setting with its name and a colon, see config/README.md"
        what = "the file does not hold keys with values"
        raise UserError(Problem(f"{file}, line {_line(root)}", what, found, "lines of the form key: value", start))
    reader = _Reader(file)
    data = reader.mapping(root, ())
    if reader.problems:
        raise UserError(reader.problems)
    return Document(file, data, reader.lines)


def _text(file: Path) -> str:
    name = str(file)
    if has_control_characters(name):
        what = "a control character in the path of the file"
        raise UserError(Problem(shown(name), what, None, "printable characters", "correct the path"))
    try:
        return file.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        problem = Problem(
            name, "there is no such file", None, f"a file, {places()}", "check the spelling and the directory"
        )
    except OSError as error:
        what, look = f"the file cannot be read: {error.strerror}", "check the path and its permissions with ls -l"
        problem = Problem(name, what, None, "a YAML file that you may read", look)
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        where = f"{file}, line {line}"
        found, save = f"byte 0x{error.object[error.start]:02x}", "save the file as UTF-8 in your editor"
        problem = Problem(where, "the file is not UTF-8 text", found, "text in UTF-8", save)
    raise UserError(problem)


class _AliasError(yaml.YAMLError):
    """A YAML alias was used; nested aliases can expand exponentially."""


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
        line, found = error.args
        what, write = "YAML aliases are not used here", "write the value again in place of the alias"
        problem = Problem(f"{file}, line {line}", what, found, "values written out", write)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        reason = ", ".join(part for part in (error.context, error.problem) if part)
        what = "a tab where only spaces may stand" if r"'\t'" in reason else reason
        problem = Problem(f"{file}{place}", f"not YAML: {what}", next=_yaml_advice(reason))
    except yaml.reader.ReaderError as error:
        where = f"{file}, line {text[: error.position].count(chr(10)) + 1}"
        found = shown(text[error.position : error.position + 1])
        allowed, what = "printable text, tabs and line ends", "not YAML: a control character"
        problem = Problem(where, what, found, allowed, "remove the character")
    except RecursionError:
        what = "not YAML that can be read: brackets or keys are nested too deeply"
        problem = Problem(str(file), what, next="look for a run of opening brackets and remove it")
    raise UserError(problem)


_YAML_ADVICE = {
    r"'\t'": "put spaces in place of the tab",
    "cannot start any token": "put the value in quotes",
    "alphabetic or numeric": "put the value in quotes",
    "mapping values are not allowed": "put text that holds a colon in quotes, and line keys up with the "
    "others of their level",
    "quoted scalar": "close the quotation mark",
    "flow": "close the bracket or quotation mark before this place, with commas between items",
    "document": "keep one document: remove the second ---",
}


def _yaml_advice(reason: str) -> str:
    otherwise = "check the indentation, colons and quotes on this line and the one before"
    return next((advice for words, advice in _YAML_ADVICE.items() if words in reason), otherwise)


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


class _Reader:
    """Converter of nodes to data, which collects problems and lines."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.problems: list[Problem] = []
        self.lines: dict[KeyPath, int] = {}

    def mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        data: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = self.key(key_node, path)
            if key is None:
                continue
            here = (*path, key)
            if key in data:
                what, found = f"duplicate key, first on line {self.lines[here]}", self.source(value_node)
                self.problem(key_node, here, what, found, "each key once", "keep one of the two lines")
                continue
            self.lines[here] = _line(key_node)
            data[key] = self.value(value_node, here)
        return data

    def key(self, node: yaml.Node, path: KeyPath) -> str | None:
        if not isinstance(node, yaml.ScalarNode):
            what, quote = (
                "a list or mapping used as a key",
                'if you mean a placeholder such as "{lr}", put it in quotes',
            )
            self.problem(node, path, what, self.source(node), "text as key", quote)
            return None
        text: str = node.value
        if node.style is not None:
            return text
        if text == "<<":
            what, write = "YAML merge keys are not used here", "write the merged keys out"
            self.problem(node, (*path, text), what, "<<", "keys written out", write)
            return None
        try:
            if isinstance(resolve(text), str):
                return text
        except DisputedError:
            pass
        found, write = (
            (text, f'put it in quotes: "{text}"') if text else ("nothing before the colon", "write the key's name")
        )
        self.problem(node, (*path, text), "a key that is not text", found, "text as key", write)
        return None

    def value(self, node: yaml.Node, path: KeyPath) -> Any:
        if node.tag.rpartition(":")[2] not in ("map", "seq", "str"):
            tag, allowed = node.tag.replace("tag:yaml.org,2002:", "!!"), "plain values, lists and mappings"
            self.problem(node, path, "YAML tags are not used here", tag, allowed, "remove the tag")
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
            return _as_typed(node.value)
        except DisputedError as error:
            if is_at_secret(path):
                what = "a value that YAML readers take for different things"
                self.problem(node, path, what, NOT_SHOWN, "text in quotes", "put it in quotes")
                return None
            minutes = meant.runtime(node.value) if path[-1] == "runtime" else None
            allowed = "a whole number of minutes" if minutes else error.allowed
            self.problem(node, path, str(error), node.value, allowed, minutes or error.advice)
            return None

    def source(self, node: yaml.Node) -> str:
        if isinstance(node, yaml.ScalarNode):
            return shown(node.value) if node.style else node.value
        return "a list" if isinstance(node, yaml.SequenceNode) else "a mapping"

    def problem(self, node: yaml.Node, path: KeyPath, what: str, found: str, allowed: str, advice: str) -> None:
        place = f"{self.file}, line {_line(node)}"
        where = f"{place}: {key_name(path)}" if path else place
        self.problems.append(Problem(where, what, found, allowed, advice))


class DisputedError(ValueError):
    """An unquoted value that YAML readers take for different things, or not exactly for what it says."""

    def __init__(self, what: str, allowed: str, advice: str) -> None:
        super().__init__(what)
        self.allowed, self.advice = allowed, advice


_INTEGER = re.compile(r"[-+]?[0-9]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NUMBER_OR_TEXT = "a plain number, or text in quotes"
_PYYAML = yaml.resolver.Resolver()
_ALSO_DISPUTED = re.compile(r"[yn]|[-+]?0[0-9]+|[-+]?0o[0-7]+", re.IGNORECASE)


def resolve(text: str) -> Scalar:
    """Return an unquoted value with its YAML 1.2 type. Raises DisputedError if readers differ."""
    if text in NULLS:
        return None
    if text in _TRUTHS:
        return text.lower() == "true"
    ours = "int" if _INTEGER.fullmatch(text) else "float" if _FLOAT.fullmatch(text) else "str"
    if ours != "str" and (len(text) > _MAX_DIGITS if ours == "int" else not math.isfinite(float(text))):
        advice = "write a smaller number, or put it in quotes if you mean the text"
        raise DisputedError("a number too large to be kept exactly", _NUMBER_OR_TEXT, advice)
    tag = _PYYAML.resolve(yaml.ScalarNode, text, (True, False))  # type: ignore[no-untyped-call]
    theirs = tag.rpartition(":")[2]
    if (theirs in ("bool", "int", "float", "timestamp") and theirs != ours) or _ALSO_DISPUTED.fullmatch(text):
        raise _disputed(text, "bool" if text in ("y", "Y", "n", "N") else theirs)
    return text if ours == "str" else int(text) if ours == "int" else float(text)


def _disputed(text: str, kind: str) -> DisputedError:
    """Return the error of a value that is text or another number to readers of YAML 1.1. kind: what it is to PyYAML."""
    if kind == "bool":
        old = "true" if text.lower() in ("yes", "on", "y") else "false"
        what, allowed = f"some YAML readers take the word {text} for {old}", "true, false, null, or text in quotes"
        return DisputedError(what, allowed, f'write {old}, null for none, or "{text}" in quotes for the word')
    if kind == "timestamp":
        return DisputedError(f"some YAML readers take {text} for a date", "text in quotes", f'write "{text}" in quotes')
    digits = text.replace("_", "")
    number = str(int(digits)) if _INTEGER.fullmatch(digits) and len(digits) <= _MAX_DIGITS else "a plain number"
    old = "text" if kind == "str" else f"the number {yaml.safe_load(text)}" if len(text) < _MAX_SHOWN else "a number"
    advice = f'write {number}, or "{text}" in quotes for the text'
    return DisputedError(f"some YAML readers take {text} for {old}", _NUMBER_OR_TEXT, advice)


def _as_typed(text: str) -> Scalar:
    """Return an unquoted value; a number keeps its text, and ``16.0`` is the whole number 16."""
    value = resolve(text)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    is_whole = float(value).is_integer() and abs(value) < 10**_MAX_DIGITS
    number = TypedInt(value) if is_whole else TypedFloat(value)
    number.text = text
    return number
