"""Text of shell scripts: words quoted, commands and sections put together. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from shlex import quote as quoted

Lines = list[str]


def command_line(groups: Sequence[Sequence[str]]) -> str:
    """A command of several lines. groups: words that belong on one line."""
    return " \\\n    ".join(" ".join(quote(word) for word in group) for group in groups)


_VARIABLE = re.compile("\0([A-Za-z_][A-Za-z0-9_]*)\0")


def variable(name: str) -> str:
    """What stands in a word for a shell variable until the word is quoted."""
    return f"\0{name}\0"


def quote(word: str) -> str:
    """One word of shell, with its variables. Raises ValueError for a NUL, which no word can hold."""
    parts = _VARIABLE.split(word)
    if any("\0" in part for part in parts):
        raise ValueError(f"a NUL character in {word!r}")
    if len(parts) == 1:
        return quoted(word)
    inside = [f"${{{part}}}" if k % 2 else re.sub(r'([\\"$`])', r"\\\1", part) for k, part in enumerate(parts)]
    return f'"{"".join(inside)}"'


def indented(lines: Iterable[str]) -> Lines:
    """Lines inside a block."""
    return [f"    {line}" for line in lines]


def joined(*sections: Iterable[str]) -> str:
    """Sections with an empty line between them."""
    texts = ["\n".join(section) for section in sections]
    return "\n\n".join(text for text in texts if text) + "\n"
