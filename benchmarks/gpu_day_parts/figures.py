"""What a part of the day is told, and what it leaves: figures, checks and notes, on disk as soon as they are known."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddp_ladder.files import write_json


@dataclass(frozen=True)
class Setting:
    """Where a part runs.

    device: cuda, with sizes that fill a large GPU; or cpu, with the smallest sizes at which the code still runs.
    work: an empty directory of the part's own, removed after the day.
    out: where files are left for the user.
    """

    device: str
    work: Path
    out: Path

    @property
    def on_gpu(self) -> bool:
        return self.device == "cuda"


class Figures:
    """A part's results. Each call writes the file anew, so that a part that is cut short keeps what it has."""

    def __init__(self, file: Path, judge: bool) -> None:
        """judge: whether targets are compared; the figures of small sizes on a CPU are not."""
        self._file = file
        self._judge = judge
        self._told: dict[str, Any] = {"headline": None, "left_out": None, "figures": {}, "checks": [], "notes": []}

    def put(self, **figures: Any) -> None:
        """Add figures; names carry units."""
        self._told["figures"].update(figures)
        self._write()

    def headline(self, text: str) -> None:
        """The part in half a sentence, for the table."""
        self._told["headline"] = text
        self._write()

    def note(self, sentence: str) -> None:
        """How something was measured, or what a reader should know."""
        self._told["notes"].append(sentence)
        self._write()

    def check(self, what: str, value: float, at_least: float | None = None, at_most: float | None = None) -> None:
        """Compare a figure with its target."""
        met = (at_least is None or value >= at_least) and (at_most is None or value <= at_most)
        check = {"what": what, "value": value, "at_least": at_least, "at_most": at_most}
        self._told["checks"].append({**check, "met": met if self._judge else None})
        self._write()

    def left_out(self, why: str) -> None:
        """There is nothing to measure here."""
        self._told["left_out"] = why
        self._write()

    def _write(self) -> None:
        write_json(self._file, self._told)
