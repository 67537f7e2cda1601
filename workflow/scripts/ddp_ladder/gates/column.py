"""A figure of the report, with its definition, and its columns: how and where each is shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from ddp_ladder.common import formats
from ddp_ladder.gates.scale_point import ScalePoint
from ddp_ladder.records.record import Record
from ddp_ladder.settings.terms import ONE_GPU, Scale

Table = Literal["csv", "page", "markdown", "terminal", "runs", "startup", "usage", "attribution", "baselines", "cost"]
REPORT: tuple[Table, ...] = ("csv", "page", "markdown")  # the table of scales
OfRun = Callable[[Record], float | None]


@dataclass(frozen=True)
class Column:
    """One column of scaling.csv, of the tables of the report, or of both.

    key: its name in scaling.csv and ScalePoint. text: a value as it is shown, in ``unit``.
    of_run: the value of one run. That of a scale is the median over repeats, unless gates/scaling computes it.
    interval_in: where the 95 % interval is shown too. marks: a remark beside the value in a table.
    """

    key: str
    heading: str = ""  # the figure's name if empty
    unit: str = ""
    text: Callable[[Any], str] = formats.whole
    tables: tuple[Table, ...] = ("csv",)
    interval_in: tuple[Table, ...] = ()
    marks: Mapping[Table, Callable[[ScalePoint], str]] = field(default_factory=dict)
    of_run: OfRun | None = None

    @property
    def keys(self) -> tuple[str, ...]:
        """Return the fields of ScalePoint: the value and, if it has one, the ends of its interval."""
        return (self.key, *((f"{self.key}_low", f"{self.key}_high") if self.interval_in else ()))

    def shown(self, point: ScalePoint) -> str:
        """Return the value as text; a dash if it is not known."""
        return self.text(getattr(point, self.key))

    def estimate(self, point: ScalePoint) -> tuple[float, float, float] | None:
        """Return the value and the ends of its interval, which are the value if none is known; None without a value."""
        value, low, high = (getattr(point, key) for key in self.keys)
        return None if value is None else (value, value, value) if low is None or high is None else (value, low, high)

    def interval(self, point: ScalePoint) -> str:
        """Return ``[83-87 %]``; empty if the value is not known or, as at the baseline of a ratio, has no interval."""
        _, low, high = self.estimate(point) or (0.0, 0.0, 0.0)
        return formats.interval(self.text(low), self.text(high)) if low < high else ""

    def beside(self, point: ScalePoint, table: Table) -> tuple[str, str]:
        """Return the interval and the mark that a table shows beside the value; empty if there is none."""
        mark = self.marks[table](point) if table in self.marks else ""
        return self.interval(point) if table in self.interval_in else "", mark


@dataclass(frozen=True)
class Figure:
    """A figure, or several that belong together, with its definition. unit: in scaling.csv.

    several_first: the definition where the ladder starts at several GPUs, with {first} for that scale; empty: the same.
    """

    name: str
    unit: str
    definition: str
    columns: tuple[Column, ...]
    several_first: str = ""

    def defined_for(self, first: Scale) -> Figure:
        """Return the figure with the definition that holds for a ladder's first scale."""
        if first == ONE_GPU or not self.several_first:
            return self
        return replace(self, definition=self.several_first.format(first=first, n0=first.world_size))


def figure(name: str, unit: str, definition: str, *columns: Column, several_first: str = "") -> Figure:
    """Return a figure whose columns have its name unless they have a heading of their own."""
    headed = tuple(replace(each, heading=each.heading or name) for each in columns)
    return Figure(name, unit, definition, headed, several_first)
