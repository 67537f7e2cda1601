"""The picture of a ladder: tables for a terminal, which refreshes them until the ladder ends, or once for a pipe."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ddp_ladder.analysis.decisions import reference_series
from ddp_ladder.common.formats import count, duration, percent, significant, stage_name
from ddp_ladder.gates.figures import EFFICIENCY
from ddp_ladder.gates.verdict import outcome_line
from ddp_ladder.live.status import MOST_NODES, LadderState, Reader, RunState, ScaleState, busy
from ddp_ladder.nodes.last_sample import of_gpus
from ddp_ladder.plan.plan import read_plan
from ddp_ladder.records.record import placed
from ddp_ladder.run.progress import state as steps_of
from ddp_ladder.slurm.jobs import reason_in_words

EVERY_S = 2.0
STALE_S = 15.0  # a node whose last sample is older is marked
QUIET_S = 20.0  # without a new step, the progress shows since when
MOST_NOTES = 6
GOOD, BAD, BUSY, WAITS, PLAIN = "green", "bold red", "bold cyan", "yellow", ""


def show_once(results: Path) -> None:
    """Print one picture. Raises UserError without a plan."""
    read_plan(results / "plan.json")
    Console(highlight=False).print(picture(Reader(results).read()))


def watch(results: Path) -> None:
    """Show the ladder on the terminal until it ends, or a signal ends the view; then leave the last picture there.

    Opened before a start, while runs are to be measured, the view waits for one.
    """
    reader, console = Reader(results), Console(highlight=False)
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    state, was_at_work = reader.read(), False
    try:
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while not state.is_over or not (was_at_work or state.is_measured):
                was_at_work = was_at_work or state.is_at_work
                is_idle = state.plan is None or state.is_over
                waits = [Text("waits for a start of snakemake (Ctrl-C ends this view)", WAITS)] if is_idle else []
                live.update(Group(*waits, picture(state)), refresh=True)
                time.sleep(EVERY_S)
                state = reader.read()
    finally:
        console.print(picture(state))


def picture(state: LadderState) -> RenderableType:
    """Return the tables of a ladder, the most important first: a small terminal cuts off the last ones."""
    if state.plan is None:
        why = next(iter(state.problems), "there is no plan yet; start the ladder, or name its --results")
        return Text(f"{state.results}: {why}")
    scripts = ", ".join(dict.fromkeys(spec.script for spec in state.plan.runs))
    clock = time.strftime("%H:%M:%S", time.localtime(state.now_s))
    parts: list[RenderableType] = [
        Text(f"{clock}  ddp-ladder: {scripts} on {state.plan.site}", "bold"),
        Text(f"results   {state.results.absolute()}"),
        Text(f"start     {_start(state)}"),
        Text(),
        *(_gate(state, stage) for stage in state.plan.stages),
        Text(),
        *_notes(state),
        _scales(state),
    ]
    for scale in state.scales:
        if scale.running is not None:
            parts += [Text(), *_run(state, scale, scale.running)]
    report = state.results.absolute() / "report/index.html"
    if not state.is_at_work and report.exists():
        parts.append(Text(f"report: {report}"))
    return Group(*parts)


def _grid(*columns: str, rows: Iterable[tuple[RenderableType, ...]]) -> Table:
    """Return a table without lines. columns: of each its justification; the last one is folded where it must be."""
    table = Table.grid(padding=(0, 2, 0, 0))
    for justify in columns:
        table.add_column(justify=justify, overflow="fold")  # type: ignore[arg-type]
    for row in rows:
        table.add_row(*row)
    return table


def _start(state: LadderState) -> str:
    """Return who climbs since when, or which start was the last."""
    if state.start is None:
        return "none at work"
    holder = state.start.holder
    who = f"process {holder.process.pid} on {holder.process.host}, of {holder.user}, since {holder.since}"
    if state.start.is_alive:
        return who
    if holder.ended:
        return f"none at work; the last one: {who}"
    return f"killed: {who}; the next one goes on from what it has left"


def _gate(state: LadderState, stage: str) -> Text:
    verdict = state.gates.get(stage)
    if verdict is None:
        return Text(f"gate {stage}: not judged yet")
    words = "; ".join(filter(None, (outcome_line(verdict), verdict.judged_earlier(state.points))))
    return Text(words, GOOD if verdict.is_open else BAD)


def _scales(state: LadderState) -> Table:
    headings = [Text(heading, "dim") for heading in ("scale", "runs", "samples/s", "efficiency", "")]
    rows = [(*_figures(state, scale), Text(*job_words(state, scale))) for scale in state.scales]
    return _grid("left", "right", "right", "right", "left", rows=[tuple(headings), *rows])


def _figures(state: LadderState, scale: ScaleState) -> tuple[str, str, str, str]:
    """Return name, runs and the figures of the first mode, of the variant that the report decides on."""
    points = next(iter(reference_series(state.points)), ())
    point = next((point for point in points if point.scale == scale.job.scale), None)
    rate = significant(point.samples_per_s) if point else ""
    efficiency = EFFICIENCY.shown(point) if point and point.efficiency else ""
    return scale.name, f"{len(scale.ended)}/{len(scale.runs)}", rate, efficiency


def job_words(state: LadderState, scale: ScaleState) -> tuple[str, str]:
    """Return the state of a scale's job, and its style."""
    if scale.is_done and not scale.is_held:
        runs = [run for run in scale.runs if not run.spec.is_plain]  # many scripts need a launcher
        failed = sum(run.record is not None and run.record.failure is not None for run in runs)
        return (f"{count(failed, 'run')} failed", BAD) if failed else ("finished", GOOD)
    if scale.bad_end is not None:
        return scale.bad_end.in_words, BAD
    job = state.job_of(scale)
    if job is not None and job.phase == "waiting":
        at = f"; expected to start {job.start.replace('T', ' ')}" if job.start else ""
        why = f": {reason_in_words(job.reason, scale.slurm_id or '')}" if job.reason else ""
        return f"job {scale.slurm_id} waits{why}{at}", WAITS
    if job is not None and job.phase == "running":
        since = f" since {job.start.partition('T')[2]}, for" if job.start else ""
        return f"job {scale.slurm_id} runs{since} at most {scale.job.runtime_min} min on {job.nodes}", BUSY
    if scale.held is not None and scale.is_held:
        process = scale.held.holder.process
        return f"runs: process {process.pid} on {process.host}", BUSY
    if scale.slurm_id is not None:
        return f"job {scale.slurm_id} {job.state if job else 'was submitted; its state is unknown'}", WAITS
    interrupted = [run.spec.name for run in scale.runs if run.phase == "interrupted"]
    return (f"interrupted in {interrupted[0]}" if interrupted else "to come" if state.is_at_work else "not run"), PLAIN


def _run(state: LadderState, scale: ScaleState, run: RunState) -> Iterator[RenderableType]:
    """Yield the progress of the run that a scale's job executes, and what its nodes do now."""
    name = f"{scale.name} {run.spec.variant}/{run.spec.mode}/r{run.spec.repeat}"
    cells: list[RenderableType] = [Text(f"{name}  run {scale.runs.index(run) + 1} of {len(scale.runs)}", "bold")]
    if run.progress and run.expected and run.expected >= run.progress.step:
        cells.append(ProgressBar(run.expected, run.progress.step, width=30))
    yield _grid(*("left" for _ in cells), rows=[tuple(cells)])
    since_s = state.now_s - (run.progress.updated_at_s if run.progress else state.now_s)
    quiet = f"; no news for {duration(since_s)}" if since_s > QUIET_S else ""
    yield Text(f"  {steps_of(run.progress, run.expected)}{quiet}")
    if run.samples:
        yield _nodes(run.samples, state.now_s)


def _nodes(samples: Mapping[str, Mapping[str, float]], now_s: float) -> Table:
    """Return a row for each node, of many for some; those that do least come first."""
    headings = ("  node", "CPU", "busiest", "GPU", "GPU mem", "power", "seen")
    rows = [tuple(Text(heading, "dim") for heading in headings)]
    shown = sorted(samples, key=lambda node: busy(samples[node]))[:MOST_NODES]
    for node in shown:
        sample = samples[node]
        age_s = max(0.0, now_s - sample["time_s"])
        cells = (
            f"  {node}",
            *(percent(sample[name]) if name in sample else "" for name in ("cpu_fraction", "cpu_busiest_fraction")),
            percent(busy(sample)) if of_gpus(sample, "busy_fraction") else "",
            f"{max(memory) / 1e9:.1f} GB" if (memory := of_gpus(sample, "memory_used_bytes")) else "",
            f"{sum(power):.0f} W" if (power := of_gpus(sample, "power_w")) else "",
        )
        seen = Text(f"{duration(age_s)} ago", WAITS if age_s > STALE_S else "dim")
        rows.append((*map(Text, cells), seen))
    if more := len(samples) - len(shown):
        rows.append((Text(f"  and {count(more, 'busier node')}", "dim"), *(Text() for _ in headings[1:])))
    return _grid("left", *("right" for _ in headings[1:]), rows=rows)


def _notes(state: LadderState) -> list[Text]:
    notes = list(notes_on(state))
    lines = [Text.assemble(("! ", WAITS), note) for note in notes[:MOST_NOTES]]
    if len(notes) > MOST_NOTES:
        lines.append(Text(f"  and {count(len(notes) - MOST_NOTES, 'more note')}", "dim"))
    return [*lines, Text()] if lines else []


def notes_on(state: LadderState) -> Iterator[str]:
    """Yield what cannot be seen, what to do at a closed gate or after a job's bad end, and the runs that failed."""
    yield from state.problems
    for stage, gate in state.gates.items():
        if not gate.is_open and gate.next:
            yield f"{stage_name(stage)}, next: {gate.next}"
    for scale in state.scales:
        if scale.bad_end is not None:
            yield f"{scale.name}, next: {scale.bad_end.next}"
        for run in scale.runs:
            failure = None if run.record is None or run.record.job is None else run.record.failure
            if failure is not None and not run.spec.is_plain:
                yield f"{run.spec.name}: {placed(failure.verdict, failure.place, failure.why)}: {failure.why}"
