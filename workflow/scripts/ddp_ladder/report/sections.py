"""The sections of the report below its first screen, for the page and for the Markdown. Pure.

A section is a function here, with one line in ``sections``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from ddp_ladder.analysis.prediction import error_rows, forecast_line, planned_forecasts
from ddp_ladder.common.formats import UNKNOWN, capitalised, count, full_stop, in_short, seconds, share, stage_name
from ddp_ladder.gates.attribution import Attribution, attribution, baseline_of
from ddp_ladder.gates.figures import Column, Table, columns, figures_in
from ddp_ladder.gates.points import Key, ScalePoint, findings_across_scales
from ddp_ladder.ledger import jobs as accounting
from ddp_ladder.measuring.owners import OWNERS
from ddp_ladder.plan.short_runs import HEADINGS, Fit
from ddp_ladder.preflight.result import bandwidth, latency, pairs_tested
from ddp_ladder.records.record import Record
from ddp_ladder.report.comparison import comparison_blocks
from ddp_ladder.report.document import Block, Cell, Content, Section, csv_text, table_block
from ddp_ladder.report.hours import checks
from ddp_ladder.report.view import INTERVALS, ReportView, gate_rows, scale_notes
from ddp_ladder.settings.terms import ONE_GPU, REFERENCE_VARIANT

MOST_NOTES = 24
MOST_OPEN = 2  # tables of variants; with more of them all but the first of each mode are closed
MOST_HOSTS = 3  # of a run in the page
MOST_RUNS = 500  # in the table of the page
FORECASTS = (
    "A forecast is written when the gate below opens, before its scale is measured. Its interval is meant to hold nine "
    "of ten outcomes, so one in ten lies outside; from a single measured scale there is only an upper bound. "
    "benchmarks/results/prediction.md says how it is made, and how well it held for published tables."
)
STARTUP = (
    "Start-up: until the end of the first step, on the slowest rank; not part of the throughput. Checkpoints: saves of "
    "the whole run. Medians over repeats; all columns are defined below."
)
WHERE_USED: tuple[tuple[Key, ...], ...] = (
    ("startup_compile_s",),
    ("saves", "saves_s", "saved_bytes", "saving_fraction"),
)
"""Columns of that table that are left out if the first of them is 0 at every scale."""
SECONDS = (
    "Of one run of each scale, the repeat with the median wall time, on its slowest rank. Every second has one owner, "
    "and the owners add up to the wall time. What the others do while one rank validates or saves alone is validation "
    "or saving, too. Steps are split like the mean measured step in “Where the time goes”."
)
MEASURED = (
    "Each run trains with the unmodified script; step times, waits and samples are recorded on every rank. The first "
    "steps are left out as warm-up: at least measure.warmup_steps (unless set, 20 with device cuda and 10 with cpu), "
    "and until the step times are steady. The rest is cut into blocks; the time of a block is that of its slowest "
    "rank. Medians over blocks and repeats are shown, never the best run. If slow steps recur, which a median over "
    "blocks hides, samples / time over all blocks is shown. Intervals are of 95 %: Student's t on the logarithms of "
    "the repeats' figures, Welch's for ratios; a single repeat has that of its blocks. A job makes all its "
    "runs on the same nodes, with variants and repeats interleaved."
)
PREFLIGHT = (
    "The last test of each scale's nodes, their network and its all-reduces, before its runs or alone. The bus "
    "bandwidth is that of the best size between 4 KiB and 256 MiB, as nccl-tests defines it; the latency is that of a "
    "fit over all sizes. “Where the time goes” uses the bandwidth of this fit, which leaves the latency out."
)


def sections(view: ReportView, usage: Sequence[Block], extra: Iterable[Section] = ()) -> tuple[Section, ...]:
    """Return the sections in order; those without content are left out. extra: before the gates."""
    every = (
        Section("Scales", tuple(_scales(view))),
        Section("Variants", tuple(comparison_blocks(view.comparison)) if view.comparison else ()),
        Section("Batch per GPU", tuple(_fit(view.results.fit)) if view.results.fit else ()),
        Section("Where the time goes", tuple(_time(view))),
        Section("Where every second went", tuple(_owners(view))),
        Section("Cost", tuple(_costs(view))),
        Section("Prediction", tuple(_prediction(view))),
        *extra,
        Section("Gates in detail", tuple(_gates(view))),
        Section("Preflight", tuple(_preflight(view))),
        Section("Start-up and checkpoints", tuple(_startup(view))),
        Section("What the runs used", tuple(_usage(view, usage))),
        Section("What was measured on", tuple(_measured(view))),
        Section("Runs", tuple(_runs(view))),
        Section("Definitions", (_definitions(),)),
        Section("How the figures were measured", (Block(MEASURED),)),
    )
    return tuple(section for section in every if section.blocks)


# --- Tables of figures.


def figures_table(
    points: Sequence[ScalePoint],
    view: ReportView,
    table: Table,
    *,
    name: str,
    style: str = "",
    shown: Sequence[Column] = (),
    names: Sequence[Cell] = (),
    cells_after: Sequence[tuple[str, Sequence[Content]]] = (),
) -> Block:
    """Return a table with a row for each point, and a column for each figure of which a value is known.

    shown: the columns, if not all of the table. names: of the rows, if not the shortest ones. cells_after: heading and
    cells of further columns.
    """
    every = shown or columns(table)
    known = [column for column in every if any(column.value(point) is not None for point in points)]
    names = names or [Cell(_name(point, view)) for point in points]
    rows = [
        (
            replace(names[number], value=number),
            *(_figure(column, point, table) for column in known),
            *(cells[number] for _, cells in cells_after),
        )
        for number, point in enumerate(points)
    ]
    headings = [Cell("scale"), *(_heading(column, view) for column in known), *(Cell(name) for name, _ in cells_after)]
    return table_block(name, headings, rows, "scales", f"figures {style}")


def _name(point: ScalePoint, view: ReportView) -> str:
    return f"{point.scale} plain" if point.is_plain else view.place(point)


def _heading(column: Column, view: ReportView) -> Cell:
    unit = f"({column.unit})" if column.unit else ""
    return Cell(view.of_device(column.heading), small=(unit,), style=f"n {column.key}")


def _figure(column: Column, point: ScalePoint, table: Table) -> Cell:
    return Cell(
        column.shown(point), small=column.beside(point, table), value=column.value(point), style=f"n {column.key}"
    )


# --- The scales.


def _scales(view: ReportView) -> Iterator[Block]:
    seen: set[str] = set()
    several = len({point.variant for point in view.rungs}) > MOST_OPEN
    for title, points in view.tables.items():
        yield _table(title, points, view, is_closed=several and points[0].mode in seen)
        seen.add(points[0].mode)
    notes: list[Content] = [Cell(note, lead=where) for where, note in scale_notes(view.rungs, view.several_series)]
    if view.anything_measured:
        first = view.plan.first_scale
        launched = f"{first} under the launcher, a process group of one,"
        base = launched if first == ONE_GPU else f"{first}, where the ladder starts,"
        text = f"Speed-up and efficiency are against {base} of the same mode and variant"
        if any(point["efficiency_plain"] is not None for point in view.points):
            text += "; “vs plain” is against the script alone, with no launcher and no DDP"
        notes.append(f"{text}.")
    notes += dict.fromkeys(point.witness_in_words for point in view.rungs if point.witness)
    notes += [f"TFLOP/s is not given, as FLOPs were not counted: {why}." for why in view.not_counted]
    device = "" if view.unit == "GPU" else "this site has no GPU, so each “GPU” of a scale is one CPU process; "
    notes.append(f"Small figures in brackets are {INTERVALS}; {device}all columns are defined below.")
    yield Block(items=tuple(notes), style="notes")


def _table(title: str, points: Sequence[ScalePoint], view: ReportView, *, is_closed: bool) -> Block:
    statuses = [Cell(point.status, style=point.status.replace(" ", "-")) for point in points]
    after = (("status", statuses), ("gate", [_judged(point, view) for point in points]))
    stages = ["plain, no DDP" if point.is_plain else stage_name(point.stage) for point in points]
    names = [Cell(str(point.scale), small=(stage,)) for point, stage in zip(points, stages, strict=True)]
    block = figures_table(points, view, "page", name=title, style="scales", names=names, cells_after=after)
    return replace(block, heading=title * (not is_closed), summary=title * is_closed)


def _judged(point: ScalePoint, view: ReportView) -> Content:
    gate = view.results.gates.get(point.stage)
    if gate is None or point.is_plain:
        return UNKNOWN
    doubt = "uncertain" if gate.uncertain(point.variant) else ""
    return Cell(gate.verdict_of(point), small=(doubt,), style=gate.verdict_of(point))


def _fit(fit: Fit) -> Iterator[Block]:
    yield Block(f"What {fit.scale} does with each batch that was tried.")
    yield Block(name="Batches that were tried", headings=HEADINGS, rows=tuple(trial.cells for trial in fit.trials))
    yield Block(f"{fit.rule}.")


# --- Where the time goes.


def explained(view: ReportView) -> list[tuple[ScalePoint, Attribution]]:
    """Return where the efficiency of each scale went, the largest scale of each mode first."""

    def lost_at(point: ScalePoint) -> Attribution | None:
        preflight = view.results.preflights.get(str(point.scale))
        return attribution(point, baseline_of(point, view.points), preflight, view.plan.job(point.scale).transport)

    every = [(point, lost) for point in view.rungs if point["rest_s"] is not None and (lost := lost_at(point))]
    by_size = sorted(every, key=lambda pair: pair[0].world_size)
    largest = {point.mode: (point, lost) for point, lost in by_size if point.variant == REFERENCE_VARIANT}
    return [*largest.values(), *(pair for pair in every if pair not in largest.values())]


def _time(view: ReportView) -> Iterator[Block]:
    points = [point for point in view.rungs if point["rest_s"] is not None]
    if not points:
        return
    yield Block(
        "Parts of each step, which add up to it. 100 % is the ideal step: the time of "
        f"{view.plan.first_scale} for as many samples per rank; what is above it is lost.",
        picture="attribution",
    )
    yield figures_table(points, view, "attribution", name="Parts of a step at each scale", style="attribution")
    every = explained(view)
    modes = len({point.mode for point, _ in every if point.variant == REFERENCE_VARIANT})
    for number, (point, lost) in enumerate(every):
        title = f"{view.place(point)}: {lost.lost_in_words}"
        items: list[Content] = [
            Cell(full_stop(loss.evidence), lead=capitalised(loss.in_words)) if loss.evidence else loss.in_words
            for loss in lost.listed
        ]
        items += [f"Not known: {full_stop(lost.unknown)}"] if lost.unknown else []
        items += [Cell(f"{change.what}: {change.gain_in_words}.", lead="Next") for change in lost.changes]
        is_open = number < modes
        yield Block(heading=title * is_open, summary=title * (not is_open), items=tuple(items), style="notes")


def _owners(view: ReportView) -> Iterator[Block]:
    """Yield the owners of a run's seconds at each scale, with their shares of the wall time, and what they are."""
    points = [point for own in view.tables.values() for point in own if point.owners_s]
    if not points:
        return
    known = {name for point in points for name, _ in point.owners_s}
    shown = [name for name in OWNERS if name in known]
    rows = []
    for number, point in enumerate(points):
        owners_s = dict(point.owners_s)
        wall_s = sum(owners_s.values())
        cells = [_seconds(owners_s.get(owner), wall_s) for owner in shown]
        rows.append((Cell(_name(point, view), value=number), *cells, _seconds(wall_s, None)))
    headings = [Cell("scale"), *(Cell(name, small=("(s)",), style="n") for name in (*shown, "wall time"))]
    yield table_block("Owners of the seconds at each scale", headings, rows, "scales", "figures owners")
    yield Block(SECONDS)
    yield Block(items=tuple(Cell(full_stop(OWNERS[name]), lead=capitalised(name)) for name in shown), style="notes")


def _seconds(owned_s: float | None, wall_s: float | None) -> Cell:
    beside = (share(owned_s / wall_s),) if owned_s is not None and wall_s else ()
    return Cell(seconds(owned_s), small=beside, value=owned_s, style="n")


# --- Cost, prediction, gates, preflight, start-up.


def _costs(view: ReportView) -> Iterator[Block]:
    points = [point for point in view.rungs if point["samples_per_s"] is not None]
    modes = dict.fromkeys(point.mode for point in points)
    for mode in modes:
        name = f"Cost, {mode} scaling" if len(modes) > 1 else "Cost"
        yield figures_table([point for point in points if point.mode == mode], view, "cost", name=name)
    asked = [decision.recommended for decision in view.decisions if decision.recommended]
    if lines := [line for point in asked for line in checks(point, view)]:
        yield Block(items=tuple(lines), style="notes")


def _prediction(view: ReportView) -> Iterator[Block]:
    """Yield the forecasts of the planned scales, beside what was measured if it has been."""
    forecasts = list(planned_forecasts(view.results.directory, view.plan))
    measured = {(str(point.scale), point.variant, point.mode) for point in view.points if point["samples_per_s"]}
    lines = tuple(
        full_stop(forecast_line(job, forecast, view.plan.hour_unit))
        for job, forecast in forecasts
        if (forecast.scale, forecast.variant, forecast.mode) not in measured
    )
    if lines:
        yield Block(items=lines, style="notes")
    if rows := error_rows(forecasts, view.points):
        name = "Forecasts and what was measured"
        yield Block(name=name, headings=("scale", "forecast", "measured since"), rows=tuple(rows), style="whole")
    if forecasts:
        yield Block(FORECASTS)


def _gates(view: ReportView) -> Iterator[Block]:
    rows: list[tuple[Content, ...]] = []
    for stage in view.plan.stages:
        gate, name = view.results.gates.get(stage), stage_name(stage)
        if gate is None:
            rows.append((name, Cell("not judged", style="waiting"), "", "", "", ""))
            continue
        verdict = Cell(gate.verdict, style=gate.verdict)
        shown = gate_rows(gate, view.several_series)
        for item, place in shown:
            measured = Cell(item.measured, style="ok" if item.ok else "failed")
            rows.append((name, verdict, place, measured, item.wanted, item.next or ""))
        why = f": {gate.why}" if gate.why and not shown else ""
        sane = f"{count(gate.sane_runs, 'run')} passed every sanity check{why}"
        rows.append((name, verdict, "", sane, "", ""))
    yield table_block("Gates", ("stage", "gate", "scale", "measured", "wanted", "next"), rows, "findings", "gates")


def _preflight(view: ReportView) -> Iterator[Block]:
    rows = tuple(
        (
            result.scale,
            result.status,
            bandwidth(result),
            latency(result),
            ", ".join(result.transport) or result.backend,
            pairs_tested(result),
            "; ".join(finding.in_words for finding in result.findings) or "nothing",
        )
        for result in view.results.preflights.values()
    )
    if rows:
        headings = ("scale", "preflight", "bus bandwidth", "latency", "network", "pairs of nodes tested", "found")
        yield Block(name="Preflight of each scale", headings=headings, rows=rows, style="whole")
        yield Block(PREFLIGHT)
    if bad := tuple((bad.node, bad.scale, bad.job, bad.at, bad.in_words) for bad in view.results.bad_nodes):
        named = ("node", "scale", "job", "at", "found")
        yield Block(name="Bad nodes, for the support desk", headings=named, rows=bad, style="whole")


def _startup(view: ReportView) -> Iterator[Block]:
    points = [point for own in view.tables.values() for point in own if point["startup_s"] is not None]
    if points:
        hidden = {key for keys in WHERE_USED for key in keys if not any(point[keys[0]] for point in points)}
        shown = [column for column in columns("startup") if column.key not in hidden]
        named = [replace(column, heading="total") if column.key == "startup_s" else column for column in shown]
        name = "Start-up and saves at each scale"
        yield figures_table(points, view, "startup", name=name, style="startup", shown=named)
        yield Block(STARTUP)


# --- What the runs used, and on what.


def _usage(view: ReportView, usage: Sequence[Block]) -> Iterator[Block]:
    points = [point for point in view.points if any(column.of(point) for column in columns("usage"))]
    if points:
        yield figures_table(points, view, "usage", name="What each scale used", style="used")
    rows = tuple(
        (
            ", ".join(map(view.place, where)),
            *(full_stop(capitalised(text)) for text in (finding.in_words, finding.next)),
        )
        for finding, where in findings_across_scales(view.points)
    )
    if rows:
        yield Block(name="Findings", headings=("scales", "found", "next"), rows=rows, style="whole")
    yield from usage
    if notes := _notes(view.runs):
        yield Block(items=notes, style="notes")
    if view.results.jobs:
        table = f"{view.results.directory}/accounting.csv"
        text = f"{accounting.totals(view.results.jobs, view.plan.hour_unit)}. Each job is in {table}."
        advice = accounting.advice(view.plan, view.results.jobs)
        yield Block(heading="Jobs", items=(text, *advice), style="notes")


def _notes(runs: Sequence[Record]) -> tuple[str, ...]:
    """Return what could not be sampled, each with the first run that has it."""
    first: dict[str, str] = {}
    for run in runs:
        for note in run.usage.notes if run.usage else ():
            first.setdefault(note, run.spec.name)
    return tuple(f"{note} ({name})" for note, name in [*first.items()][:MOST_NOTES])


def _measured(view: ReportView) -> Iterator[Block]:
    if not view.measured:
        return
    batch = f" (batch: per {view.unit} in weak, global in strong mode)" * view.several_series
    words = f"Fields marked = must be equal at both scales before an efficiency is given{batch}"
    if view.plan.may_differ:
        words += "; fields marked “may differ” are listed in fingerprint.may_differ in the configuration"
    yield Block(f"{words}.")
    yield Block(name="Fields and values", headings=("field", "must match", "value"), rows=view.measured, style="fields")
    if view.machine_rows:
        headings = ("nodes", "what they are, as they described themselves in the last job of each scale")
        yield Block(name="The machine", headings=headings, rows=view.machine_rows, style="whole")


def _runs(view: ReportView) -> Iterator[Block]:
    words, numbered = (
        "The figures of each are in runs.csv, everything else in its record.json.",
        [*enumerate(view.runs)],
    )
    if len(numbered) > MOST_RUNS:  # a page of 10,000 runs would have more megabytes than a browser likes
        first = {number for number, _ in sorted(numbered, key=lambda each: each[1].failure is None)[:MOST_RUNS]}
        numbered = [each for each in numbered if each[0] in first]
        words += f" The table has {MOST_RUNS} of them: those that failed, and of the others the first ones."
    yield Block(f"{view.results.counts}. {words}")
    if not numbered:
        return
    shown = [column for column in columns("runs") if column.of_run]
    rows = [_run(run, number, shown, view) for number, run in numbered]
    headings: list[Content] = ["run", "job", Cell("hosts", style="hosts")]
    headings += [*(_heading(column, view) for column in shown), "status"]
    yield table_block("Runs", headings, rows, "runs", "figures runs")


def _run(run: Record, number: int, shown: Sequence[Column], view: ReportView) -> tuple[Content, ...]:
    attempt = f", attempt {run.job.attempt}" if run.job and run.job.attempt > 1 else ""
    values = [(column, column.of_run(run)) for column in shown if column.of_run]
    return (
        Cell(run.spec.name, value=number, links=view.links_of(run)),
        f"{run.job.id}{attempt}" if run.job else UNKNOWN,
        Cell(in_short(run.world.hosts, MOST_HOSTS) or UNKNOWN, style="hosts"),
        *(Cell(column.text(value), value=value, style=f"n {column.key}") for column, value in values),
        Cell(run.status if run.job else "not run", style=run.status if run.job else "not-run"),
    )


def runs_csv(runs: Sequence[Record]) -> str:
    """Return runs.csv: one row for each run with a record."""
    figures = {column.key: column.of_run for column in columns("runs") if column.of_run}
    rows = [
        {
            "run": run.spec.name,
            "status": run.status if run.job else "not run",
            "job": run.job and run.job.id,
            "attempt": run.job and run.job.attempt,
            "hosts": " ".join(run.world.hosts),
            **{key: of_run(run) for key, of_run in figures.items()},
        }
        for run in runs
    ]
    return csv_text(rows, ["run", "status", "job", "attempt", "hosts", *figures])


def _definitions() -> Block:
    rows = tuple((figure.name, figure.unit, figure.definition) for figure in figures_in("csv", "runs"))
    return Block(name="Definitions", headings=("figure", "unit", "definition"), rows=rows, style="definitions")
