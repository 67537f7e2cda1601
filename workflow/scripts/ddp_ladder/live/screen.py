"""The picture of a ladder: tables for a terminal, which refreshes them until the ladder ends, or once for a pipe."""

from __future__ import annotations

import itertools
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Literal, TypeVar

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ddp_ladder.analysis.decisions import reference_series
from ddp_ladder.common.files import ChangedFiles, RunDirectory, read_as
from ddp_ladder.common.formats import UNKNOWN, count, duration, percent, shortened, significant, stage_name
from ddp_ladder.gates.figures import EFFICIENCY
from ddp_ladder.gates.gate import Verdict, gate_files, outcome_line
from ddp_ladder.gates.points import ScalePoint
from ddp_ladder.gates.scaling import scale_points
from ddp_ladder.ledger.entries import HOUR_S
from ddp_ladder.nodes.sampler import last_sample, of_gpus
from ddp_ladder.plan.plan import Plan, RunSpec, ScaleJob, read_plan, unit_of
from ddp_ladder.plan.short_runs import place_of
from ddp_ladder.production.chain import (
    CHAIN_FILE,
    Chain,
    Link,
    chain_directory,
    clock,
    expected_end_s,
    hours_of,
    read_links,
)
from ddp_ladder.production.slower import TABLE, WindowRow, last_window
from ddp_ladder.records.raw_models import Job, Progress, RunFile, read_progress, read_run_file
from ddp_ladder.records.record import Record, read_record
from ddp_ladder.run.progress import expected_steps, of_promised
from ddp_ladder.run.progress import state as steps_of
from ddp_ladder.slurm.jobs import SUBMITTED, JobEnd, JobState, ask, job_end_file, read_job_end, reason_in_words
from ddp_ladder.slurm.lock import Held, Holder, Lock, living, look
from ddp_ladder.slurm.query import SlurmError

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
        elif scale.witness is not None:
            step = "starting" if scale.witness.progress is None else f"step {scale.witness.progress.step:,}"
            name = f"{scale.name} witness of {scale.witness.spec.variant}"
            parts += [Text(), Text(name, "bold"), Text(f"  {step}: each batch is followed, and nothing is timed")]
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


# --- What goes on in a ladder, or in a chain, at one time: one reader of its results and of squeue. It writes nothing.
#
# A file is read again only if it has changed, and a run whose record is there is not looked at again.


ASK_EVERY_S = 10.0
SILENT_EVERY_S = 60.0  # after a question to Slurm without an answer
ANSWER_WITHIN_S = 5.0  # the picture stands still while Slurm is asked
MOST_NODES = 32  # that are looked at each time, and at most shown

T = TypeVar("T")
RunPhase = Literal["to do", "interrupted", "started", "ended"]  # interrupted: its job no longer holds its scale


@dataclass(frozen=True)
class RunState:
    """One planned run."""

    spec: RunSpec
    phase: RunPhase = "to do"
    record: Record | None = None  # None while it is not known
    file: RunFile | None = None  # run.json of one that has begun and not ended: it has no record yet
    expected: int | None = None  # steps of one that goes on; None: unknown
    progress: Progress | None = None  # of one that goes on
    samples: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # the last ones, by node and column


@dataclass(frozen=True)
class ScaleState:
    """One scale."""

    job: ScaleJob
    runs: tuple[RunState, ...]
    end: JobEnd | None = None  # what is recorded of its Slurm job; None without one, and after a good end
    holder: Holder | None = None  # its job, while that lives
    witness: RunState | None = None  # a run that follows its batches, and goes on

    @property
    def name(self) -> str:
        return str(self.job.scale)

    @property
    def ended(self) -> tuple[RunState, ...]:
        return tuple(run for run in self.runs if run.phase == "ended")

    @property
    def is_done(self) -> bool:
        return len(self.ended) == len(self.runs)

    @property
    def slurm_id(self) -> str | None:
        """The Slurm job whose state is worth asking for; None if there is none, or its end is known."""
        if self.end is not None and self.end.state == SUBMITTED:
            return self.end.job_id
        return self.holder.slurm_id if self.holder is not None else None

    @property
    def bad_end(self) -> JobEnd | None:
        """The bad end of its job that is recorded, if nothing goes on."""
        known = self.end is not None and self.end.state != SUBMITTED
        return self.end if known and self.holder is None and not self.is_done else None

    @property
    def running(self) -> RunState | None:
        """The run that its job executes now."""
        return next((run for run in self.runs if run.phase == "started"), None) if self.holder is not None else None


@dataclass(frozen=True)
class LadderState:
    """A results directory at one time."""

    results: Path
    now_s: float  # unix time
    plan: Plan | None = None
    start: Held | None = None  # the start of Snakemake that is at work, or was the last one
    scales: tuple[ScaleState, ...] = ()
    gates: Mapping[str, Verdict] = field(default_factory=dict)  # by stage
    points: tuple[ScalePoint, ...] = ()
    jobs: Mapping[str, JobState] = field(default_factory=dict)  # Slurm's last answer, by id
    problems: tuple[str, ...] = ()  # what cannot be read, and why Slurm does not answer

    def job_of(self, scale: ScaleState) -> JobState | None:
        """Return what Slurm says of a scale's job."""
        return None if scale.slurm_id is None else self.jobs.get(scale.slurm_id)

    @property
    def is_at_work(self) -> bool:
        """Return True while a start, or a job that one has left, goes on as far as can be seen."""
        queued = any((job := self.job_of(scale)) and job.phase != "ended" for scale in self.scales)
        return bool(self.start and self.start.is_alive) or queued or any(scale.holder for scale in self.scales)

    @property
    def is_measured(self) -> bool:
        return self.plan is not None and all(scale.is_done for scale in self.scales)

    @property
    def is_over(self) -> bool:
        """Return True if nothing goes on; that is unknown until Slurm has answered on every job."""
        is_known = all(scale.slurm_id is None or scale.slurm_id in self.jobs for scale in self.scales)
        return self.plan is not None and is_known and not self.is_at_work


class Reader:
    """The reader of one results directory. ``read`` may be called at any rate."""

    def __init__(self, results: Path) -> None:
        self._results = results
        self._files = ChangedFiles()
        self._silence = ""  # why Slurm does not answer
        self._plan: Plan | None = None
        self._settled: dict[str, RunState] = {}  # runs whose records are there, by name
        self._points: tuple[list[int], tuple[ScalePoint, ...]] = ([], ())
        self._samples: dict[str, tuple[Job, dict[str, Mapping[str, float]]]] = {}  # by node, of each run that goes on
        self._turn = 0  # the next node to be looked at, where there are many
        self._jobs: dict[str, JobState] = {}
        self._ask_at_s = 0.0

    def read(self) -> LadderState:
        plan = self._files.read(self._results / "plan.json", read_plan)
        if plan is not self._plan:
            self._plan, self._settled = plan, {}
        scales = tuple(map(self._scale, plan.jobs if plan else ()))
        records = [run.record for scale in scales for run in scale.runs if run.record]
        scales = tuple(self._followed(scale, records) for scale in scales)
        self._ask_slurm({scale.slurm_id for scale in scales if scale.slurm_id is not None})
        return LadderState(
            self._results,
            time.time(),
            plan,
            look(Lock.of_start(self._results)),
            scales,
            self._gates(scales),
            self._scale_points(scales, records),
            self._jobs,
            (*self._files.problems.values(), *filter(None, [self._silence])),
        )

    def _scale(self, job: ScaleJob) -> ScaleState:
        scale = str(job.scale)
        holder = living(Lock.of_scale(self._results, scale, ""))
        runs = [self._run(spec, holder) for spec in job.runs]
        further = [run for spec in job.more if (run := self._run(spec, holder)).phase != "to do"]
        end = self._files.read(job_end_file(self._results, scale), lambda _: read_job_end(self._results, scale))
        return ScaleState(job, (*runs, *further), end, holder, self._witness(job, holder))

    def _witness(self, job: ScaleJob, holder: Holder | None) -> RunState | None:
        """Return the run that follows its batches and goes on in the job that holds this scale."""
        if job.witness is None or holder is None:
            return None
        for path in self._results.glob(f"{place_of('*')}/runs/*/*/{job.scale}/r*/run.json"):
            directory = RunDirectory(path.parent)
            run = self._files.read(path, lambda file: read_run_file(RunDirectory(file.parent)))
            if run is not None and run.job.id == holder.job_id and not directory.ended.exists():
                progress = self._files.read(directory.progress, read_progress)
                return RunState(run.spec, "started", file=run, expected=run.spec.max_steps, progress=progress)
        return None

    def _run(self, spec: RunSpec, holder: Holder | None) -> RunState:
        if spec.name in self._settled and holder is None:  # a job may measure it again
            return self._settled[spec.name]
        directory = self._directory(spec)
        record = self._files.read(directory.record, read_record)
        if record is not None and record.spec_hash == spec.hash:
            self._settled[spec.name] = RunState(spec, "ended", record)
            return self._settled[spec.name]
        run = self._files.read(directory.run, lambda _: read_run_file(directory))
        if run is None or run.spec_hash != spec.hash:
            return RunState(spec)
        if directory.ended.exists():
            return RunState(spec, "ended", self._files.read(directory.assembled, read_record))  # until its job ends
        is_own = holder is not None and holder.job_id == run.job.id
        return RunState(spec, "started" if is_own else "interrupted", file=run)

    def _followed(self, scale: ScaleState, records: Collection[Record]) -> ScaleState:
        """Return a scale with the progress of the run that goes on. records: show how many steps it will make."""
        run = scale.running
        if run is None or run.file is None:
            return scale
        directory = self._directory(run.spec)
        self._look_at_nodes(run.file, directory)
        progress = self._files.read(directory.progress, read_progress)
        expected = expected_steps(run.spec, records)
        followed = replace(run, progress=progress, expected=expected, samples=self._samples[run.spec.name][1])
        return replace(scale, runs=tuple(followed if other is run else other for other in scale.runs))

    def _look_at_nodes(self, run: RunFile, directory: RunDirectory) -> None:
        """Read the last samples of a run's nodes: of many the least busy ones, and of the rest some more each time."""
        job, known = self._samples.get(run.spec.name, (run.job, {}))
        known = known if job == run.job else {}
        self._samples[run.spec.name] = run.job, known
        nodes = {node: k for k, node in enumerate(run.nodes)}
        looked_at = list(nodes)
        if len(nodes) > MOST_NODES:
            least = sorted(known, key=lambda node: busy(known[node]))[: MOST_NODES // 2]
            looked_at = [*least, *itertools.islice(itertools.cycle(nodes), self._turn, self._turn + MOST_NODES // 2)]
            self._turn = (self._turn + MOST_NODES // 2) % len(nodes)
        for node in dict.fromkeys(looked_at):
            if sample := self._files.read(directory.samples(nodes[node]), last_sample):
                known[node] = sample

    def _gates(self, scales: Collection[ScaleState]) -> dict[str, Verdict]:
        """Return the gates of stages whose runs have all ended; others are of earlier runs."""
        gates = {}
        for stage in self._plan.stages if self._plan else ():
            if all(scale.is_done for scale in scales if scale.job.stage == stage):
                for file in gate_files(self._results / "gates", stage):
                    if verdict := self._files.read(file, partial(read_as, Verdict)):
                        gates[stage] = verdict
        return gates

    def _scale_points(self, scales: Collection[ScaleState], records: Collection[Record]) -> tuple[ScalePoint, ...]:
        """Return the points of the scaling, made again when there is another record."""
        known = [id(record) for record in records]
        if self._plan is not None and self._points[0] != known:
            by_name = {record.spec.name: record for record in records}
            specs = [run.spec for scale in scales for run in scale.runs]
            self._points = known, scale_points(specs, by_name, self._plan.may_differ, self._plan.gates)
        return self._points[1]

    def _ask_slurm(self, job_ids: Collection[str]) -> None:
        """Ask for all jobs at once, by their ids, so that they may be anyone's."""
        if job_ids and monotonic() < self._ask_at_s:
            return
        self._silence = ""
        self._ask_at_s = monotonic() + ASK_EVERY_S
        try:
            self._jobs = ask(job_ids, ANSWER_WITHIN_S)
        except SlurmError as error:
            self._ask_at_s += SILENT_EVERY_S - ASK_EVERY_S
            why = " ".join(str(error).split())
            self._silence = f"Slurm does not answer ({why}); asked again in {SILENT_EVERY_S:.0f} s"

    def _directory(self, spec: RunSpec) -> RunDirectory:
        return RunDirectory(self._results / "runs" / spec.name)


def busy(sample: Mapping[str, float]) -> float:
    """Return how busy a node's GPUs are, or without any its CPUs."""
    gpus = of_gpus(sample, "busy_fraction")
    return sum(gpus) / len(gpus) if gpus else sample.get("cpu_fraction", 0.0)


# --- What goes on in a chain of production at one time: its directory, as a ladder of one scale, and its links.


@dataclass(frozen=True)
class ChainState:
    """A chain at one time."""

    chain: Chain
    state: LadderState  # of its directory: the one scale, its job and the run that goes on
    links: tuple[Link, ...]
    window: WindowRow | None  # the last one of the link that goes on

    @property
    def scale(self) -> ScaleState:
        return self.state.scales[0]

    @property
    def running(self) -> RunState | None:
        return self.scale.running

    @property
    def expected_end_s(self) -> float | None:
        """Return when the training will be complete (unix time); None if that is not known."""
        batch = self.scale.job.runs[0].global_batch
        return expected_end_s(self.chain, self.links, self.state.now_s, batch)


class ChainReader:
    """The reader of the chain in a ladder's results. ``read`` may be called at any rate."""

    def __init__(self, results: Path) -> None:
        self._directory = chain_directory(results)
        self._reader, self._files = Reader(self._directory), ChangedFiles()

    def read(self) -> ChainState | None:
        """Read what may have changed; return None without a chain."""
        chain = self._files.read(self._directory / CHAIN_FILE, partial(read_as, Chain))
        state = self._reader.read() if chain is not None else None
        if chain is None or state is None or state.plan is None:
            return None
        holder = state.scales[0].holder
        links = read_links(self._directory, state.plan, state.now_s, holder.job_id if holder else None)
        links = tuple(self._with_now(link, state) for link in links)
        window = self._files.read(self._directory / TABLE, last_window)
        is_current = window is not None and links and links[-1].end == "running" and window.link == links[-1].number
        return ChainState(chain, state, links, window if is_current else None)

    @staticmethod
    def _with_now(link: Link, state: LadderState) -> Link:
        """Return a link with what has changed since: the hours and the steps of the one that goes on."""
        if link.end != "running":
            return link
        scale = state.scales[0]
        hours = max(0.0, state.now_s - link.begun_at_s) / HOUR_S * link.gpus
        progress = scale.running.progress if scale.running else None
        return link.replace(hours=hours, steps=progress.step if progress else 0)
