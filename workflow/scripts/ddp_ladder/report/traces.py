"""What is drawn of samples over time: lines with as many points as a picture shows, bands, spans, and dips. Pure.

Times are in seconds on one clock, values in the unit of their column; an unknown value is nan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ddp_ladder.nodes.read import Phase, Span, Values

DIP_BELOW = 0.8  # of a GPU's busy fraction: the bound below which a finding calls a GPU idle for too long
CALM: tuple[Phase, ...] = ("start-up", "warm-up", "end")  # phases in which nobody expects a busy GPU
TRAINING: tuple[Phase, ...] = ("training", "run")  # run: the phases are not known


@dataclass(frozen=True)
class Trace:
    """One quantity of one device over time. values: nan where it is not known."""

    label: str
    times_s: Values
    values: Values

    @property
    def is_known(self) -> bool:
        """Return True if any value is known."""
        return bool(np.isfinite(self.values).any())


@dataclass(frozen=True)
class Band:
    """Many traces as one: in each bin of time the lowest value, the median of the traces' means, the highest value."""

    label: str
    times_s: Values
    low: Values
    middle: Values
    high: Values
    traces: int


@dataclass(frozen=True)
class Dip:
    """A time in which a GPU was less busy than DIP_BELOW. phase: what explains it; lowest: the lowest busy fraction."""

    phase: Phase
    begin_s: float
    end_s: float
    lowest: float

    @property
    def middle_s(self) -> float:
        """Return the middle of it."""
        return (self.begin_s + self.end_s) / 2


def downsampled(trace: Trace, bins: int) -> Trace:
    """Return a trace of at most 2 x bins points: the lowest and the highest value of each bin, at their own times.

    So no peak and no dip is lost. A bin without a known value is one point of nan, a gap in the line.
    """
    count = len(trace.times_s)
    if count <= 2 * bins:
        return trace
    width = -(-count // bins)
    padded = np.full(bins * width, np.nan)
    padded[:count] = trace.values
    binned = padded.reshape(bins, width)
    lows = np.where(np.isnan(binned), np.inf, binned).argmin(axis=1)
    highs = np.where(np.isnan(binned), -np.inf, binned).argmax(axis=1)
    firsts = width * np.arange(bins)
    keep = np.unique(np.concatenate([firsts + lows, firsts + highs]))
    keep = keep[keep < count]
    return Trace(trace.label, trace.times_s[keep], trace.values[keep])


def band(label: str, traces: Sequence[Trace], most: int) -> Band:
    """Return the band of traces: over bins of time, the lowest value, the median of the traces' means, the highest.

    There are as many bins as a trace has samples, at most ``most``; bins without a known value are left out.
    """
    known = [trace for trace in traces if len(trace.times_s)]
    if not known:
        nothing = np.empty(0)
        return Band(label, nothing, nothing, nothing, nothing, len(traces))
    begin = min(trace.times_s[0] for trace in known)
    end = max(trace.times_s[-1] for trace in known)
    bins = max(1, min(most, max(len(trace.times_s) for trace in known)))
    width = (end - begin) / bins or 1.0
    low, high = np.full(bins, np.inf), np.full(bins, -np.inf)
    means = np.full((len(known), bins), np.nan)
    for mean, trace in zip(means, known, strict=True):
        finite = np.isfinite(trace.values)
        place, values = np.minimum((trace.times_s[finite] - begin) / width, bins - 1).astype(int), trace.values[finite]
        np.minimum.at(low, place, values)
        np.maximum.at(high, place, values)
        counts, sums = np.bincount(place, minlength=bins), np.bincount(place, values, minlength=bins)
        np.divide(sums, counts, out=mean, where=counts > 0)
    kept = np.isfinite(low)
    middles_s = begin + width * (np.arange(bins) + 0.5)
    return Band(label, middles_s[kept], low[kept], np.nanmedian(means[:, kept], axis=0), high[kept], len(traces))


def merged(spans: Sequence[Span], phases: Sequence[Phase], gap_s: float) -> list[Span]:
    """Return the spans of these phases in order; those less than ``gap_s`` apart, which look like one, as one."""
    found: list[Span] = []
    for span in sorted((each for each in spans if each.phase in phases), key=lambda each: each.begin_s):
        if found and span.begin_s - found[-1].end_s < gap_s:
            found[-1] = Span(found[-1].phase, found[-1].begin_s, max(found[-1].end_s, span.end_s))
        else:
            found.append(span)
    return found


def dips(busy: Sequence[Trace], spans: Sequence[Span], every_s: float, below: float = DIP_BELOW) -> list[Dip]:
    """Return the times in which the least busy GPU was busy for less than ``below`` of the time, in order of time.

    Start-up, warm-up and the end are left out. every_s: the time that a sample is the mean of, which ends with it.
    """
    known = [trace for trace in busy if len(trace.times_s)]
    if not known:
        return []
    begin = min(trace.times_s[0] for trace in known)
    bins = 1 + max(int((trace.times_s[-1] - begin) / every_s + 0.5) for trace in known)
    lowest = np.full(bins, np.inf)
    for trace in known:
        finite = np.isfinite(trace.values)
        place = ((trace.times_s[finite] - begin) / every_s + 0.5).astype(int)
        np.minimum.at(lowest, place, trace.values[finite])
    ends_s = begin + every_s * np.arange(bins)
    inside = (lowest < below) & ~_within(ends_s - every_s / 2, spans, CALM)
    return [
        _dip(ends_s[first] - every_s, ends_s[last], float(lowest[first : last + 1].min()), spans, below)
        for first, last in _stretches(inside)
    ]


def _within(times_s: Values, spans: Sequence[Span], phases: Sequence[Phase]) -> NDArray[np.bool_]:
    inside = np.zeros(len(times_s), dtype=bool)
    for span in spans:
        if span.phase in phases:
            inside |= (times_s >= span.begin_s) & (times_s < span.end_s)
    return inside


def _stretches(marked: NDArray[Any]) -> list[tuple[int, int]]:
    """Return the first and the last index of each stretch of true values."""
    padded = np.concatenate(([False], marked, [False])).astype(int)
    change = np.diff(padded)
    firsts, lasts = np.flatnonzero(change == 1), np.flatnonzero(change == -1) - 1
    return [(int(first), int(last)) for first, last in zip(firsts, lasts, strict=True)]


def _dip(begin_s: float, end_s: float, lowest: float, spans: Sequence[Span], below: float) -> Dip:
    """Return a dip with its phase: a pause of the training explains it if it fills the missing part of the time."""
    overlaps: dict[Phase, float] = {}
    for span in spans:
        overlap_s = min(span.end_s, end_s) - max(span.begin_s, begin_s)
        if span.phase not in TRAINING and overlap_s > 0:
            overlaps[span.phase] = overlaps.get(span.phase, 0.0) + overlap_s
    explained = sum(overlaps.values()) >= (1 - below) * (end_s - begin_s)
    phase = max(overlaps, key=lambda each: overlaps[each]) if overlaps and explained else "training"
    return Dip(phase, begin_s, end_s, lowest)


def labelled(found: Sequence[Dip], begin_s: float, end_s: float, letter_s: float, most: int) -> list[tuple[float, Dip]]:
    """Return the dips that get a label, each with the time of the label's middle, in order of time.

    Of each phase the longest dip comes first, then the others by length. letter_s: the time that a letter takes on an
    axis from begin_s to end_s; labels do not overlap and do not leave the axis.
    """
    by_length = sorted(found, key=lambda dip: dip.end_s - dip.begin_s, reverse=True)
    longest: dict[Phase, Dip] = {}
    for dip in by_length:
        longest.setdefault(dip.phase, dip)
    chosen: dict[float, Dip] = {}
    for dip in [*longest.values(), *by_length]:
        half = letter_s * (len(dip.phase) + 1) / 2
        place = max(begin_s + half, min(end_s - half, dip.middle_s))
        free = all(abs(place - at) >= half + letter_s * (len(each.phase) + 1) / 2 for at, each in chosen.items())
        if len(chosen) < most and free:
            chosen[place] = dip
    return sorted(chosen.items())
