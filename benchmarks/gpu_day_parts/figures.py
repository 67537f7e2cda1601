"""A part's setting and its results: figures, checks and notes, written to disk as soon as they are known."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddp_ladder.common.files import write_json


@dataclass(frozen=True)
class Setting:
    """The device and the directories of a part.

    device: cuda, with sizes that fill a large GPU; or cpu, with the smallest sizes at which the code still runs.
    work: an empty directory for this part only, removed after the day.
    out: directory for files that the user gets.
    """

    device: str
    work: Path
    out: Path

    @property
    def on_gpu(self) -> bool:
        return self.device == "cuda"


class Figures:
    """A part's results. Each call rewrites the file, so that a part that is ended early keeps its results."""

    def __init__(self, file: Path, judge: bool) -> None:
        """judge: compare figures with their targets; not for the small sizes on a CPU."""
        self._file = file
        self._judge = judge
        self._results: dict[str, Any] = {"headline": None, "left_out": None, "figures": {}, "checks": []}
        self._results |= {"impossible": {}, "notes": []}

    def put(self, **figures: Any) -> None:
        """Add figures; names carry units."""
        self._results["figures"].update(figures)
        self._write()

    def headline(self, text: str) -> None:
        """Set the summary of the part for the table."""
        self._results["headline"] = text
        self._write()

    def note(self, sentence: str) -> None:
        """Add a note on how something was measured, or on how to read it."""
        self._results["notes"].append(sentence)
        self._write()

    def check(
        self,
        what: str,
        value: float,
        at_least: float | None = None,
        at_most: float | None = None,
        shows: int | None = None,
    ) -> None:
        """Compare a figure with its target. shows: the number of the thing in the checklist that it shows."""
        met = (at_least is None or value >= at_least) and (at_most is None or value <= at_most)
        check = {"what": what, "value": value, "at_least": at_least, "at_most": at_most, "shows": shows}
        self._results["checks"].append({**check, "met": met if self._judge else None})
        self._write()

    def impossible(self, thing: int, why: str) -> None:
        """Report that a thing of the checklist cannot be seen on this machine."""
        self._results["impossible"][str(thing)] = why
        self._write()

    def left_out(self, why: str) -> None:
        """Report that there is nothing to measure here."""
        self._results["left_out"] = why
        self._write()

    def _write(self) -> None:
        write_json(self._file, self._results)
