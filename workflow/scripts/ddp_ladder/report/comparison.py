"""Comparisons of throughputs, of variants with the default in pairs of runs and of ladders over time; their tables.

A scale's job runs all variants of a repeat after each other, on the same nodes. What slows down both runs of such a
pair, such as a hot node or other jobs, cancels in their ratio: the interval is Student's t on the logarithms of the
pairs' ratios.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ddp_ladder.common import formats
from ddp_ladder.common.formats import UNKNOWN, in_short, significant, text_table
from ddp_ladder.common.messages import columns, fitted
from ddp_ladder.gates.figures import EFFICIENCY, EXPOSED_COMM, HEADROOM, PEAK_MEMORY, SAMPLES_PER_S, STEP_TIME, Column
from ddp_ladder.gates.interval import Estimate, LogMean, student_t
from ddp_ladder.gates.points import Good, Key, RepeatGroup, ScalePoint, groups_of
from ddp_ladder.gates.scaling import failure_note, point_of, why_not_run
from ddp_ladder.measuring.fingerprint import UNREAD, distinct_words, must_match, unlike
from ddp_ladder.measuring.statistic import COVERAGE, median
from ddp_ladder.plan.plan import Plan
from ddp_ladder.records.record import Record
from ddp_ladder.report.document import LONGEST, Block, Cell, Content, csv_text, in_words, plain, table_block
from ddp_ladder.settings.terms import REFERENCE_VARIANT, Scale

REFERENCE, FASTER, SLOWER, NO_DIFFERENCE = "reference", "faster", "slower", "not beyond chance"
WITHHELD = "withheld: one repeat"
NOT_RUN = "not run"
MOST_NAMED = 3
LESS_MEMORY = 0.95  # of the recommended variant's: what is worth naming
SETTINGS = (
    "launcher", "backend", "interface", "env_template", "python", "modules", "setup", "container", "cpus_per_node",
    "max_steps", "max_seconds",
)  # fmt: skip
"""Fields of a spec, beside those of the fingerprint, that may explain another speed."""
HOW_TO_READ = (
    "Ratios are of throughput, variant / default, of runs of the same repeat, in one job on the same nodes unless a "
    "note says otherwise; their geometric mean, with a 95 % interval (Student's t over the pairs). The chance of any "
    "wrong “faster” or “slower” at a mode and scale is at most 5 % (Holm): of many intervals, some miss 1 by chance, "
    "and “not beyond chance” does not say that both are equally fast."
)


def paired(rates: Sequence[float], reference: Sequence[float]) -> Estimate:
    """Return the ratio of throughputs, the runs of one repeat at the same place of both. They are positive."""
    log = LogMean.of([rate / base for rate, base in zip(rates, reference, strict=True)])
    return Estimate.of(math.exp(log.mean), log)


def chance(ratio: Estimate) -> float | None:
    """Return the probability of a ratio as far from 1, if it is 1 in truth; None: a single pair shows no scatter."""
    if ratio.log is None or ratio.log.shown is None:
        return None
    mean, shown = abs(ratio.log.mean), ratio.log.shown
    if not shown.value:
        return 0.0 if mean else 1.0
    return 1 - student_t(mean / math.sqrt(shown.value), shown.freedom)


def beyond_chance(ratios: Sequence[Estimate | None]) -> tuple[bool, ...]:
    """Return for each ratio of a family whether it differs from 1 by more than chance explains, by Holm's procedure.

    Of 20 intervals of 95 %, one misses 1 by chance. Holm compares the smallest p with 5 % / 20, the next one with
    5 % / 19, and so on, up to the first that is above: the chance of any wrong verdict among them is then at most 5 %.
    """
    known = [(p, place) for place, ratio in enumerate(ratios) if ratio and (p := chance(ratio)) is not None]
    beyond = [False] * len(ratios)
    for number, (p, place) in enumerate(sorted(known)):
        if p >= (1 - COVERAGE) / (len(known) - number):
            break
        beyond[place] = True
    return tuple(beyond)


@dataclass(frozen=True)
class Compared:
    """A variant at one mode and scale, against the default."""

    name: str
    verdict: str = ""  # in words, or why there is no ratio
    repeats: int = 0  # pairs, or good runs if there is no ratio
    has_failed: bool = False  # a repeat, or all
    is_absent: bool = False  # no run of it was made, and none was left out on purpose
    point: ScalePoint | None = field(default=None, hash=False)  # its figures; None without a good run
    reference_samples_per_s: float | None = None
    ratio: Estimate | None = None
    unlike: tuple[str, ...] = ()  # settings of the variant that differ, and what else may explain another speed
    notes: tuple[str, ...] = ()

    def __getitem__(self, key: Key) -> float | None:
        return self.point[key] if self.point else None

    @property
    def batch(self) -> str:
        """Return ``64 of 128``: per GPU, and of all."""
        return f"{self.point.batch_per_gpu} of {self.point.global_batch}" if self.point else ""

    def shown(self, column: Column) -> str:
        return column.shown(self.point) if self.point else formats.UNKNOWN


@dataclass(frozen=True)
class ComparedScale:
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
        return tuple(row for row in self.rows if row.ratio)


Comparison = Sequence[ComparedScale]  # in the order of the plan


def decisive(comparison: Comparison) -> tuple[ComparedScale, ...]:
    """Return the largest scale with ratios of each mode."""
    with_ratios = [panel for panel in comparison if panel.compared]
    by_size = sorted(with_ratios, key=lambda panel: (panel.scale.world_size, panel.scale.nodes))
    largest = {panel.mode: panel for panel in by_size}
    return tuple(panel for panel in comparison if panel in largest.values())


def _judged_together(rows: Sequence[Compared]) -> tuple[Compared, ...]:
    """Return the rows of a scale with their verdicts, the fastest first."""
    beyond = beyond_chance([row.ratio for row in rows])
    pairs = zip(rows, beyond, strict=True)
    judged = [replace(row, verdict=verdict(row.ratio, b)) if row.ratio else row for row, b in pairs]
    judged.sort(key=lambda row: row.ratio.value if row.ratio else float(row.verdict == REFERENCE), reverse=True)
    return tuple(judged)


def verdict(ratio: Estimate, is_beyond_chance: bool) -> str:
    """Return the verdict on a ratio in words."""
    if chance(ratio) is None:
        return WITHHELD
    return NO_DIFFERENCE if not is_beyond_chance else FASTER if ratio.value > 1 else SLOWER


def compare_variants(plan: Plan, records: Mapping[str, Record]) -> Comparison:
    """Return every variant of a plan beside the default. records: by ``RunSpec.name``."""
    runs = [run for run in plan.runs if not run.is_plain]
    groups = groups_of(runs, records, plan.may_differ, plan.gates, lambda group: group.first.mode)
    panels = []
    for mode, scale in dict.fromkeys((mode, scale) for mode, _, scale in groups):
        own = [group for group in groups.values() if (group.first.mode, group.first.scale) == (mode, scale)]
        rows = [_compared(group, groups.get((mode, REFERENCE_VARIANT, scale))) for group in own]
        panels.append(ComparedScale(mode, scale, _judged_together(rows)))
    return panels


def _measured(group: RepeatGroup) -> Compared:
    """Return a row with the figures of a group, and why some or all of its runs have none; without a ratio."""
    row = Compared(group.first.variant, repeats=len(group.good), has_failed=bool(group.failed))
    if group.failed:
        row = replace(row, notes=(failure_note(group),))
    if not group.good:
        failed = ", ".join(dict.fromkeys(run.failure.verdict for run in group.failed if run.failure))
        left_out = f"{NOT_RUN}: {why_not_run(group)}" if group.left_out else NOT_RUN
        words = f"failed: {failed}" if group.failed else left_out
        return replace(row, verdict=words, is_absent=not (group.failed or group.left_out))
    return replace(row, point=point_of(group))


def _compared(group: RepeatGroup, reference: RepeatGroup | None) -> Compared:
    """Return a row with its ratio to the default, or why there is none."""
    row = _measured(group)
    if row.verdict or group is reference:
        return replace(row, verdict=row.verdict or REFERENCE)
    if reference is None or not reference.good:
        return replace(row, verdict=f"{REFERENCE_VARIANT} {_measured(reference).verdict if reference else NOT_RUN}")
    pairs = _pairs(group, reference)
    if not pairs:
        return replace(row, verdict=f"no repeat of both this and {REFERENCE_VARIANT} succeeded")
    own, base = ([run.samples_per_s(group.statistic) for run in side] for side in zip(*pairs, strict=True))
    return replace(
        row,
        repeats=len(pairs),
        ratio=paired(own, base),
        reference_samples_per_s=median(base),
        unlike=_unlike(pairs[0][1].record, pairs[0][0].record),
        notes=(*row.notes, *_notes(pairs, group)),
    )


def _pairs(group: RepeatGroup, reference: RepeatGroup) -> list[tuple[Good, Good]]:
    others = {run.record.spec.repeat: run for run in reference.good}
    return [(run, others[repeat]) for run in group.good if (repeat := run.record.spec.repeat) in others]


def _notes(pairs: Sequence[tuple[Good, Good]], group: RepeatGroup) -> Iterator[str]:
    if len(pairs) < len(group.specs):
        yield f"{len(pairs)} of {len(group.specs)} repeats are pairs"
    if apart := [f"r{own.record.spec.repeat}" for own, base in pairs if _where(own) != _where(base)]:
        yield f"not in one job on the same nodes ({', '.join(apart)}): the ratio contains what these differ in"


def _where(run: Good) -> tuple[str | None, frozenset[str]]:
    job = run.record.job
    return (job.id if job else None), frozenset(run.record.world.hosts)


def _unlike(reference: Record, record: Record) -> tuple[str, ...]:
    """Return the fields of the fingerprint, settings and nodes that differ: ``batch_per_gpu 128 (reference: 64)``."""
    settings = [(name, getattr(reference.spec, name), getattr(record.spec, name)) for name in SETTINGS]
    fields = [*unlike(reference, record, must_match(reference.spec.mode)), *(s for s in settings if s[1] != s[2])]
    words = [(name, *distinct_words(name, base, own)) for name, base, own in fields]
    base_hosts, hosts = (sorted(set(side.world.hosts)) for side in (reference, record))
    if base_hosts != hosts:
        words.append(("nodes", in_short(base_hosts, 3), in_short(hosts, 3)))
    return tuple(f"{name} {own} (reference: {base})" for name, base, own in words)


def ratio_text(ratio: Estimate) -> str:
    """Return ``1.120 times [1.08-1.16]``."""
    return f"{number(ratio.value)} times {interval_text(ratio)}".rstrip()


def interval_text(ratio: Estimate) -> str:
    """Return ``[1.08-1.16]``; empty if it is withheld."""
    if ratio.low is None or ratio.high is None:
        return ""
    return formats.interval(number(ratio.low), number(ratio.high))


def number(value: float) -> str:
    """Return a ratio near 1 with three decimals, as 1 % matters there; a large or small one with three digits."""
    return f"{value:.3f}" if 0.1 <= value < 9.9995 else formats.significant(value)


def sentences(comparison: Comparison) -> tuple[str, ...]:
    """Return what was found at the largest compared scale of each mode, and what was not measured."""
    lines = [line for panel in decisive(comparison) for line in _found_in(panel)]
    lines += _recommended(comparison)
    rows = [(f"{row.name} at {panel.place}", row) for panel in comparison for row in panel.rows]
    if not lines:
        reasons = dict.fromkeys(row.verdict for _, row in rows if row.verdict != REFERENCE)
        lines.append(f"Nothing can be compared: {'; '.join([*reasons][:MOST_NAMED])}.")
    absent = [name for name, row in rows if row.is_absent]
    failed = [name for name, row in rows if row.has_failed]
    if absent and any(row.repeats for _, row in rows):
        lines.append(f"Not run: {in_short(absent)}.")
    if failed:
        lines.append(f"Failed runs: {in_short(failed)}.")
    return tuple(lines)


def _found_in(panel: ComparedScale) -> Iterator[str]:
    words = {
        FASTER: f"faster than {REFERENCE_VARIANT}",
        SLOWER: f"slower than {REFERENCE_VARIANT}",
        NO_DIFFERENCE: "not beyond chance",
        WITHHELD: "no interval, as one repeat shows no scatter",
    }
    for kind, text in words.items():
        if named := [f"{r.name} {ratio_text(r.ratio)}" for r in panel.compared if r.verdict == kind and r.ratio]:
            yield f"At {panel.place}, {text}: {in_short(named, MOST_NAMED)}."


def _recommended(comparison: Comparison) -> Iterator[str]:
    """Yield which variant to use at the largest scale of each mode, and at those where it is another one."""
    for largest in decisive(comparison):
        name, text = _recommendation(largest)
        yield text
        for panel in comparison:
            if panel.mode == largest.mode and panel.compared:
                other, text = _recommendation(panel)
                if other != name:
                    yield text


def _recommendation(panel: ComparedScale) -> tuple[str, str]:
    """Return the variant to use at a scale, and why; with one that needs less memory, if there is one.

    Only a variant that is faster than the default beyond chance is preferred to it. One repeat shows no chance: the
    fastest in one is preferred only where no variant has more, and otherwise only named, both with that doubt.
    """
    measured = {
        row: row.ratio.value if row.ratio else 1.0 for row in panel.rows if row.ratio or row.verdict == REFERENCE
    }
    best, why = next(row for row in measured if row.verdict == REFERENCE), "nothing is faster beyond chance"
    if all(row.verdict in (REFERENCE, WITHHELD) for row in measured):
        best, why = max(measured, key=lambda row: measured[row]), "the fastest in one repeat, which may be chance"
    elif faster := [row for row in measured if row.verdict == FASTER]:
        best, why = faster[0], "the fastest"
    once = [row.name for row in measured if row.verdict == WITHHELD and measured[row] > measured[best]]
    why += f"; in one repeat, which may be chance, {in_short(once)} was faster" if once else ""
    figures = f"{best.shown(SAMPLES_PER_S)} samples/s"
    if best["exposed_comm_fraction"] is not None:
        figures += f", {best.shown(EXPOSED_COMM)} of a step exposed communication"
    text = f"At {panel.place}, use {best.name} ({figures}): {why}"
    other = min(measured, key=lambda row: row["peak_memory_bytes"] or math.inf)
    most_bytes, other_bytes = best["peak_memory_bytes"] or 0.0, other["peak_memory_bytes"] or math.inf
    if other_bytes < LESS_MEMORY * most_bytes:
        saved_gb, speed = (most_bytes - other_bytes) / 1e9, formats.percent(measured[other] / measured[best])
        text += f"; {other.name} if memory is short ({saved_gb:.2g} GB less per rank, {speed} of the speed)"
    return best.name, f"{text}."


# --- The same workload at several times and places: the figures of each scale, and what changed in between.


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
    ratio: Estimate | None = None  # of the throughputs; None: there is none before, or the training differs
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


def in_order(ladders: Sequence[Ladder]) -> list[Ladder]:
    """Return the ladders by their dates; those without one last, as they were given."""
    return sorted(ladders, key=lambda ladder: (not ladder.on, ladder.on))


def history(ladders: Sequence[Ladder]) -> Iterator[Entry]:
    """Yield the entries of each mode and scale; ladders: in the order of their dates (see ``in_order``)."""
    sizes = {(point.mode, str(point.scale)): point.world_size for ladder in ladders for point in ladder.measured}
    for mode, scale in sorted(sizes, key=lambda key: (key[0] != "weak", sizes[key], key[1])):
        before: tuple[Ladder, ScalePoint] | None = None
        for ladder in ladders:
            if point := ladder.of(mode, scale):
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


def _ratio(point: ScalePoint, before: ScalePoint) -> Estimate | None:
    """Return the ratio of two throughputs of different jobs, which differ also without a change."""
    if point.rate is None or before.rate is None:
        return None
    ratio = point.rate.over(before.rate)
    low, high = ratio.log.interval_of_any_job(ratio.value) if ratio.log else (None, None)
    return replace(ratio, low=low, high=high)


# --- The section of the page, comparison.csv and the terminal's text.


HEADINGS = (
    "scale", "variant", "ratio", "95 % interval", "samples/s", "batch", "step (ms)", "MB", "headroom", "comm.", "found",
    "notes",
)  # fmt: skip
TERMINAL = ("scale", "variant", "ratio", "95 % interval", "MB", "comm.", "found")  # headroom: 80 columns are too few
RIGHT = ("ratio", "samples/s", "batch", "step (ms)", "MB", "headroom", "comm.")
OF_HISTORY = ("scale", "measured", "site", "samples/s", "efficiency", "ratio", "verdict", "changed")
HOW_TO_READ_HISTORY = (
    "Each ladder is compared with the one before it that measured the scale. The ratio is that of the samples/s; its "
    "95 % interval\nholds what separate jobs usually differ by; if it holds 1, there is no change beyond chance."
)
STYLES = {FASTER: "ok", SLOWER: "failed"}


def comparison_blocks(comparison: Comparison) -> Iterator[Block]:
    """Yield the comparison as a section of a document."""
    yield Block(" ".join(sentences(comparison)))
    rows = [(panel.place, *_cells(row)) for panel in comparison for row in panel.rows]
    yield table_block("Variants at each scale", HEADINGS, rows, "comparisons", "comparison")
    yield Block(items=(HOW_TO_READ,), style="notes")


def _cells(row: Compared) -> tuple[Content, ...]:
    return (
        row.name,
        number(row.ratio.value) if row.ratio else "1" if row.verdict == REFERENCE else formats.UNKNOWN,
        interval_text(row.ratio) if row.ratio else "",
        row.shown(SAMPLES_PER_S),
        row.batch,
        *map(row.shown, (STEP_TIME, PEAK_MEMORY, HEADROOM, EXPOSED_COMM)),
        Cell(row.verdict, style=STYLES.get(row.verdict, "")),
        "; ".join(notes_of(row)),
    )


def notes_of(row: Compared) -> tuple[str, ...]:
    """Return in what a row is not alike, its notes, and else what the terminal has no room for."""
    notes = dict.fromkeys((f"differs in {'; '.join(row.unlike)}" if row.unlike else "", *row.notes))
    is_cut = row.ratio is None and _short(row) != row.verdict and not row.notes
    return tuple(filter(None, (*notes, row.verdict * is_cut)))


def _short(row: Compared) -> str:
    return row.verdict.partition(":")[0]


# --- The table as a file.


def comparison_csv(comparison: Comparison) -> str:
    """Return comparison.csv: a row for each variant at each mode and scale."""
    return csv_text(_csv_row(panel, row) for panel in comparison for row in panel.rows)


def _csv_row(panel: ComparedScale, row: Compared) -> dict[str, object]:
    ratio = row.ratio
    return {
        "mode": panel.mode,
        "nodes": panel.scale.nodes,
        "gpus_per_node": panel.scale.gpus_per_node,
        "variant": row.name,
        "found": row.verdict,
        "ratio": ratio and ratio.value,
        "ratio_low": ratio and ratio.low,
        "ratio_high": ratio and ratio.high,
        "repeats": row.repeats,
        "samples_per_s": row["samples_per_s"],
        "reference_samples_per_s": row.reference_samples_per_s,
        "batch": row.batch,
        **{
            column.key: row.point and column.value(row.point)
            for column in (STEP_TIME, PEAK_MEMORY, HEADROOM, EXPOSED_COMM)
        },
        "notes": "; ".join(notes_of(row)),
    }


# --- The terminal.


def terminal_text(comparison: Comparison, file: Path) -> str:
    """Return what the command prints, without a final newline. file: the one that it has written."""
    lines = [fitted(sentence, columns(), then="") for sentence in sentences(comparison)]
    rows = [(panel.place, *_texts(row)) for panel in comparison for row in panel.rows]
    lines += ["", *formats.text_table(TERMINAL, rows, RIGHT)]
    every = (row for panel in comparison for row in panel.rows)
    notes = dict.fromkeys(f"{row.name}: {note}" for row in every for note in notes_of(row))
    lines += [fitted(note, columns(), first="  ") for note in notes]
    lines += ["", fitted(HOW_TO_READ, columns(), then=""), "", f"written  {file}"]
    return plain("\n".join(lines))


def _texts(row: Compared) -> Iterator[str]:
    _, ratio, interval, _, _, _, memory, _, exposed, _, _ = _cells(row)
    yield from map(in_words, (formats.shortened(row.name, LONGEST, "…"), ratio, interval, memory, exposed, _short(row)))


# --- The history of a workload: a table for the terminal, and history.csv.


def history_text(entries: Sequence[Entry]) -> str:
    """Return the table, and how to read it."""
    rows = [*map(_of_ladder, entries)]
    return "\n".join([*text_table(OF_HISTORY, rows, OF_HISTORY[3:5], "changed"), "", HOW_TO_READ_HISTORY])


def _of_ladder(entry: Entry) -> tuple[str, ...]:
    point, ratio = entry.point, entry.ratio
    return (
        f"{point.scale} {point.mode}",
        entry.ladder.on or "not known",
        entry.ladder.site,
        f"{SAMPLES_PER_S.shown(point)} ({significant(entry.per_gpu)} per GPU)",
        EFFICIENCY.shown(point),
        f"{number(ratio.value)} {interval_text(ratio)}".rstrip() if ratio else UNKNOWN,
        entry.verdict.partition(":")[0],
        "; ".join(f"{name}: {then} → {now}" for name, then, now in entry.changed),
    )


def history_csv(entries: Sequence[Entry]) -> str:
    """Return history.csv: a row for each mode, scale and ladder."""
    return csv_text(_history_rows(entries))


def _history_rows(entries: Sequence[Entry]) -> Iterator[dict[str, object]]:
    for entry in entries:
        point, ratio = entry.point, entry.ratio
        yield {
            "mode": point.mode,
            "scale": str(point.scale),
            "ladder": entry.ladder.name,
            "measured": entry.ladder.on,
            "site": entry.ladder.site,
            "repeats": point.repeats,
            "samples_per_s": point["samples_per_s"],
            "samples_per_s_low": point.rate and point.rate.low,
            "samples_per_s_high": point.rate and point.rate.high,
            "samples_per_s_per_gpu": entry.per_gpu,
            "efficiency": point["efficiency"],
            "ratio": ratio and ratio.value,
            "ratio_low": ratio and ratio.low,
            "ratio_high": ratio and ratio.high,
            "verdict": entry.verdict,
            "found": entry.found,
            "changed": "; ".join(f"{name}: {then} -> {now}" for name, then, now in entry.changed),
        }
