"""The same workload at several times and places: the figures of each scale, and what changed in between. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ddp_ladder.analysis.comparison import FASTER, SLOWER, Ratio
from ddp_ladder.gates.points import ScalePoint
from ddp_ladder.measuring.fingerprint import UNREAD, distinct_words, must_match, unlike
from ddp_ladder.records.record import Record
from ddp_ladder.settings.terms import REFERENCE_VARIANT

PLATFORM = frozenset("backend_class cpu_model cuda cudnn driver gpu libraries nccl power_limit_w python torch".split())
"""Fields whose change a history is for: the same training, on other software or hardware."""
FIRST = "the first"
ALIKE, OTHER_PLATFORM, UNLIKE = "like for like", "other software or hardware", "not like for like"
NO_CHANGE, NO_COMPARISON = "no change beyond chance", "no comparison is possible"


@dataclass(frozen=True)
class Ladder:
    """What was measured at one time and place."""

    name: str  # of its file or directory
    site: str
    on: str  # a date; empty: not known
    script: str
    points: Sequence[ScalePoint]
    records: Sequence[Record]

    def of(self, mode: str, scale: str) -> ScalePoint | None:
        """Return the measured point of the reference variant."""
        return next((point for point in self.measured if (point.mode, str(point.scale)) == (mode, scale)), None)

    @property
    def measured(self) -> Iterator[ScalePoint]:
        for point in self.points:
            if point.variant == REFERENCE_VARIANT and point["samples_per_s"] is not None:
                yield point

    def run(self, point: ScalePoint) -> Record | None:
        """Return the first good run of a point."""
        wanted = (point.variant, point.mode, point.scale)
        good = (run for run in self.records if run.status == "ok")
        return next((run for run in good if (run.spec.variant, run.spec.mode, run.spec.scale) == wanted), None)


@dataclass(frozen=True)
class Entry:
    """A ladder's figures at one scale, beside those of the ladder before it that has this scale."""

    ladder: Ladder
    point: ScalePoint
    found: str
    ratio: Ratio | None = None  # of the throughputs; None: there is none before, or the training differs
    changed: tuple[tuple[str, str, str], ...] = ()  # field, value before, and now

    @property
    def per_gpu(self) -> float:
        return (self.point["samples_per_s"] or 0.0) / self.point.world_size

    @property
    def verdict(self) -> str:
        """Return what the comparison shows: a change if the ratio's interval, with what jobs differ by, is beside 1."""
        ratio = self.ratio
        if ratio is None:
            return FIRST if self.found == FIRST else f"{NO_COMPARISON}: {self._why_none}"
        if ratio.low is None or ratio.high is None:
            return "not known: the ratio has no interval"
        return NO_CHANGE if ratio.low <= 1 <= ratio.high else FASTER if ratio.value > 1 else SLOWER

    @property
    def _why_none(self) -> str:
        differing = [f"{name} {then} → {now}" for name, then, now in self.changed if not _is_platform(name, then, now)]
        return "; ".join(differing) or "one of the two has no run that ended well, or no throughput"


@dataclass(frozen=True)
class History:
    """One mode and scale over all ladders that measured it."""

    mode: str
    scale: str
    entries: tuple[Entry, ...]


def histories(ladders: Sequence[Ladder]) -> tuple[History, ...]:
    """Return the history of each mode and scale; ladders: in the order of their dates (see ``in_order``)."""
    sizes = {(point.mode, str(point.scale)): point.world_size for ladder in ladders for point in ladder.measured}
    keys = sorted(sizes, key=lambda key: (key[0] != "weak", sizes[key], key[1]))
    return tuple(History(mode, scale, tuple(_entries(ladders, mode, scale))) for mode, scale in keys)


def in_order(ladders: Sequence[Ladder]) -> list[Ladder]:
    """Return the ladders by their dates; those without one last, as they were given."""
    return sorted(ladders, key=lambda ladder: (not ladder.on, ladder.on))


def _entries(ladders: Sequence[Ladder], mode: str, scale: str) -> Iterator[Entry]:
    before: tuple[Ladder, ScalePoint] | None = None
    for ladder in ladders:
        point = ladder.of(mode, scale)
        if point is None:
            continue
        yield _entry(ladder, point, *before) if before else Entry(ladder, point, FIRST)
        before = ladder, point


def _entry(ladder: Ladder, point: ScalePoint, earlier: Ladder, before: ScalePoint) -> Entry:
    first, second = earlier.run(before), ladder.run(point)
    if first is None or second is None:  # a point is of good runs; without them nothing can be said
        return Entry(ladder, point, UNLIKE)
    # The script's path may differ from place to place; its content is compared.
    fields = list(unlike(first, second, [field for field in must_match(point.mode) if field.name != "script"]))
    words = ((name, distinct_words(name, *values)) for name, *values in fields)
    changed = tuple((name, then, now) for name, (then, now) in words)
    if not all(_is_platform(*each) for each in changed):
        return Entry(ladder, point, UNLIKE, changed=changed)
    return Entry(ladder, point, OTHER_PLATFORM if fields else ALIKE, _ratio(point, before), changed)


def _is_platform(name: str, then: str, now: str) -> bool:
    return name in PLATFORM and UNREAD not in (then, now)


def _ratio(point: ScalePoint, before: ScalePoint) -> Ratio | None:
    """Return the ratio of two throughputs of different jobs, which differ also without a change."""
    if point.rate is None or before.rate is None:
        return None
    ratio = point.rate.over(before.rate)
    low, high = ratio.log.interval_of_any_job(ratio.value) if ratio.log else (None, None)
    return Ratio(ratio.value, low, high, None)
