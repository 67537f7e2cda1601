"""Text of shell scripts: quoted words, commands over several lines, filled-in templates. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from shlex import quote as quoted
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from ddp_ladder.common.paths import TEMPLATES

_VARIABLE = re.compile("\0([A-Za-z_][A-Za-z0-9_]*)\0")


def variable(name: str) -> str:
    """Return the mark of a shell variable in a word that is yet to be quoted."""
    return f"\0{name}\0"


def quote(word: str) -> str:
    """Quote a word for the shell, with its variables. Raises ValueError for a NUL, which no word can contain."""
    parts = _VARIABLE.split(word)
    if any("\0" in part for part in parts):
        raise ValueError(f"a NUL character in {word!r}")
    if len(parts) == 1:
        return quoted(word)
    inside = [f"${{{part}}}" if k % 2 else re.sub(r'([\\"$`])', r"\\\1", part) for k, part in enumerate(parts)]
    return f'"{"".join(inside)}"'


def command_line(groups: Sequence[Sequence[str]]) -> str:
    """Return a command of several lines. groups: the words of each line."""
    return " \\\n    ".join(" ".join(quote(word) for word in group) for group in groups)


@cache
def _environment() -> Environment:
    """Return the templates; each is compiled once, however many runs are exported."""
    environment = Environment(  # not HTML: only ``quote`` escapes
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    environment.filters["quote"] = quote
    return environment


def render(template: str, **values: Any) -> str:
    """Fill in workflow/templates/<template>; its filter ``quote`` makes a value one word of shell."""
    return _environment().get_template(template).render(values)
