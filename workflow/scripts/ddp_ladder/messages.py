"""Messages for a user's mistake: what is wrong, where, what is allowed, what to do next."""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """One mistake in one place.

    where: file, with a line where there is one, and the key: ``config/config.yaml, line 14: repeats``.
    """

    where: str
    what: str
    found: str | None = None
    allowed: str | None = None
    next: str | None = None

    def __str__(self) -> str:
        lines = [f"{self.where}: {self.what}"]
        for label in ("found", "allowed", "next"):
            text = getattr(self, label)
            if text is not None:
                lines.append(f"  {label:<8} {text}")
        return "\n".join(lines)


class UserError(Exception):
    """A mistake that the user can mend; shown as its message alone, never with a traceback."""

    def __init__(self, problems: Problem | Iterable[Problem]) -> None:
        self.problems: tuple[Problem, ...] = (problems,) if isinstance(problems, Problem) else tuple(problems)
        super().__init__("\n\n".join(str(problem) for problem in self.problems))


_TERMINAL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b.?")


def printable(text: str) -> str:
    """Text for a terminal without what would steer it: colours, bells, titles, carriage returns. Line ends stay."""
    return "".join(
        char for char in _TERMINAL.sub("", text) if char == "\n" or unicodedata.category(char) not in ("Cc", "Cs")
    )


def did_you_mean(word: str, allowed: Iterable[str]) -> str | None:
    """Return ``did you mean "x"?`` for the closest allowed word, or None when none is close."""
    matches = difflib.get_close_matches(word, list(allowed), n=1, cutoff=0.6)
    return f'did you mean "{matches[0]}"?' if matches else None
