"""proposal.md and proposal.tex: the scalability section that applications for compute time ask for. Pure.

It says nothing that the records do not hold; what only a person knows is a marked blank.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ddp_ladder.accounting.advice import totals
from ddp_ladder.analysis.cost import Work, recommended
from ddp_ladder.analysis.prediction import Prediction
from ddp_ladder.common.formats import capitalised, count, duration, full_stop, in_short, significant
from ddp_ladder.gates.figures import GPU_HOURS, GPU_HOURS_TO_SOLUTION, columns
from ddp_ladder.gates.notes import NOTABLE_GAP
from ddp_ladder.gates.points import ScalePoint
from ddp_ladder.records.checks import IN_WORDS, weakest
from ddp_ladder.records.record import Record
from ddp_ladder.report.document import Block, Document, Section, blank
from ddp_ladder.report.sections import explained
from ddp_ladder.report.view import ReportView, reference_series, scale_names
from ddp_ladder.settings.terms import REFERENCE_VARIANT

SHOWN = (
    "world_size", "global_batch", "repeats", "samples_per_s", "speedup", "efficiency",
    "efficiency_total_time", "wall_s", "gpu_hours_per_million_samples",
)  # fmt: skip
FLOPS = ("tflop_per_s_per_gpu", "fraction_of_matrix_rate", "fraction_of_peak")
HEADINGS = {
    "world_size": "GPUs",
    "efficiency": "efficiency by steps",
    "wall_s": "wall time of a run (s)",
}
WIDTHS = (0.6, 0.9, 0.7, 0.75, 1.35, 1.1, 1.25, 1.25, 0.9, 0.95)
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
DOUBTFUL = ("not comparable", "check", "incomplete")
SOURCES = (
    "Results and requested resources: scaling.csv, medians over the runs of runs.csv, which has the Slurm job of each; "
    "everything of a run is in {results}/runs/<run>/record.json.",
    "Test case, software and method: fingerprint, spec, timing and job of these records, and {results}/plan.json; the "
    "nodes: {results}/machine/<scale>/<node>.",
    "Why it does not scale further: the parts of a step in scaling.csv, and {results}/preflight/<scale>.json. What a "
    "step loses is its time x (1 - efficiency). What a part of it loses is its time less that of the same part at "
    "{base} x efficiency x step / step at {base}. Points of efficiency are percent of it.",
    "What is predicted: from scaling.csv, as docs/prediction.md says. Hours used so far: {results}/accounting.csv.",
)


def proposal(view: ReportView, rules: Sequence[Section] = ()) -> Document:
    """Return the section; if nothing was measured, one that says so. rules: the section of a centre's rules."""
    title = view.title.replace("Scaling of", "Scalability of", 1)
    ending = f"Written by ddp-ladder on {view.written_on.isoformat()} from the records of {len(view.runs)} runs."
    series = reference_series(view.rungs)
    if not series:
        return Document(title, _nothing(view, rules), ending)
    sections = (
        Section("Software and test case", _test_case(view, [point for each in series for point in each])),
        Section("Machine", _machine(view)),
        Section("Method", tuple(_method(view, [point for each in series for point in each]))),
        Section("Results", tuple(_results(view, series))),
        Section("Why it does not scale further", tuple(_losses(view))),
        Section("Requested resources", tuple(request(view, series))),
        Section("Limits of these measurements", (limits(view),)),
        *rules,
        Section("Where each figure comes from", (_sources(view),)),
    )
    return Document(title, tuple(section for section in sections if section.blocks), ending)


def _nothing(view: ReportView, rules: Sequence[Section]) -> tuple[Section, ...]:
    next_step = f" Next: {full_stop(view.headline.next)}" if view.headline.next else ""
    words = f"There is nothing to write yet. {full_stop(view.headline.text)}{next_step}"
    return (Section("No measurement", (Block(words),)), *rules)


def _test_case(view: ReportView, points: Sequence[ScalePoint]) -> tuple[Block, ...]:
    runs = _runs_of(view, points)
    launchers = " or ".join(dict.fromkeys(run.spec.launcher for run in runs))
    backends = " or ".join(dict.fromkeys(run.spec.backend for run in runs))
    processes = "one process per GPU" if view.unit == "GPU" else "CPU processes"
    source = weakest(run.throughput.source for run in runs if run.throughput)
    parallel = (
        f"Data parallel training with PyTorch: {processes}, started by {launchers}, which exchange gradients with "
        f"{backends}. The script ran unmodified. Source of the throughput: {IN_WORDS[source]}."
    )
    return (
        Block(
            blank(
                "the scientific purpose, the model and the data set in two or three sentences, and why this test "
                "resembles the production runs"
            )
        ),
        Block(parallel),
        Block(
            blank(
                "how the training reads its data and writes its checkpoints: formats, sizes, number of files, and the "
                "file system"
            )
        ),
        _fields("The test case:", view, TEST_CASE),
    )


def _machine(view: ReportView) -> tuple[Block, ...]:
    partitions = dict.fromkeys(job.slurm.partition for job in view.plan.jobs if job.slurm.partition)
    where = f"Slurm partition {' and '.join(partitions)}. " if partitions else ""
    node = Block("The nodes:", headings=("nodes", "what they are"), rows=view.machine_rows, widths=(1, 3))
    return (
        Block(f"{where}{blank('the name of the machine and of the partition, as the centre calls them')}"),
        Block(view.machine),
        *((node,) if view.machine_rows else ()),
        _fields("Software and devices, as the training processes reported them:", view, SOFTWARE),
    )


def _fields(text: str, view: ReportView, names: Sequence[str]) -> Block:
    known = {name: words for name, _, words in view.measured}
    rows = tuple((IN_PLAIN_WORDS.get(name, name), known[name]) for name in names if name in known)
    return Block(text, headings=("field", "value"), rows=rows, widths=(1, 3))


def _method(view: ReportView, points: Sequence[ScalePoint]) -> Iterator[Block]:
    runs = [run for run in _runs_of(view, points) if run.timing]
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
    items = [modes[mode].format(unit=view.unit, units=view.units) for mode in dict.fromkeys(p.mode for p in points)]
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
    found = [run.spec.name for run in runs if run.timing and not run.timing.warmup_stable]
    return f" (not seen in {count(len(found), 'run')}: {in_short(found)})" if found else ""


def _range(numbers: Iterator[int]) -> str:
    """Return ``20`` or ``20 to 35``."""
    found = sorted(set(numbers))
    return str(found[0]) if len(found) == 1 else f"{found[0]} to {found[-1]}" if found else "an unknown number of"


def _runs_of(view: ReportView, points: Sequence[ScalePoint]) -> list[Record]:
    wanted = {(point.mode, point.variant, point.scale) for point in points}
    return [
        run for run in view.runs if run.status == "ok" and (run.spec.mode, run.spec.variant, run.spec.scale) in wanted
    ]


def _results(view: ReportView, series: Sequence[Sequence[ScalePoint]]) -> Iterator[Block]:
    shown = {column.key: column for column in columns("csv") if column.key in SHOWN}
    headings = [view.of_device(HEADINGS.get(key, shown[key].heading)) for key in SHOWN]
    yield Block(full_stop(view.headline.text))
    for points in series:
        first = points[0]
        rows = [
            (
                str(point.scale),
                *(
                    " ".join(filter(None, (shown[key].shown(point), shown[key].beside(point, "csv")[0])))
                    for key in SHOWN
                ),
            )
            for point in points
        ]
        yield Block(
            f"{capitalised(first.mode)} scaling (variant {first.variant}); scale is nodes x {view.units} per node; "
            f"speed-up and efficiency are against {first.baseline}:",
            headings=("scale", *headings),
            rows=tuple(rows),
            figures=len(headings),
            widths=WIDTHS,
        )
        if rates := [point for point in points if point.tflop_per_s_per_gpu is not None]:
            yield _flops(rates, view)
    for why in view.not_counted:
        yield Block(f"FLOP/s are not given, as the FLOPs of a step were not counted: {why}.")
    yield Block(f"Throughput against the number of {view.units}, with the ideal.", picture="throughput")
    yield Block("Efficiency at each scale.", picture="efficiency")


def _flops(points: Sequence[ScalePoint], view: ReportView) -> Block:
    """Return FLOP/s at each scale."""
    first = points[0]
    shown = [
        column
        for column in columns("csv")
        if column.key in FLOPS and any(getattr(point, column.key) is not None for point in points)
    ]
    return Block(
        f"A sample takes {significant((first.model_flops_per_sample or 0.0) / 1e9)} GFLOP (matrix products and "
        f"convolutions, forward and backward, counted at {first.baseline} from the shapes of the operators; "
        f"{first.flops_precision}). "
        "The matrix rate is that of large matrices in the same precision, measured before the runs; a peak is the data "
        "sheet's:",
        headings=("scale", *(view.of_device(column.heading) for column in shown)),
        rows=tuple((str(point.scale), *(column.shown(point) for column in shown)) for point in points),
        figures=len(shown),
        widths=(1,) * (1 + len(shown)),
    )


def _losses(view: ReportView) -> Iterator[Block]:
    of_reference = [each for each in explained(view) if each[0].variant == REFERENCE_VARIANT]
    for point, found in {each[0].mode: each for each in reversed(of_reference)}.values():  # of each mode the largest
        losses = [": ".join(filter(None, (loss.in_words, loss.evidence))) for loss in found.listed]
        if losses:
            yield Block(
                f"At {view.place(point)}, against {point.baseline}, {found.lost_in_words}:",
                items=tuple(map(full_stop, losses)),
            )


def _sources(view: ReportView) -> Block:
    good = sum(run.status == "ok" for run in view.runs)
    took = duration(sum(run.timing.wall_s for run in view.runs if run.timing))
    planned = count(len(view.plan.runs), "planned run")
    runs = f"Runs: {good} of {planned} succeeded; all runs together took {took}."
    return Block(
        items=(runs, *(words.format(base=view.plan.first_scale, results=view.plan.results) for words in SOURCES))
    )


# --- The request: what a training takes at the scale that is asked for.


def request(view: ReportView, series: Sequence[Sequence[ScalePoint]]) -> Iterator[Block]:
    """Yield what is asked for, why that scale, and what is expected beyond it."""
    for points in series:
        chosen = recommended(points, view.thresholds)
        if chosen is None:
            yield Block(
                f"No {points[0].mode} scale can be recommended, as none compares with a smaller one. "
                + blank("the scale to ask for, and why")
            )
            continue
        yield Block(" ".join(_request(*chosen, view)))
    for at in view.outlooks:
        if words := _beyond(at, view):
            yield Block(words)
    if view.results.jobs:
        yield Block(f"These measurements themselves: {totals(view.results.jobs, view.unit)}.")


def _request(point: ScalePoint, rule: str, view: ReportView) -> Iterator[str]:
    work = view.results.work
    yield f"{capitalised(point.mode)} scaling: jobs of {point.scale} are requested, {rule}."
    hours, per_node = GPU_HOURS_TO_SOLUTION, point.gpus_per_node
    if point.gpu_hours_to_solution is None or point.hours_to_solution is None:
        yield f"A million samples take {GPU_HOURS.shown(point)} {view.unit} hours there."
        yield blank(f"the samples of one training, the number of trainings, and the {view.unit} hours that follow")
        return
    yield (
        f"One training of {amount(work)} takes {duration(3600 * point.hours_to_solution)} there: "
        f"{hours.shown(point)} {view.unit} hours, or {hours.text(point.gpu_hours_to_solution / per_node)} node hours."
    )
    if point.wall_hours_to_solution is not None:
        yield (
            "With start-up, validation and checkpoints as in the measured runs it takes "
            f"{duration(3600 * point.wall_hours_to_solution)}, "
            f"{hours.text(point.world_size * point.wall_hours_to_solution)} {view.unit} hours."
        )
    yield (
        f"The project needs {blank('the number of trainings, with seeds, searches and repetitions')} of these, "
        f"{blank(f'the total of {view.unit} hours, with a reserve for failed jobs')} in all."
    )


def amount(work: Work) -> str:
    """Return the training whose cost is shown, ``90 epochs``."""
    return f"{work.samples:,.0f} samples" if work.samples is not None else f"{work.epochs:g} epochs"


def _beyond(at: Prediction, view: ReportView) -> str:
    """Return what is predicted for the next larger scale."""
    cost = f"{GPU_HOURS.text(at.gpu_hours_per_million_samples)} {view.of_device(GPU_HOURS.heading)}"
    words = f"predicted, not measured: {at.in_words}"
    lines = (f"{words}, at {cost}" if at.samples_per_s else words, *at.notes)
    return " ".join(full_stop(capitalised(line)) for line in lines)


# --- The limits: what an application must say against its own figures.


def limits(view: ReportView) -> Block:
    """Return the limits as a list."""
    lines = (*_of_points(view), *_of_runs(view))
    return Block(items=tuple(full_stop(line if "/" in line.split()[0] else capitalised(line)) for line in lines))


def _of_points(view: ReportView) -> Iterator[str]:
    measured = [point for point in view.rungs if point.samples_per_s is not None]
    if len(scales := {point.scale for point in measured}) == 1:
        yield f"only {scales.pop()} was measured, which does not show how the training scales"
    for words in dict.fromkeys(point.simulated for point in measured if point.simulated):
        where = _names([point for point in measured if point.simulated == words], view)
        yield f"{where}: {words}, so the network between nodes was not measured"
    if few := [point for point in measured if point.repeats < 3]:
        yield f"fewer than three runs at {_names(few, view)}: they show little of the differences between runs"
    if drifting := [point for point in measured if abs(point.drift_fraction or 0.0) > NOTABLE_GAP]:
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
        yield f"{count(len(group.runs), 'run')} failed ({in_short(group.runs)}): {group.verdict}"
    for stage in view.plan.stages:
        gate = view.results.gates.get(stage)
        if gate is not None and not gate.is_open:
            why = gate.why or next((item.in_words for item in gate.failing), "")
            yield f"the gate of {stage} is closed{f': {why}' if why else ''}"
    yield from (warning.partition(" Next: ")[0] for warning in view.results.warnings)  # the page says what to do
    cut = dict.fromkeys(
        f"{name}: {value:g}"
        for run in view.plan.runs
        for name, value in (("measure.max_steps", run.max_steps), ("measure.max_seconds", run.max_seconds))
        if value is not None
    )
    if cut:
        yield f"the runs were ended early on purpose ({', '.join(cut)}); they are no whole trainings"
    yield "the figures are of speed; whether a larger global batch needs more epochs was not measured"
    if view.unit != "GPU":
        yield "this site has no GPU: each “GPU” of a scale is one CPU process"
