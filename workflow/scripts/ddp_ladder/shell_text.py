"""Text of shell scripts: words quoted, commands and sections put together. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from shlex import quote

Lines = list[str]


def command_line(groups: Sequence[Sequence[str]]) -> str:
    """A command of several lines. groups: words that belong on one line; a variable's name stands between NULs."""
    return " \\\n    ".join(" ".join(_word(word) for word in group) for group in groups)


def _word(text: str) -> str:
    """Quoted for the shell, with the variables that stand between NULs."""
    parts = text.split("\0")
    if len(parts) == 1:
        return quote(text)
    quoted = [f"${{{part}}}" if k % 2 else re.sub(r'([\\"$`])', r"\\\1", part) for k, part in enumerate(parts)]
    return f'"{"".join(quoted)}"'


def indented(lines: Iterable[str]) -> Lines:
    """Lines inside a block."""
    return [f"    {line}" for line in lines]


def joined(*sections: Iterable[str]) -> str:
    """Sections with an empty line between them."""
    texts = ["\n".join(section) for section in sections]
    return "\n\n".join(text for text in texts if text) + "\n"
