"""The picture of a ladder as text: tables for a terminal of any size, and lines of changes for a pipe. Pure."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from ddp_ladder.common.formats import DASH, NARROW_SPACE, count, duration, percent, significant, stage_name
from ddp_ladder.gates.figures import EFFICIENCY
from ddp_ladder.gates.points import ScalePoint
from ddp_ladder.gates.verdict import SANITY, Verdict, outcome_line
from ddp_ladder.live.status import GPU_FIGURES, LadderState, NodeSample, RunState, ScaleState
from ddp_ladder.records.record import placed
from ddp_ladder.run.progress import BAR, LINE_EVERY_FRACTION, REST, outcome
from ddp_ladder.run.progress import state as steps_of
from ddp_ladder.settings.terms import REFERENCE_VARIANT
from ddp_ladder.slurm.jobs import ENDED_WELL, reason_in_words

STALE_S = 15.0  # a node whose last sample is older is marked
QUIET_S = 20.0  # without a new step, the progress shows since when
LINE_EVERY_S = 30.0  # of the progress of a run in a pipe; rarer in a long one
NODES, NODES_FOLDED = 16, 4  # of a run that are shown, those that do least
NOTES, NOTES_FOLDED = 8, 3
GOOD, BAD, BUSY, WAITS, PLAIN = "green", "bold red", "bold cyan", "yellow", ""
ASCII = str.maketrans({BAR: "#", REST: ".", DASH: "-", NARROW_SPACE: " ", "\u2026": ".", "\u00b5": "u"})
FOOTER = "q ends this view; the ladder goes on"


def screen_of(state: LadderState, width: int, height: int | None = None, footer: str = "") -> list[Text]:
    """Return the lines of a ladder whose plan is there, none wider than ``width``.

    height: where there is little room, what has ended or is to come is folded, and the rest cut off. None: no limit.
    """
    console = Console(width=width, highlight=False, emoji=False)
    last = [Text(footer, "dim")[:width]] if footer else []
    lines: list[Text] = []
    for folded in (False, True):
        rendered = console.render_lines(Group(*_parts(state, width, folded)), pad=False)
        lines = [Text.assemble(*((part.text, part.style or "") for part in line)) for line in rendered]
        if height is None or len(lines) + len(last) <= height:
            break
    lines = [*lines[: None if height is None else max(0, height - len(last))], *last]
    for line in lines:
        line.rstrip()
    return lines


def plain(text: str) -> str:
    """Return a text for a terminal whose encoding lacks more than ASCII."""
    return text.translate(ASCII).encode("ascii", "replace").decode()


def _parts(state: LadderState, width: int, folded: bool) -> Iterator[RenderableType]:
    assert state.plan is not None
    gap = [] if folded else [Text()]
    scripts = ", ".join(dict.fromkeys(spec.script for spec in state.plan.runs))
    head = Table.grid(expand=True, padding=(0, 1))
    head.add_column(no_wrap=True, ratio=1, style="bold")
    head.add_column(no_wrap=True)
    clock = time.strftime("%H:%M:%S", time.localtime(state.now_s))
    head.add_row(f"ddp-ladder: {scripts} on {state.plan.site}", clock)
    yield head
    yield Text(f"results  {state.results.absolute()}", no_wrap=True, overflow="ellipsis")
    yield Text(f"start    {start_words(state)}", no_wrap=True, overflow="ellipsis")
    yield from gap
    yield _stages(state, folded)
    yield from gap
    yield _scales(state, folded)
    for scale in state.scales:
        if scale.running is not None:
            yield from gap
            yield from _run(state, scale, scale.running, width, NODES_FOLDED if folded else NODES)
    notes = [*notes_on(state)]
    if notes:
        yield from gap
        yield _notes(notes, NOTES_FOLDED if folded else NOTES, folded)
    if state.has_report:
        yield Text(report_words(state))


def _grid(*columns: str, padding: int = 2) -> Table:
    """Return a table without lines. columns: of each its justification."""
    table = Table.grid(padding=(0, padding, 0, 0))
    for justify in columns:
        table.add_column(justify=justify, no_wrap=True)  # type: ignore[arg-type]
    return table


def _cell(text: str, style: str, folded: bool) -> Text:
    """Return the text at the end of a row, in one line if it has to be."""
    return Text(text, style, no_wrap=folded, overflow="ellipsis" if folded else "fold")


def _stages(state: LadderState, folded: bool) -> Table:
    table = _grid("left", "left")
    table.add_column()
    for stage in state.plan.stages if state.plan else ():
        word, style, text = _stage(state, stage)
        table.add_row(stage_name(stage), Text(word, style), _cell(text, "", folded))
    return table


def _stage(state: LadderState, stage: str) -> tuple[str, str, str]:
    verdict = state.gates.get(stage)
    if verdict is None:
        gate = state.plan.gates.get(stage) if state.plan else None
        wanted = ["good runs"]
        if gate is not None and gate.min_efficiency is not None:
            wanted.append(f"efficiency at least {percent(gate.min_efficiency)}")
        if gate is not None and gate.min_samples_per_s is not None:
            wanted.append(f"at least {significant(gate.min_samples_per_s)} samples/s")
        return "not yet", PLAIN, f"wanted: {', '.join(wanted)}"
    if verdict.is_open:
        return "open", GOOD, _measured(verdict)
    return (
        "CLOSED",
        BAD,
        _without_key(f"{verdict.why}; wanted {verdict.wanted}" if verdict.wanted else verdict.why or ""),
    )


def _measured(verdict: Verdict) -> str:
    """Return the threshold that the largest scale has passed, or how many runs were good."""
    judged = [item for item in verdict.judged if item.check in ("efficiency", "throughput") and item.ok]
    own = [item for item in judged if item.variant == REFERENCE_VARIANT]
    if own:
        return _without_key(f"{own[-1].scale} {own[-1].measured}, wanted {own[-1].wanted}")
    return count(sum(item.check == SANITY for item in verdict.judged), "good run")


def _without_key(text: str) -> str:
    """Return a text without the keys of config.yaml and the intervals: they are in the report."""
    return re.sub(r" \((?:95 % interval|stages\.)[^)]*\)", "", text)


def _scales(state: LadderState, folded: bool) -> Table:
    rows = [(scale, *job_words(state, scale)) for scale in state.scales]
    finished = [row[0] for row in rows if row[2] == GOOD] if folded else []
    later = [row[0] for row in rows if row[2] == PLAIN][1:] if folded else []  # the first one is shown, with the reason
    known = any(_figures(state, scale)[2] for scale in state.scales)
    headings = ("scale", "runs", *(("samples/s", "efficiency") if known else ()))
    table = _grid("left", *("right" for _ in headings[1:]))
    table.add_column()
    table.add_row(*(Text(heading, "dim") for heading in headings))
    if finished:
        table.add_row(*_figures(state, finished[-1])[: len(headings)], Text(_folded(finished, "finished"), GOOD))
    for scale, text, style in rows:
        if scale not in (*finished, *later):
            table.add_row(*_figures(state, scale)[: len(headings)], _cell(text, style, folded))
    if later:
        table.add_row(*("" for _ in headings), _folded(later, "to come"))
    return table


def _folded(scales: Sequence[ScaleState], word: str) -> str:
    names = f"{scales[0].name} to {scales[-1].name}" if len(scales) > 1 else scales[-1].name
    return f"{count(len(scales), 'scale')} {word}: {names}"


def _figures(state: LadderState, scale: ScaleState) -> tuple[str, str, str, str]:
    """Return name, runs and the figures of the reference variant, or else of the first, in the first mode."""
    points = [point for point in state.points if point.scale == scale.job.scale and point.samples_per_s]
    reference = [point for point in points if point.variant == REFERENCE_VARIANT]
    point: ScalePoint | None = next(iter(reference or points), None)
    rate = significant(point.samples_per_s) if point and point.samples_per_s else ""
    efficiency = EFFICIENCY.shown(point) if point and point.efficiency else ""
    return scale.name, f"{len(scale.ended)}/{len(scale.runs)}", rate, efficiency


def _run(state: LadderState, scale: ScaleState, run: RunState, width: int, nodes: int) -> Iterator[RenderableType]:
    """Yield the progress of the run that a scale's job executes, and what its nodes do now."""
    total = run.expected.total(run.progress) if run.expected else None
    head = Text.assemble((f"{scale.name} {_run_name(run)}", "bold"), f"  run {scale.runs.index(run) + 1} of ")
    head.append(str(len(scale.runs)))
    if run.progress and total:
        fraction = min(1.0, run.progress["step"] / total.steps)
        share = f" {100 * fraction:3.0f} %"
        room = width - len(head) - len(share) - 2
        if room >= 10:
            done = int(room * fraction)
            head.append("  ").append(BAR * done, "cyan").append(REST * (room - done), "dim").append(share)
    head.no_wrap, head.overflow = True, "ellipsis"
    yield head
    since_s = state.now_s - float((run.progress or {}).get("updated_at_s") or state.now_s)
    quiet = f"; no news for {duration(since_s)}" if since_s > QUIET_S else ""
    yield Text(f"    {_steps(state, scale, run)}{quiet}", no_wrap=True, overflow="ellipsis")
    if run.samples:
        yield _nodes(run.samples, state.now_s, nodes)


def _steps(state: LadderState, scale: ScaleState, run: RunState) -> str:
    return steps_of(run.progress, run.expected, state.left_at_most_s(scale)) if run.expected else "starting"


def _nodes(samples: Sequence[NodeSample], now_s: float, most: int) -> Table:
    """Return a row for each node; where they do not fit, one for all and those of the nodes that do least."""
    shown = [*samples]
    if len(shown) > most:
        least = sorted(samples, key=lambda each: (now_s - each.time_s <= STALE_S, _busy(each)))
        shown = [_together(samples), *least[: most - 1]]
    has_gpus = any(any(each.gpus.values()) for each in samples)
    headings = ("node", "CPU", "busiest", *(("GPU", "GPU mem", "power") if has_gpus else ()), "seen")
    table = _grid("left", "left", *("right" for _ in headings[1:]))
    table.add_row("  ", *(Text(heading, "dim") for heading in headings))
    for each in shown:
        busy, memory, power = (each.gpus.get(column, ()) for column in GPU_FIGURES)
        of_gpus = (
            percent(sum(busy) / len(busy)) if busy else "",
            f"{max(memory) / 1e9:.1f} GB" if memory else "",
            f"{sum(power):.0f} W" if power else "",
        )
        cpus = ("" if value is None else percent(value) for value in (each.cpu_fraction, each.cpu_busiest_fraction))
        age_s = max(0.0, now_s - each.time_s)
        seen = Text(f"{duration(age_s)} ago", "yellow" if age_s > STALE_S else "dim")
        table.add_row("", each.node, *cpus, *(of_gpus if has_gpus else ()), seen)
    return table


def _busy(sample: NodeSample) -> float:
    busy = sample.gpus.get("busy_fraction")
    return sum(busy) / len(busy) if busy else sample.cpu_fraction or 0.0


def _together(samples: Sequence[NodeSample]) -> NodeSample:
    """Return one sample for all nodes: mean and busiest CPU, all GPUs, the oldest time."""
    cpus = [each.cpu_fraction for each in samples if each.cpu_fraction is not None]
    busiest = [each.cpu_busiest_fraction for each in samples if each.cpu_busiest_fraction is not None]
    return NodeSample(
        f"all {len(samples)} nodes",
        min(each.time_s for each in samples),
        sum(cpus) / len(cpus) if cpus else None,
        max(busiest, default=None),
        {column: tuple(v for each in samples for v in each.gpus.get(column, ())) for column in GPU_FIGURES},
    )


def _notes(notes: Sequence[str], most: int, folded: bool) -> Table:
    table = _grid("left", padding=1)
    table.add_column()
    for note in notes[:most]:
        table.add_row(Text("!", "yellow"), _cell(note, "", folded))
    if len(notes) > most:
        table.add_row("", Text(f"and {count(len(notes) - most, 'more note')}", "dim"))
    return table


def start_words(state: LadderState) -> str:
    """Return who climbs since when, or which start was the last."""
    if state.start is not None:
        process = state.start.process
        who = f"{state.start.user}, process {process.pid} on {process.host}, since {state.start.since}"
        if state.is_alive is False:
            return f"killed: the start of {who}"
        return f"{who} ({duration(state.now_s - state.start.since_s)})"
    if state.last is not None:
        return f"none at work; the last one: {state.last.user} on {state.last.process.host}, {state.last.since}"
    return "none at work"


def report_words(state: LadderState) -> str:
    """Return where the report is."""
    return f"report: {state.results.absolute() / 'report/index.html'}"


def job_words(state: LadderState, scale: ScaleState, times: bool = True) -> tuple[str, str]:
    """Return the state of a scale's job, and its style. times: with those that change from one look to the next."""
    if scale.is_done and not scale.is_held:
        failed = sum(run.has_failed and not run.spec.is_plain for run in scale.runs)
        return (f"{count(failed, 'run')} failed", BAD) if failed else ("finished", GOOD)
    if scale.bad_end is not None:
        return scale.bad_end.in_words, BAD
    if scale.slurm_id is not None:
        return _slurm_words(state, scale, scale.slurm_id, times)
    if scale.is_held and scale.holder is not None:
        process = scale.holder.process
        return f"runs: process {process.pid} on {process.host}{_between(scale)}", BUSY
    return _why_not(state, scale), PLAIN


def _slurm_words(state: LadderState, scale: ScaleState, job_id: str, times: bool) -> tuple[str, str]:
    job = state.job_of(scale)
    if job is None:
        if scale.is_held:
            return f"job {job_id} runs{_between(scale)}", BUSY
        if state.slurm.asked_s is None or state.slurm.problem:
            return f"job {job_id} was submitted", WAITS
        return f"job {job_id}: Slurm does not know it (any more)", PLAIN
    if job.state.phase == "waiting":
        why = f": {reason_in_words(job.state.reason, job_id)}" if job.state.reason else ""
        at = job.state.start.replace("T", " ").removesuffix(":00")
        return f"job {job_id} waits{why}{f'; expected to start {at}' if at else ''}", WAITS
    if job.state.phase == "running":
        spent = ""
        if times and job.elapsed_s is not None:
            spent = f" {duration(job.elapsed_s)}{'' if job.limit_s is None else f' of {duration(job.limit_s)}'}"
        return f"job {job_id} runs{spent} on {job.state.nodes}{_between(scale)}", BUSY
    if job.state.state == ENDED_WELL:
        return f"job {job_id} has ended", PLAIN
    return f"job {job_id} ended {job.state.state}", BAD


def _between(scale: ScaleState) -> str:
    """Return what a job does that is in none of its runs."""
    if scale.running is not None:
        return ""
    if scale.is_done:
        return ", writing its records"
    if scale.ended:
        return ", between two runs"
    return ", in its preflight" if scale.job.preflight.enabled else ", starting"


def _why_not(state: LadderState, scale: ScaleState) -> str:
    interrupted = [run for run in scale.runs if run.phase == "interrupted"]
    if interrupted:
        return f"interrupted in {interrupted[0].spec.name}"
    if not state.is_at_work:
        return "not run"
    before = state.plan.stage_before(scale.job.stage) if state.plan else None
    if before is None or (before in state.gates and state.gates[before].is_open):
        return "to come"
    return f"waits for the gate of {stage_name(before)}"


def notes_on(state: LadderState) -> Iterator[str]:
    """Yield failures, findings, closed gates, and what cannot be seen: the most important first."""
    if state.slurm.problem:
        yield state.slurm.problem
    yield from state.problems
    if state.start is not None and state.is_alive is False:
        yield "the start was killed; the next one goes on from what it has left"
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
    for scale in reversed(state.scales):  # the newest first
        yield from _findings(scale)


def _findings(scale: ScaleState) -> Iterator[str]:
    """Yield what the preflight found, and what the runs used; of one kind the first, as repeats mostly agree."""
    for found in scale.preflight.findings if scale.preflight else ():
        yield f"{scale.name} preflight: {found.in_words}"
    seen = set()
    for run in scale.runs:
        for finding in run.record.usage.findings if run.record and run.record.usage else ():
            place = (finding.kind, finding.node, finding.gpu)
            if place not in seen:
                seen.add(place)
                yield f"{run.spec.name}: {finding.in_words}"


class Changes:
    """The lines of a view in a pipe: each change once, with its time."""

    def __init__(self) -> None:
        self._facts: dict[tuple[str, ...], str] = {}
        self._progress_s: dict[str, tuple[float, float]] = {}  # by run: first and next line

    def new_lines(self, state: LadderState) -> list[str]:
        """Return a line for each fact that is new or has changed."""
        facts = _facts(state)
        new = [text for key, text in facts.items() if self._is_new(key, text)]
        if ("slurm",) in self._facts and ("slurm",) not in facts:
            new.append("Slurm answers again")
        self._facts = facts
        new += [text for scale in state.scales if (text := self._progress(state, scale))]
        if state.is_over:
            new.append(f"the ladder has ended{f'; {report_words(state)}' if state.has_report else ''}")
        clock = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(state.now_s))
        return [f"{clock} {' '.join(text.split())}".replace(NARROW_SPACE, " ") for text in new]

    def _is_new(self, key: tuple[str, ...], text: str) -> bool:
        """Return True for a fact that has not been printed. A note, and Slurm's silence, are printed once."""
        return key not in self._facts or (key[0] not in ("note", "slurm") and self._facts[key] != text)

    def _progress(self, state: LadderState, scale: ScaleState) -> str:
        run = scale.running
        if run is None or run.progress is None:
            return ""
        begun_s, due_s = self._progress_s.get(run.spec.name, (state.now_s, state.now_s))
        if state.now_s < due_s:
            return ""
        pause_s = max(LINE_EVERY_S, LINE_EVERY_FRACTION * (state.now_s - begun_s))
        self._progress_s[run.spec.name] = begun_s, state.now_s + pause_s
        used = ""
        if run.samples:
            all_nodes = _together(run.samples)
            busy = all_nodes.gpus["busy_fraction"]
            used += "" if all_nodes.cpu_fraction is None else f"; CPU {100 * all_nodes.cpu_fraction:.0f} %"
            used += f", GPU {100 * sum(busy) / len(busy):.0f} %" if busy else ""
        return f"{_label(scale)} {_run_name(run)}: {_steps(state, scale, run)}{used}"


def _facts(state: LadderState) -> dict[tuple[str, ...], str]:
    """Return what is so now, by what it is about; times that go on are left out."""
    facts: dict[tuple[str, ...], str] = {("results",): f"results: {state.results}"}
    facts["start",] = f"start: {start_words(state).partition(' (')[0]}"
    for scale in state.scales:
        job = f"{_label(scale)}: {job_words(state, scale, times=False)[0]}"
        if not scale.is_done:
            facts["scale", scale.name] = job
        for run in scale.runs:
            if run.record is not None and run.record.job is not None:
                facts["run", run.spec.name] = f"{_label(scale)} {_run_name(run)}: {outcome(run.record)}"
            elif run is scale.running:
                facts["run", run.spec.name] = f"{_label(scale)} {_run_name(run)}: started"
        facts["scale", scale.name] = job
    facts.update({("gate", stage): outcome_line(gate) for stage, gate in state.gates.items()})
    if state.slurm.problem:
        facts["slurm",] = state.slurm.problem
    told = {run.spec.name for scale in state.scales for run in scale.runs if run.has_failed}  # by the run's own line
    for note in notes_on(replace(state, slurm=replace(state.slurm, problem=""))):
        if note.partition(": ")[0] not in told:
            facts["note", re.sub(r"\d+ (?:h|min|s)\b", "", note)] = note  # times go on
    return facts


def _label(scale: ScaleState) -> str:
    return f"{stage_name(scale.job.stage)} {scale.name}"


def _run_name(run: RunState) -> str:
    return f"{run.spec.variant}/{run.spec.mode}/r{run.spec.repeat}"
