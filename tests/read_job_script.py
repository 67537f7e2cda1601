"""Read job.sh: its exports and the command that trains. Variables are not expanded."""

from __future__ import annotations

import re
import shlex


def exports_in(script: str) -> dict[str, str]:
    lines = re.findall(r"^export ((?:'[^']*'|\"[^\"]*\"|[^'\"\n])*)$", _joined(script), re.MULTILINE)
    words = [word for line in lines for word in shlex.split(line)]
    return dict(word.split("=", 1) for word in words if "=" in word)


def launch_in(script: str) -> tuple[str, ...]:
    """Return the words after exec, in the line that begins with it."""
    line = re.search(r"^ *exec ((?:'[^']*'|\"[^\"]*\"|[^'\"\n])*)$", _joined(script), re.MULTILINE)
    return tuple(shlex.split(line[1])) if line else ()


def _joined(script: str) -> str:
    return script.replace(" \\\n", " ")
