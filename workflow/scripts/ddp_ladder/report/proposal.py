"""proposal.md: the parts of an application, which can stand below a heading of a form, and forms. Pure.

They say nothing that the records do not hold; what only a person knows is a marked blank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated

from pydantic import Field

from ddp_ladder.common import formats
from ddp_ladder.common.formats import capitalised, count, duration, full_stop, in_short, significant
from ddp_ladder.common.model import Model, Several
from ddp_ladder.gates.figures import (
    COLUMN,
    EFFICIENCY,
    HEADROOM,
    PEAK_MEMORY,
    SAMPLES_PER_S,
    SPEEDUP,
    TOKENS_PER_S,
    TOKENS_PER_S_PER_GPU,
)
from ddp_ladder.gates.interval import in_doubt
from ddp_ladder.gates.points import ScalePoint
from ddp_ladder.gates.scaling import NOTABLE_GAP
from ddp_ladder.platform.accelerators import ACCELERATORS
from ddp_ladder.records.record import SOURCE_IN_WORDS, Record, weakest
from ddp_ladder.report.document import Block, Cell, Document, Section, blank
from ddp_ladder.report.hours import EUROHPC, SWISS_AI, beyond, in_mode, milestone_table, request, time_to_solution
from ddp_ladder.report.sections import explained, figures_table
from ddp_ladder.report.view import ReportView, scale_names
from ddp_ladder.settings.terms import REFERENCE_VARIANT

TEST_CASE = (
    "script", "script_sha256", "repository", "args_template", "parameters", "parameter_dtype", "autocast_dtype",
    "optimizer", "num_workers", "compiled", "steps", "batch", "gradient bytes", "buckets", "comm hook", "launcher",
    "backend", "threads_per_rank", "env",
)  # fmt: skip
SOFTWARE = (
    "python", "torch", "cuda", "nccl", "cudnn", "libraries", "driver", "gpu", "power_limit_w", "cpu_model", "cpus",
)  # fmt: skip
IN_PLAIN_WORDS = {
    "script_sha256": "digest of the script",
    "repository": "commit of its repository",
    "args_template": "arguments",
    "parameter_dtype": "type of the parameters",
    "autocast_dtype": "automatic mixed precision",
    "num_workers": "loader workers of each rank",
    "gradient bytes": "gradients (bytes)",
    "buckets": "buckets of gradients (bytes)",
    "comm hook": "communication hook",
    "threads_per_rank": "threads of each rank",
    "env": "environment",
    "power_limit_w": "power limit of a GPU (W)",
    "cpu_model": "CPU",
    "cpus": "CPUs",
}
FLOPS = ("tflop_per_s_per_gpu", "fraction_of_matrix_rate", "fraction_of_peak")
CENTRE_HOURS = "centre_hours_per_million_samples"
BY_TOTAL_TIME = ("repeats", "wall_s", "efficiency_total_time", "gpu_hours_per_million_samples", CENTRE_HOURS)
USED = ("gpu_busy_fraction", "gpu_power_w", "data_wait_fraction", "exposed_comm_fraction", "cpu_fraction")
DOUBTFUL = ("not comparable", "check", "incomplete")
SOURCES = (
    "Results and requested resources: scaling.csv, medians over the runs of runs.csv, which has the Slurm job of each; "
    "everything of a run is in {results}/runs/<run>/record.json.",
    "Test case, software and method: fingerprint, spec, timing and job of these records, and {results}/plan.json; the "
    "nodes: {results}/machine/<scale>/<node>.",
    "Why it does not scale further: the parts of a step in scaling.csv, and {results}/preflight/<scale>.json. What a "
    "step loses is its time x (1 - efficiency). What a part of it loses is its time less that of the same part at "
    "{base} x efficiency x step / step at {base}. Points of efficiency are percent of it.",
    "What is predicted: from scaling.csv, as benchmarks/results/prediction.md says. Hours used so far: "
    "{results}/accounting.csv.",
)


# --- What only a person knows.


ONLY_A_PERSON: Mapping[str, tuple[str, str]] = {
    "purpose": (
        "the scientific purpose, the model and the data set in two or three sentences, and why this test resembles the "
        "production runs",
        "your project description",
    ),
    "reading": (
        "how the training reads its data and writes its checkpoints: formats, sizes, number of files, and the file "
        "system",
        "the script's data set and checkpoint code; du --summarize --human-readable DIRECTORY",
    ),
    "storage": (
        "what a job reads and writes (MB/s), checkpoints (size, how often, how many are kept), and what stays after "
        "the project (TB)",
        "du --summarize --human-readable of the data and of one checkpoint; the script's checkpoint code",
    ),
    "production": (
        "data, length, validation and checkpoints of the production runs",
        "workload.args in config.yaml beside the job script of production",
    ),
    "preparations": ("who runs it, when, and what was agreed with the centre", "the centre's page on such runs"),
    "full machine": (
        "the nodes and hours of the run on the full machine",
        "MaxNodes of scontrol show partition; the prediction below",
    ),
    "saturation report": (
        "the PDF of GSSR, CSCS's GPU Saturation Scorer, for the job of each row",
        "gssr-record during a run (workload.wrapper), gssr-analyze of its files after it",
    ),
    "staff": (
        "the directory with logs and job scripts that the centre's staff can read",
        "copy runs/ of the results to the project's shared directory",
    ),
}


def _blank(what: str, where: str, view: ReportView) -> Iterator[Block]:
    yield Block(blank(what, where))


# --- Software, test case, machine.


def _parallel(view: ReportView) -> Iterator[Block]:
    runs = view.good_runs(*view.proposed)
    launchers = " or ".join(dict.fromkeys(run.spec.launcher for run in runs))
    backends = " or ".join(dict.fromkeys(run.spec.backend for run in runs))
    processes = "one process per GPU" if view.unit == "GPU" else "CPU processes"
    source = weakest(run.throughput.source for run in runs if run.throughput)
    witnessed = "".join(dict.fromkeys(f" {point.witness_in_words}" for point in view.proposed if point.witness))
    yield Block(
        f"Data parallel training with PyTorch: {processes}, started by {launchers}, which exchange gradients with "
        f"{backends}. The script ran unmodified. Source of the throughput: {SOURCE_IN_WORDS[source]}."
        f"{witnessed}"
    )


def _machine(view: ReportView) -> Iterator[Block]:
    partitions = dict.fromkeys(job.slurm.partition for job in view.plan.jobs if job.slurm.partition)
    where = f"Slurm partition {' and '.join(partitions)}. " if partitions else ""
    name = blank("the name of the machine and of the partition, as the centre calls them", "the centre's documentation")
    yield Block(f"{where}{name}")
    yield Block(view.machine)


def _nodes(view: ReportView) -> Iterator[Block]:
    if view.machine_rows:
        yield Block("The nodes:", headings=("nodes", "what they are"), rows=view.machine_rows)


def _fields(text: str, names: Sequence[str], view: ReportView) -> Iterator[Block]:
    known = view.proposed_on
    rows = tuple((IN_PLAIN_WORDS.get(name, name), known[name]) for name in names if name in known)
    yield Block(text, headings=("field", "value"), rows=rows)


def _in_a_sentence(names: Sequence[str], view: ReportView) -> Iterator[Block]:
    known = view.proposed_on
    parts = (f"{IN_PLAIN_WORDS.get(name, name)}: {known[name]}" for name in names if name in known)
    yield Block(full_stop(capitalised("; ".join(parts))))


# --- How it was measured.


def _method(view: ReportView) -> Iterator[Block]:
    points, runs = view.proposed, view.good_runs(*view.proposed)
    timings = [run.timing for run in runs if run.timing]
    elsewhere = _names([point for point in points if (point.jobs or 1) > 1], view)
    several = f" (in several jobs at {elsewhere})" if elsewhere else ""
    jobs = list(dict.fromkeys(run.job.id for run in runs if run.job))
    modes = {
        "weak": "Weak scaling keeps the batch of each {unit}; the global batch grows with the number of {units}.",
        "strong": "Strong scaling keeps the global batch; the batch of each {unit} shrinks.",
    }
    if any(run.spec.accumulation for run in runs):
        modes["strong"] = (
            "Strong scaling keeps the global batch, and here also the batch of each {unit}, which accumulates the "
            "gradients of fewer batches where more {units} share a step."
        )
    items = [modes[decision.mode].format(unit=view.unit, units=view.units) for decision in view.decisions]
    stages = "; ".join(
        f"{stage} {in_short([str(job.scale) for job in view.plan.jobs if job.stage == stage], 12)}"
        for stage in view.plan.stages
    )
    items += [
        f"The scales are measured in stages ({stages}). A stage starts only when the gate of the one before is open: "
        "when its runs are sound and, where a minimum is set, efficient enough.",
        f"Each run leaves out its first {_range(t.warmup_steps for t in timings)} steps as warm-up, until the step "
        f"times were steady{_unsteady(runs)}, and measures {_range(t.measured_steps for t in timings)} steps. The time "
        "of a step is that of its slowest rank; the samples are those that all ranks drew.",
        f"Each scale was measured in {_range(p.repeats for p in points)} independent runs, in one job on the same nodes"
        f"{several}, variants and repeats interleaved. Figures are medians over runs; square brackets are 95 % "
        "intervals (Student's t over runs: of one job, on its nodes, or of all jobs; a single run has none, nor have "
        "runs that differ by too much).",
        "Efficiency by steps compares samples per second after the warm-up. Efficiency by total time is p(b) T(b) / "
        "(p(N) T(N)), where T is the wall time of a whole run with start-up, validation and end; where runs trained "
        "different numbers of samples, T is per sample.",
        f"Jobs (local ones ran without Slurm): {in_short(jobs, 12)}.",
    ]
    yield Block(items=tuple(items))


def _unsteady(runs: Sequence[Record]) -> str:
    names = [run.spec.name for run in runs if run.timing and not run.timing.warmup_stable]
    return f" (not seen in {count(len(names), 'run')}: {in_short(names)})" if names else ""


def _range(numbers: Iterable[int]) -> str:
    """Return ``20`` or ``20 to 35``."""
    known = sorted(set(numbers))
    return " to ".join(map(str, dict.fromkeys((known[0], known[-1])))) if known else "an unknown number of"


def _mechanism(view: ReportView) -> Iterator[Block]:
    runs = [run for run in view.good_runs(*view.proposed) if run.timing]
    timings = [run.timing for run in runs if run.timing]
    clock = " or ".join(dict.fromkeys(ACCELERATORS[run.spec.device].clock for run in runs))
    counted = any(point["tflop_per_s_per_gpu"] is not None for point in view.proposed)
    flops = "counted at the first scale from the shapes of the operators" if counted else "not counted"
    yield Block(
        f"Timers in the training processes ({clock}) around each optimizer step of the unmodified script, without its "
        f"first {_range(t.warmup_steps for t in timings)} steps; {_range(t.measured_steps for t in timings)} steps are "
        f"measured in each run (runs of a scale: {_range(p.repeats for p in view.proposed)}). Step times and "
        "samples/s are of the training loop with its data loading, without start-up, validation and checkpoints; wall "
        f"times are of the whole application with I/O. FLOPs are {flops}."
    )


# --- The results.


def _headline(view: ReportView) -> Iterator[Block]:
    yield Block(full_stop(view.headline.text))


def _scaling(view: ReportView) -> Iterator[Block]:
    """Yield the table of each mode: a row for each scale, with all that a reviewer compares."""
    priced = any(point["hours_to_solution"] for point in view.proposed)
    of_what, unit = "one training" if priced else "a million samples", view.plan.hour_unit
    tokens = (f"tokens/s (per {view.unit})",) if any(point["tokens_per_s"] for point in view.proposed) else ()
    headings = (
        "nodes", view.units, f"batch per {view.unit}", "global batch", "step, median (mean), ms", "samples/s", *tokens,
        "speed-up", "efficiency", "memory, MB (free)",
        f"{unit.centre.name if unit.centre else 'node hours'} of {of_what}", "jobs",
    )  # fmt: skip

    def hours(point: ScalePoint) -> float | None:
        cost = point.cost(point["hours_to_solution"] or 0.0) if priced else point.cost_per_million
        return cost.of_centre(unit.centre) if unit.centre else cost.nodes

    for decision in view.decisions:
        first = decision.points[0]
        rows = [
            (
                str(point.nodes),
                str(point.world_size),
                f"{point.batch_per_gpu:,}",
                f"{point.global_batch:,}",
                "{} ({})".format(*map(formats.milliseconds, (point["step_time_s"], point["step_time_s_mean"]))),
                SAMPLES_PER_S.with_interval(point),
                *(f"{TOKENS_PER_S.shown(point)} ({TOKENS_PER_S_PER_GPU.shown(point)})" for _ in tokens),
                SPEEDUP.shown(point),
                EFFICIENCY.with_interval(point),
                f"{PEAK_MEMORY.shown(point)} ({HEADROOM.shown(point)})",
                significant(hours(point)),
                in_short(_jobs_of(view, point), 3),
            )
            for point in decision.points
        ]
        yield Block(
            f"{capitalised(first.mode)} scaling (variant {first.variant}); speed-up and efficiency are by steps, "
            f"against {first.baseline}; memory is that of the {view.unit} with the most; jobs are Slurm's ids "
            "(local: without Slurm):",
            headings=headings,
            rows=tuple(rows),
            figures=len(headings),
        )
        if doubts := in_doubt(*(figure for p in decision.points for figure in (p.rate, p.of("efficiency")))):
            yield Block(f"In doubt: {full_stop(doubts)}")


def _jobs_of(view: ReportView, point: ScalePoint) -> list[str]:
    """Return the ids in Slurm of the jobs of a scale; ``local`` stands for all that ran without it."""
    ids = (run.job.id for run in view.good_runs(point) if run.job)
    return list(dict.fromkeys("local" if job.startswith("local-") else job for job in ids))


def _columns(text: str, keys: Sequence[str], view: ReportView, points: Sequence[ScalePoint] = ()) -> Iterator[Block]:
    """Yield a table of these columns of scaling.csv, as far as they are known at any scale. points: all if empty."""
    points = points or view.proposed
    names = [Cell(in_mode(point)) for point in points]
    table = figures_table(points, view, "csv", name="", shown=[COLUMN[key] for key in keys], names=names)
    if known := len(table.headings) - 1:
        yield replace(table, text=text, summary="", figures=known)


def _peak(view: ReportView) -> Iterator[Block]:
    """Yield FLOP/s at each scale, or why there are none."""
    if counted := [point for point in view.proposed if point["tflop_per_s_per_gpu"] is not None]:
        first, per_sample = counted[0], counted[0]["model_flops_per_sample"] or 0.0
        text = (
            f"A sample takes {significant(per_sample / 1e9)} GFLOP (matrix products and "
            f"convolutions, forward and backward, counted at {first.baseline} from the shapes of the operators; "
            f"{first.flops_precision}). The matrix rate is that of large matrices in the same precision, measured "
            "before the runs; a peak is the data sheet's:"
        )
        yield from _columns(text, FLOPS, view, counted)
    for why in view.not_counted:
        yield Block(f"FLOP/s are not given, as the FLOPs of a step were not counted: {why}.")


def _plot(name: str, caption: str, view: ReportView) -> Iterator[Block]:
    yield Block(caption.format(units=view.units), picture=name)


def _memory(view: ReportView) -> Iterator[Block]:
    known = [point for point in view.proposed if PEAK_MEMORY.of(point)]
    if not known:
        yield Block(blank("the memory of each GPU, as the runs did not record it", "nvidia-smi during a run"))
        return
    most = max(known, key=lambda point: point["peak_memory_bytes"] or 0.0)
    free = min((free for point in known if (free := point["memory_headroom_fraction"]) is not None), default=None)
    headroom = "" if free is None else f"; at least {formats.share(free)} of what it can have stays free"
    memory = f"{PEAK_MEMORY.shown(most)} MB, at {in_mode(most)}"
    yield Block(f"The {view.unit} with the most memory takes {memory}{headroom}.")


def _system_scale(view: ReportView) -> Iterator[Block]:
    points = sorted(view.proposed, key=lambda point: point.world_size)
    first, last = points[0], points[-1]
    jobs = list(dict.fromkeys(job for point in points for job in _jobs_of(view, point)))
    yield Block(
        f"Measured from {count(first.world_size, view.unit)} on {count(first.nodes, 'node')} to {last.world_size} on "
        f"{count(last.nodes, 'node')} (jobs {in_short(jobs, 8)})."
    )


def _logs(view: ReportView) -> Iterator[Block]:
    lines = (
        f"{in_mode(point)}: Slurm jobs {in_short(_jobs_of(view, point), 6)}; logs and job scripts in "
        f"{view.plan.results}/runs/{point.variant}/{point.mode}/{point.scale}"
        for point in view.proposed
    )
    yield Block(items=tuple(lines))


def _losses(view: ReportView) -> Iterator[Block]:
    of_reference = [(point, lost) for point, lost in explained(view) if point.variant == REFERENCE_VARIANT]
    largest = {point.mode: (point, lost) for point, lost in reversed(of_reference)}
    for point, lost in largest.values():
        losses = [full_stop(": ".join(filter(None, (loss.in_words, loss.evidence)))) for loss in lost.listed]
        if losses:
            yield Block(f"At {view.place(point)}, against {point.baseline}, {lost.lost_in_words}:", items=tuple(losses))


def _sources(view: ReportView) -> Iterator[Block]:
    good = sum(run.status == "ok" for run in view.runs)
    took = duration(sum(run.timing.wall_s for run in view.runs if run.timing))
    planned = count(len(view.plan.runs), "planned run")
    runs = f"Runs: {good} of {planned} succeeded; all runs together took {took}."
    yield Block(
        items=(runs, *(words.format(base=view.plan.first_scale, results=view.plan.results) for words in SOURCES))
    )


# --- The limits: what an application must say against its own figures.


def _limits(view: ReportView) -> Iterator[Block]:
    lines = (*_of_points(view), *_of_runs(view))
    yield Block(items=tuple(full_stop(line if "/" in line.split()[0] else capitalised(line)) for line in lines))


def _of_points(view: ReportView) -> Iterator[str]:
    measured = [point for point in view.rungs if point["samples_per_s"] is not None]
    if len(scales := {point.scale for point in measured}) == 1:
        yield f"only {scales.pop()} was measured, which does not show how the training scales"
    for words in dict.fromkeys(point.simulated for point in measured if point.simulated):
        where = _names([point for point in measured if point.simulated == words], view)
        yield f"{where}: {words}, so the network between nodes was not measured"
    if few := [point for point in measured if point.repeats < 3]:
        yield f"fewer than three runs at {_names(few, view)}: they show little of the differences between runs"
    if drifting := [point for point in measured if abs(point["drift_fraction"] or 0.0) > NOTABLE_GAP]:
        more = f"by more than {100 * NOTABLE_GAP:.0f} % from the first to the last third of their steps"
        yield f"the speed changed within the runs of {_names(drifting, view)}: {more}"
    for point in measured:
        if point.status in DOUBTFUL:
            yield f"{view.place(point)}: {point.note or point.status}"
    if allowed := [point for point in measured if point.allowed]:
        yield f"differences that were allowed (fingerprint.may_differ): {allowed[-1].allowed}"
    if missing := [point for point in view.rungs if point.status == "not run"]:
        yield f"planned and not measured: {_names(missing, view)}"


def _names(points: Sequence[ScalePoint], view: ReportView) -> str:
    return scale_names(points, view.several_series)


def _of_runs(view: ReportView) -> Iterator[str]:
    for group in view.failures:
        yield f"{count(len(group.runs), 'run')} failed ({in_short(group.runs)}): {group.failure.placed}"
    for stage in view.plan.stages:
        gate = view.results.gates.get(stage)
        if gate is not None and not gate.is_open:
            why = gate.why or next((item.measured for item in gate.failing), "")
            yield f"the gate of {stage} is closed{f': {why}' if why else ''}"
    yield from (warning.partition(" Next: ")[0] for warning in view.results.warnings)  # the page says what to do
    yield from _cut(view)
    yield "the figures are of speed; whether a larger global batch needs more epochs was not measured"
    if view.unit != "GPU":
        yield "this site has no GPU: each “GPU” of a scale is one CPU process"


def _cut(view: ReportView) -> Iterator[str]:
    cut = dict.fromkeys(
        f"{name}: {value:g}"
        for run in view.plan.runs
        for name, value in (("measure.max_steps", run.max_steps), ("measure.max_seconds", run.max_seconds))
        if value is not None
    )
    if cut:
        yield f"the runs were ended early on purpose ({', '.join(cut)}); they are no whole trainings"


def _unlike_production(view: ReportView) -> Iterator[Block]:
    if lines := tuple(full_stop(capitalised(line)) for line in _cut(view)):
        yield Block(items=lines)


# --- All parts, by the name that a form gives them.

SMALL_CASE = ("script", "repository", "parameters", "optimizer", "num_workers", "compiled", "backend")
PRECISION = ("parameter_dtype", "autocast_dtype")
PARTS: Mapping[str, Callable[[ReportView], Iterable[Block]]] = {
    **{name: partial(_blank, *texts) for name, texts in ONLY_A_PERSON.items()},
    "parallel": _parallel,
    "test case": partial(_fields, "The test case:", TEST_CASE),
    "program": partial(_in_a_sentence, SMALL_CASE),
    "precision": partial(_in_a_sentence, PRECISION),
    "machine": _machine,
    "nodes": _nodes,
    "software": partial(_fields, "Software and devices, as the training processes reported them:", SOFTWARE),
    "method": _method,
    "mechanism": _mechanism,
    "headline": _headline,
    "scaling": _scaling,
    "total time": partial(_columns, "Runs as a whole, with start-up, validation and end:", BY_TOTAL_TIME),
    "saturation": partial(_columns, "What the runs used:", USED),
    "peak": _peak,
    "throughput": partial(_plot, "throughput", "Throughput against the number of {units}, with the ideal."),
    "efficiency": partial(_plot, "efficiency", "Efficiency at each scale."),
    "memory": _memory,
    "losses": _losses,
    "system scale": _system_scale,
    "prediction": beyond,
    "time to solution": time_to_solution,
    "request": request,
    "milestones": partial(milestone_table, headings=EUROHPC),
    "work packages": partial(milestone_table, headings=SWISS_AI),
    "unlike production": _unlike_production,
    "limits": _limits,
    "logs": _logs,
    "sources": _sources,
}
"""What can stand below a heading of a form."""


# --- proposal.md: the scalability section that applications for compute time ask for.
# A form, of a centre or the default one, names its headings in their order and for each the PARTS that stand there.


class Heading(Model):
    """A heading of a form."""

    title: Annotated[str, Field(min_length=1)]
    parts: Several[str]  # names in PARTS, of what stands below it


class Chapter(Model):
    """A part of a form that begins a page."""

    title: str = ""
    headings: Several[Heading] = Field(min_length=1)


def proposal(view: ReportView, form: Sequence[Chapter] = (), rules: Sequence[Section] = ()) -> Document:
    """Return the section; if nothing was measured, one that says so.

    form: of a centre; none: the default one. rules: the section of a centre's rules, for the default one.
    """
    title = view.title.replace("Scaling of", "Scalability of", 1)
    ending = f"Written by ddp-ladder on {view.written_on.isoformat()} from the records of {len(view.runs)} runs."
    if not view.decisions:
        next_step = f" Next: {full_stop(view.headline.next)}" if view.headline.next else ""
        words = f"There is nothing to write yet. {full_stop(view.headline.text)}{next_step}"
        return Document(title, (Section("No measurement", (Block(words),)), *rules), ending)
    sections = [
        Section(
            heading.title, tuple(block for part in heading.parts for block in PARTS[part](view)), chapter=chapter.title
        )
        for chapter in form or DEFAULT
        for heading in chapter.headings
    ]
    sections[-1:-1] = rules
    return Document(title, tuple(section for section in sections if section.blocks), ending)


HEADINGS = {
    "Software and test case": ("purpose", "parallel", "reading", "test case"),
    "Machine": ("machine", "nodes", "software"),
    "Method": ("method",),
    "Results": ("headline", "scaling", "total time", "peak", "throughput", "efficiency"),
    "Why it does not scale further": ("losses",),
    "Requested resources": ("request",),
    "Limits of these measurements": ("limits",),
    "Where each figure comes from": ("sources",),
}
DEFAULT = (Chapter(headings=tuple(Heading(title=title, parts=parts) for title, parts in HEADINGS.items())),)
