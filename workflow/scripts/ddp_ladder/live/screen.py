"""The picture of a ladder: tables for a terminal, which refreshes them until the ladder ends, or once for a pipe."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ddp_ladder.analysis.decisions import reference_series
from ddp_ladder.common.formats import UNKNOWN, count, duration, percent, shortened, significant, stage_name
from ddp_ladder.gates.figures import EFFICIENCY
from ddp_ladder.gates.gate import outcome_line
from ddp_ladder.live.status import MOST_NODES, ChainReader, ChainState, LadderState, Reader, RunState, ScaleState, busy
from ddp_ladder.nodes.sampler import of_gpus
from ddp_ladder.plan.plan import read_plan, unit_of
from ddp_ladder.production.chain import clock, hours_of
from ddp_ladder.run.progress import of_promised
from ddp_ladder.run.progress import state as steps_of
from ddp_ladder.slurm.jobs import reason_in_words

EVERY_S = 2.0
STALE_S = 15.0  # a node whose last sample is older is marked
QUIET_S = 20.0  # without a new step, the progress shows since when
MOST_NOTES = 6
MOST_LINKS = 5
LONGEST_CAUSE = 120  # characters
ENDS = {"running": "runs", "saved": "saved its state", "time limit": "its time was up", "complete": "complete"}
GOOD, BAD, BUSY, WAITS, PLAIN = "green", "bold red", "bold cyan", "yellow", ""


def show_once(results: Path) -> None:
    """Print one picture. Raises UserError without a plan."""
    read_plan(results / "plan.json")
    Console(highlight=False).print(reader(results)().picture)


def watch(results: Path) -> None:
    """Show the ladder on the terminal until it ends, or a signal ends the view; then leave the last picture there.

    Opened before a start, while runs are to be measured, the view waits for one.
    """
    read, console = reader(results), Console(highlight=False)
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    seen, was_at_work = read(), False
    try:
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while not seen.is_over or not (was_at_work or seen.ladder.is_measured):
                was_at_work = was_at_work or seen.is_at_work
                is_idle = seen.ladder.plan is None or seen.is_over
                waits = [Text("waits for a start of snakemake (Ctrl-C ends this view)", WAITS)] if is_idle else []
                live.update(Group(*waits, seen.picture), refresh=True)
                time.sleep(EVERY_S)
                seen = read()
    finally:
        console.print(seen.picture)


@dataclass(frozen=True)
class Seen:
    """A ladder and its production at one time."""

    ladder: LadderState
    chain: ChainState | None  # None: there is no production

    @property
    def is_at_work(self) -> bool:
        return self.ladder.is_at_work or (self.chain is not None and self.chain.state.is_at_work)

    @property
    def is_over(self) -> bool:
        return self.ladder.is_over and (self.chain is None or self.chain.state.is_over)

    @property
    def picture(self) -> RenderableType:
        """Return the pictures of both, production first: the ladder is over then."""
        if self.chain is None:
            return picture(self.ladder)
        return Group(chain_picture(self.chain), Text(), picture(self.ladder))


def reader(results: Path) -> Callable[[], Seen]:
    """Return what reads a ladder and its production, again and again."""
    ladder, chain = Reader(results), ChainReader(results)
    return lambda: Seen(ladder.read(), chain.read())


def chain_picture(seen: ChainState) -> RenderableType:
    """Return the tables of a chain: what goes on, what was used of what is planned, and the last links."""
    chain, state = seen.chain, seen.state
    clock_now = time.strftime("%H:%M:%S", time.localtime(state.now_s))
    number = seen.links[-1].number if seen.links else 0
    hours, end = hours_of(chain, seen.links, seen.scale.job), clock(seen.expected_end_s)
    rows = [("used", Text(hours))]
    if seen.links and seen.links[-1].end == "complete":
        rows.insert(0, ("training", Text("complete", GOOD)))
    else:
        rows += [("expected end", Text(end)), ("job", Text(*job_words(state, seen.scale)))]
    if seen.running is not None:
        rows.insert(0, (f"link {number}", Text(_rates(seen, seen.running))))
    parts: list[RenderableType] = [
        Text(f"{clock_now}  production at {chain.scale}: {seen.scale.job.runs[0].script}", "bold"),
        _grid("left", "left", rows=[(Text(label, "dim"), text) for label, text in rows]),
    ]
    if seen.links:
        parts += [Text(), _links(seen)]
    if seen.running is not None and seen.running.samples:
        parts += [Text(), _nodes(seen.running.samples, state.now_s)]
    notes = [*seen.state.problems]
    if seen.links and (slow := seen.links[-1].slow) is not None:
        notes.append(f"link {number}: slower than promised: {slow.slow[-1].why}")
    return Group(*parts, *_noted(notes))


def _rates(seen: ChainState, run: RunState) -> str:
    """Return ``step 656, 1,038 samples/s (93 % of the ladder's)``, with the mean of the last minute if it is known."""
    promised, progress = seen.chain.promised_samples_per_s, run.progress
    if progress is None:
        return steps_of(None, None)
    rate = seen.window.samples_per_s if seen.window is not None else None
    rate = progress.samples_per_s if rate is None else rate
    now = steps_of(progress.replace(samples_per_s=rate), None)
    since_s = seen.state.now_s - progress.updated_at_s
    quiet = f"; no news for {duration(since_s)}" if since_s > QUIET_S else ""
    return f"{now}{of_promised(rate, promised)}{quiet}"


def _links(seen: ChainState) -> Table:
    headings = ("link", "began", "steps", f"{unit_of(seen.scale.job.runs)} h", "end", "job")
    rows: list[tuple[RenderableType, ...]] = [tuple(Text(heading, "dim") for heading in headings)]
    for link in seen.links[-MOST_LINKS:]:
        steps = UNKNOWN if link.steps is None else f"{link.steps:,}"
        style = {"failed": BAD, "running": BUSY}.get(link.end, PLAIN)
        words = ENDS.get(link.end) or shortened(link.cause, LONGEST_CAUSE)
        slow = "; slower than promised" if link.slow is not None else ""
        cells = (str(link.number), clock(link.begun_at_s), steps, significant(link.hours))
        rows.append((*map(Text, cells), Text(f"{words}{slow}", style), Text(link.job_id)))
    return _grid("right", "left", "right", "right", "left", "left", rows=rows)


def picture(state: LadderState) -> RenderableType:
    """Return the tables of a ladder, the most important first: a small terminal cuts off the last ones."""
    if state.plan is None:
        why = next(iter(state.problems), "there is no plan yet; start the ladder, or name its --results")
        return Text(f"{state.results}: {why}")
    scripts = ", ".join(dict.fromkeys(spec.script for spec in state.plan.runs))
    clock = time.strftime("%H:%M:%S", time.localtime(state.now_s))
    headings = tuple(Text(heading, "dim") for heading in ("scale", "runs", "samples/s", "efficiency", ""))
    rows = [(*_figures(state, scale), Text(*job_words(state, scale))) for scale in state.scales]
    parts: list[RenderableType] = [
        Text(f"{clock}  ddp-ladder: {scripts} on {state.plan.site}", "bold"),
        Text(f"results   {state.results.absolute()}"),
        Text(f"start     {_start(state)}"),
        Text(),
        *(_gate(state, stage) for stage in state.plan.stages),
        *_noted([*notes_on(state)]),
        Text(),
        _grid("left", "right", "right", "right", "left", rows=[headings, *rows]),
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
    return Text(outcome_line(verdict), GOOD if verdict.is_open else BAD)


def _figures(state: LadderState, scale: ScaleState) -> tuple[str, str, str, str]:
    """Return name, runs and the figures of the first mode, of the variant that the report decides on."""
    points = next(iter(reference_series(state.points)), ())
    point = next((point for point in points if point.scale == scale.job.scale), None)
    rate = significant(point["samples_per_s"]) if point else ""
    efficiency = EFFICIENCY.shown(point) if point and point["efficiency"] else ""
    return scale.name, f"{len(scale.ended)}/{len(scale.runs)}", rate, efficiency


def job_words(state: LadderState, scale: ScaleState) -> tuple[str, str]:
    """Return the state of a scale's job, and its style."""
    if scale.is_done and scale.holder is None:
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
    if scale.holder is not None:
        process = scale.holder.process
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


def _noted(notes: Sequence[str]) -> list[Text]:
    lines = [Text.assemble(("! ", WAITS), note) for note in notes[:MOST_NOTES]]
    more = [Text(f"  and {count(left, 'more note')}", "dim")] if (left := len(notes) - len(lines)) else []
    return [Text(), *lines, *more] if lines else []


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
                yield f"{run.spec.name}: {failure.in_words}"
