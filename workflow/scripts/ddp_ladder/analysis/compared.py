"""The outcome of a comparison: rows of ratios in panels, one per mode and scale. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ddp_ladder.analysis.ratio import Ratio, beyond_chance
from ddp_ladder.analysis.unlike import Unlike
from ddp_ladder.analysis.variant_changes import Change
from ddp_ladder.settings.terms import Scale

REFERENCE = "reference"
FASTER, SLOWER = "faster", "slower"
PERHAPS_FASTER, PERHAPS_SLOWER = "perhaps faster", "perhaps slower"
NO_DIFFERENCE = "no difference shown"
WITHHELD = "withheld: one repeat"
NO_RATIO = "no ratio"


@dataclass(frozen=True)
class Compared:
    """One side of a comparison at one mode and scale, against its reference.

    name: of the variant. folder: of the results, if several are compared.
    obstacle: why there is no ratio; empty if there is one. alike_nodes: False if pairs ran in other jobs or on other
    nodes than the reference.
    """

    name: str
    mode: str
    scale: Scale
    folder: str = ""
    is_reference: bool = False
    repeats: int = 0
    samples_per_s: float | None = None
    reference_samples_per_s: float | None = None
    step_time_s: float | None = None
    ratio: Ratio | None = None
    is_beyond_chance: bool = False
    obstacle: str = ""
    changes: tuple[Change, ...] = ()
    unlike: tuple[Unlike, ...] = ()
    alike_nodes: bool = True
    notes: tuple[str, ...] = ()
    rank: int | None = None  # by the ratio, 1 being the fastest

    @property
    def found(self) -> str:
        """Return the verdict in words."""
        if self.is_reference:
            return REFERENCE
        if self.ratio is None:
            return self.obstacle or NO_RATIO
        if self.ratio.p is None:
            return WITHHELD
        if not self.ratio.excludes_one:
            return NO_DIFFERENCE
        if self.is_beyond_chance:
            return FASTER if self.ratio.value > 1 else SLOWER
        return PERHAPS_FASTER if self.ratio.value > 1 else PERHAPS_SLOWER

    @property
    def label(self) -> str:
        """Return the name of the row: variant, and folder if there are several."""
        return f"{self.name}, {self.folder}" if self.folder else self.name


@dataclass(frozen=True)
class Panel:
    """All rows of a mode and scale, the fastest first; those without a ratio at the end."""

    mode: str
    scale: Scale
    rows: tuple[Compared, ...]

    @property
    def place(self) -> str:
        """Return ``1x2 weak``."""
        return f"{self.scale} {self.mode}"

    @property
    def compared(self) -> tuple[Compared, ...]:
        """Return the rows with a ratio."""
        return tuple(row for row in self.rows if row.ratio)


@dataclass(frozen=True)
class Comparison:
    """Panels in the order of the plan. reference: what everything is compared with, in words.

    missing: what only one of the folders has. warnings: what was left out on reading.
    """

    panels: tuple[Panel, ...]
    reference: str
    is_paired: bool
    missing: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def has_ratios(self) -> bool:
        return any(panel.compared for panel in self.panels)


def panel(mode: str, scale: Scale, rows: tuple[Compared, ...]) -> Panel:
    """Return the panel with its rows judged together and ranked."""
    judged = beyond_chance([row.ratio for row in rows])
    rows = tuple(replace(row, is_beyond_chance=beyond) for row, beyond in zip(rows, judged, strict=True))
    ordered = sorted(rows, key=lambda row: -_speed(row))
    rank = 0
    ranked = []
    for row in ordered:
        has_rank = _speed(row) > 0
        rank += has_rank
        ranked.append(replace(row, rank=rank) if has_rank else row)
    return Panel(mode, scale, tuple(ranked))


def _speed(row: Compared) -> float:
    return row.ratio.value if row.ratio else 1.0 if row.is_reference and row.samples_per_s else 0.0
