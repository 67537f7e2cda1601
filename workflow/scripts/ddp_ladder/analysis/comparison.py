"""Comparison of the variants' throughputs with the default's, in pairs of runs. Pure.

A scale's job runs all variants of a repeat after each other, on the same nodes. What slows down both runs of such a
pair, such as a hot node or other jobs, cancels in their ratio: the interval is Student's t on the logarithms of the
pairs' ratios.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ddp_ladder.common import formats
from ddp_ladder.common.formats import in_short
from ddp_ladder.gates.figures import columns
from ddp_ladder.gates.groups import Good, Group, groups_of, with_one_statistic
from ddp_ladder.gates.interval import LogMean, Variance, median_of_known
from ddp_ladder.gates.notes import failure_note, why_not_run
from ddp_ladder.measuring.fingerprint import batch_per_gpu_seen, distinct_words, global_batch_seen, must_match, unlike
from ddp_ladder.measuring.statistic import COVERAGE, median
from ddp_ladder.plan.fit import Fit
from ddp_ladder.plan.plan import Plan
from ddp_ladder.records.record import Record
from ddp_ladder.settings.keys import BatchRange
from ddp_ladder.settings.terms import REFERENCE_VARIANT, Scale

REFERENCE, FASTER, SLOWER, NO_DIFFERENCE = "reference", "faster", "slower", "not beyond chance"
WITHHELD = "withheld: one repeat"
NOT_RUN = "not run"
MOST_NAMED = 3
LESS_MEMORY = 0.95  # of the recommended variant's: what is worth naming
OF_RUN = {column.key: column.of_run for column in columns("csv") if column.of_run}
MEMORY, HEADROOM, EXPOSED = (
    OF_RUN[key] for key in ("peak_memory_bytes", "memory_headroom_fraction", "exposed_comm_fraction")
)
SETTINGS = (
    "launcher", "backend", "interface", "env_template", "python", "modules", "setup", "container", "cpus_per_node",
    "max_steps", "max_seconds",
)  # fmt: skip
"""Fields of a spec, beside those of the fingerprint, that may explain another speed."""
HOW_TO_READ = (
    "Ratios are of throughput, variant / default, of runs of the same repeat in one job on the same nodes; their "
    "geometric mean, with a 95 % interval (Student's t over the pairs). The chance of any wrong “faster” or “slower” "
    "at a mode and scale is at most 5 % (Holm): of many intervals, some miss 1 by chance, and “not beyond chance” does "
    "not say that both are equally fast."
)


@dataclass(frozen=True)
class Ratio:
    """A ratio of throughputs: the geometric mean over repeats.

    low, high: of the 95 % interval; None: withheld. p: the probability of a ratio as far from 1, if it is 1 in truth.
    """

    value: float
    low: float | None
    high: float | None
    p: float | None


def paired(here: Sequence[float], reference: Sequence[float]) -> Ratio:
    """Return the ratio of throughputs, the runs of one repeat at the same place of both. They are positive."""
    ratios = [one / other for one, other in zip(here, reference, strict=True)]
    log = LogMean.of(ratios)
    value = math.exp(log.mean)
    if log.shown is None:  # a single pair shows no scatter
        return Ratio(value, None, None, None)
    low, high = log.interval(value)
    return Ratio(value, low, high, _probability(log.mean, log.shown))


def _probability(mean: float, variance: Variance) -> float:
    if not variance.value:
        return 0.0 if mean else 1.0
    errors = abs(mean) / math.sqrt(variance.value)
    from scipy.special import stdtr  # takes half a second

    return 2 * float(stdtr(variance.freedom, -errors))


def beyond_chance(ratios: Sequence[Ratio | None]) -> tuple[bool, ...]:
    """Return for each ratio of a family whether it differs from 1 by more than chance explains, by Holm's procedure.

    Of 20 intervals of 95 %, one misses 1 by chance. Holm compares the smallest p with 5 % / 20, the next one with
    5 % / 19, and so on, up to the first that is above: the chance of any wrong verdict among them is then at most 5 %.
    """
    known = [(ratio.p, place) for place, ratio in enumerate(ratios) if ratio is not None and ratio.p is not None]
    found = [False] * len(ratios)
    for number, (p, place) in enumerate(sorted(known)):
        if p >= (1 - COVERAGE) / (len(known) - number):
            break
        found[place] = True
    return tuple(found)


@dataclass(frozen=True)
class Compared:
    """A variant at one mode and scale, against the default.

    found: the verdict in words, or why there is no ratio. repeats: pairs, or good runs if there is no ratio.
    unlike: what differs: settings of the variant, and what else may explain another speed.
    """

    name: str
    mode: str
    scale: Scale
    found: str = ""
    repeats: int = 0
    has_failed: bool = False  # a repeat, or all
    is_absent: bool = False  # no run of it was made, and none was left out on purpose
    samples_per_s: float | None = None
    reference_samples_per_s: float | None = None
    step_time_s: float | None = None
    batch: str = ""  # per GPU, and of all
    peak_memory_bytes: float | None = None  # of the rank with the most
    memory_headroom_fraction: float | None = None
    exposed_comm_fraction: float | None = None
    ratio: Ratio | None = None
    unlike: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


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
    """Panels in the order of the plan. wanted_headroom: the part of a rank's memory that should stay free."""

    panels: tuple[Panel, ...]
    wanted_headroom: float

    @property
    def decisive(self) -> tuple[Panel, ...]:
        """Return the largest panel with ratios of each mode."""
        with_ratios = [panel for panel in self.panels if panel.compared]
        by_size = sorted(with_ratios, key=lambda panel: (panel.scale.world_size, panel.scale.nodes))
        largest = {panel.mode: panel for panel in by_size}
        return tuple(panel for panel in self.panels if panel in largest.values())


def _panel(mode: str, scale: Scale, rows: tuple[Compared, ...]) -> Panel:
    """Return the panel with its rows judged together, the fastest first."""
    judged = beyond_chance([row.ratio for row in rows])
    rows = tuple(
        replace(row, found=verdict(row.ratio, beyond)) if row.ratio else row
        for row, beyond in zip(rows, judged, strict=True)
    )
    return Panel(mode, scale, tuple(sorted(rows, key=lambda row: -_speed(row))))


def verdict(ratio: Ratio, is_beyond_chance: bool) -> str:
    """Return the verdict on a ratio in words."""
    if ratio.p is None:
        return WITHHELD
    return NO_DIFFERENCE if not is_beyond_chance else FASTER if ratio.value > 1 else SLOWER


def _speed(row: Compared) -> float:
    return row.ratio.value if row.ratio else float(row.found == REFERENCE)


def compare_variants(plan: Plan, records: Mapping[str, Record], fit: Fit | None = None) -> Comparison:
    """Return every variant of a plan beside the default. records: by ``RunSpec.name``. fit: what chose the batch."""
    runs = [run for run in plan.runs if not run.is_plain]
    every = groups_of(runs, records, plan.may_differ, plan.gates)
    groups = with_one_statistic(every, lambda group: group.first.mode)
    panels = []
    for mode, scale in dict.fromkeys((mode, scale) for mode, _, scale in groups):
        own = [group for (its_mode, _, its_scale), group in groups.items() if (its_mode, its_scale) == (mode, scale)]
        reference = next((group for group in own if group.first.variant == REFERENCE_VARIANT), None)
        panels.append(_panel(mode, scale, tuple(_compared(group, reference) for group in own)))
    return Comparison(tuple(panels), (fit.headroom_percent if fit else BatchRange().headroom_percent) / 100)


def _measured(group: Group) -> Compared:
    """Return a row with the figures of a group, and why some or all of its runs have none; without a ratio."""
    spec = group.first
    row = Compared(spec.variant, spec.mode, spec.scale, repeats=len(group.good), has_failed=bool(group.failed))
    if group.failed:
        row = replace(row, notes=(failure_note(group),))
    if not group.good:
        failed = ", ".join(dict.fromkeys(run.failure.verdict for run in group.failed if run.failure))
        left_out = f"{NOT_RUN}: {why_not_run(group)}" if group.left_out else NOT_RUN
        found = f"failed: {failed}" if group.failed else left_out
        return replace(row, found=found, is_absent=not (group.failed or group.left_out))
    first = group.good[0].record
    batch = f"{batch_per_gpu_seen(first)} of {global_batch_seen(first)}"
    memory_bytes, headroom, exposed = (
        median_of_known([read(run.record) for run in group.good]) for read in (MEMORY, HEADROOM, EXPOSED)
    )
    return replace(
        row,
        samples_per_s=group.samples_per_s,
        step_time_s=group.step_time_s,
        batch=batch,
        peak_memory_bytes=memory_bytes,
        memory_headroom_fraction=headroom,
        exposed_comm_fraction=exposed,
    )


def _compared(group: Group, reference: Group | None) -> Compared:
    """Return a row with its ratio to the default, or why there is none."""
    row = _measured(group)
    if row.found or group is reference:
        return replace(row, found=row.found or REFERENCE)
    if reference is None or not reference.good:
        return replace(row, found=f"{REFERENCE_VARIANT} {_measured(reference).found if reference else NOT_RUN}")
    pairs = _pairs(group, reference)
    if not pairs:
        return replace(row, found=f"no repeat of both this and {REFERENCE_VARIANT} succeeded")
    here, there = ([run.samples_per_s(group.statistic) for run in side] for side in zip(*pairs, strict=True))
    second, first = pairs[0]
    return replace(
        row,
        repeats=len(pairs),
        ratio=paired(here, there),
        reference_samples_per_s=median(there),
        unlike=_unlike(first.record, second.record),
        notes=(*row.notes, *_notes(pairs, group)),
    )


def _pairs(group: Group, reference: Group) -> list[tuple[Good, Good]]:
    others = {run.record.spec.repeat: run for run in reference.good}
    return [(run, others[repeat]) for run in group.good if (repeat := run.record.spec.repeat) in others]


def _notes(pairs: Sequence[tuple[Good, Good]], group: Group) -> Iterator[str]:
    if len(pairs) < len(group.specs):
        yield f"{len(pairs)} of {len(group.specs)} repeats are pairs"
    apart = [f"r{here.record.spec.repeat}" for here, there in pairs if _where(here) != _where(there)]
    if apart:
        yield f"not in one job on the same nodes ({', '.join(apart)}): the ratio contains what these differ in"


def _where(run: Good) -> tuple[str | None, frozenset[str]]:
    job = run.record.job
    return (job.id if job else None), frozenset(run.record.world.hosts)


def _unlike(reference: Record, here: Record) -> tuple[str, ...]:
    """Return the fields of the fingerprint, settings and nodes that differ between two runs."""
    found = [_in_words(*each) for each in unlike(reference, here, must_match(reference.spec.mode))]
    settings = [(name, getattr(reference.spec, name), getattr(here.spec, name)) for name in SETTINGS]
    found += [_in_words(name, before, now) for name, before, now in settings if before != now]
    before, now = (sorted(set(record.world.hosts)) for record in (reference, here))
    if before != now:
        found.append(f"nodes {in_short(now, 3)} (reference: {in_short(before, 3)})")
    return tuple(found)


def _in_words(name: str, before: object, now: object) -> str:
    """Return ``batch_per_gpu 128 (reference: 64)``."""
    there, here = distinct_words(name, before, now)
    return f"{name} {here} (reference: {there})"


def ratio_text(ratio: Ratio) -> str:
    """Return ``1.120 times [1.08-1.16]``."""
    return f"{number(ratio.value)} times {interval_text(ratio)}".rstrip()


def interval_text(ratio: Ratio) -> str:
    """Return ``[1.08-1.16]``; empty if it is withheld."""
    if ratio.low is None or ratio.high is None:
        return ""
    return formats.interval(number(ratio.low), number(ratio.high))


def number(value: float) -> str:
    """Return a ratio near 1 with three decimals, as 1 % matters there; a large or small one with three digits."""
    return f"{value:.3f}" if 0.1 <= value < 9.9995 else formats.significant(value)


def sentences(comparison: Comparison) -> tuple[str, ...]:
    """Return what was found at the largest compared scale of each mode, and what was not measured."""
    found = [line for panel in comparison.decisive for line in _found_in(panel)]
    found += _recommended(comparison)
    if not found:
        every = [row.found for panel in comparison.panels for row in panel.rows]
        reasons = dict.fromkeys(reason for reason in every if reason != REFERENCE)
        found.append(f"Nothing can be compared: {'; '.join(list(reasons)[:MOST_NAMED])}.")
    rows = [(f"{row.name} at {panel.place}", row) for panel in comparison.panels for row in panel.rows]
    absent = [name for name, row in rows if row.is_absent]
    failed = [name for name, row in rows if row.has_failed]
    if absent and any(row.repeats for _, row in rows):
        found.append(f"Not run: {in_short(absent)}.")
    if failed:
        found.append(f"Failed runs: {in_short(failed)}.")
    return tuple(found)


def _found_in(panel: Panel) -> Iterator[str]:
    words = {
        FASTER: f"faster than {REFERENCE_VARIANT}",
        SLOWER: f"slower than {REFERENCE_VARIANT}",
        NO_DIFFERENCE: "not beyond chance",
        WITHHELD: "no interval, as one repeat shows no scatter",
    }
    for found, text in words.items():
        named = [f"{row.name} {ratio_text(row.ratio)}" for row in panel.compared if row.found == found and row.ratio]
        if named:
            yield f"At {panel.place}, {text}: {in_short(named, MOST_NAMED)}."


def _recommended(comparison: Comparison) -> Iterator[str]:
    """Yield which variant to use at the largest scale of each mode, and at those where it is another one."""
    for largest in comparison.decisive:
        name, text = _recommendation(largest, comparison.wanted_headroom)
        yield text
        for panel in comparison.panels:
            if panel.mode == largest.mode and panel.compared:
                other, text = _recommendation(panel, comparison.wanted_headroom)
                if other != name:
                    yield text


def _recommendation(panel: Panel, wanted_headroom: float) -> tuple[str, str]:
    """Return the variant to use at a scale, and why; with one that needs less memory, if there is one.

    Only a variant that is faster than the default beyond chance is preferred to it. One repeat shows no chance: the
    fastest in one is preferred only where no variant has more, and otherwise only named, both with that doubt.
    """
    measured = {row: row.ratio.value if row.ratio else 1.0 for row in panel.rows if row.ratio or row.found == REFERENCE}
    best, why = next(row for row in measured if row.found == REFERENCE), "nothing is faster beyond chance"
    if all(row.found in (REFERENCE, WITHHELD) for row in measured):
        best, why = max(measured, key=lambda row: measured[row]), "the fastest in one repeat, which may be chance"
    elif faster := [row for row in measured if row.found == FASTER]:
        best, why = faster[0], "the fastest"
    once = [row.name for row in measured if row.found == WITHHELD and measured[row] > measured[best]]
    why += f"; in one repeat, which may be chance, {in_short(once)} was faster" if once else ""
    figures = f"{formats.significant(best.samples_per_s)} samples/s"
    if best.exposed_comm_fraction is not None:
        figures += f", {formats.share(best.exposed_comm_fraction)} of a step exposed communication"
    text = f"At {panel.place}, use {best.name} ({figures}): {why}"
    other, when = min(measured, key=lambda row: row.peak_memory_bytes or math.inf), "if memory is short"
    headroom = best.memory_headroom_fraction
    roomy = [row for row in measured if (row.memory_headroom_fraction or 0.0) >= wanted_headroom]
    if headroom is not None and headroom < wanted_headroom and roomy:
        text += f"; its headroom is {formats.share(headroom)}, less than the {formats.percent(wanted_headroom)} wanted"
        other = max(roomy, key=lambda row: measured[row])
        when = f"has {formats.share(other.memory_headroom_fraction)}"
    most_bytes, other_bytes = best.peak_memory_bytes or 0.0, other.peak_memory_bytes or math.inf
    if other_bytes < LESS_MEMORY * most_bytes:
        saved_gb, speed = (most_bytes - other_bytes) / 1e9, formats.percent(measured[other] / measured[best])
        text += f"; {other.name} {when} ({saved_gb:.2g} GB less per rank, {speed} of the speed)"
    return best.name, f"{text}."
