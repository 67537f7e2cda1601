"""The checks that a centre's rules name, in one table. Pure.

Each takes the case and the rule's parameters, and returns the verdict with its figure, and for a failure what to do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ddp_ladder.common.formats import count, duration, in_short, interval
from ddp_ladder.gates.figures import columns
from ddp_ladder.gates.interval import Estimate
from ddp_ladder.gates.points import ScalePoint
from ddp_ladder.gates.scaling import efficiency_by_total_time, trained_samples
from ddp_ladder.records.record import Record
from ddp_ladder.report.centre import Found
from ddp_ladder.report.view import ReportView

Parameters = Mapping[str, float]
Compared = tuple[ScalePoint, Estimate]  # with its efficiency and the ends of the interval
LONGER = "train longer: raise measure.max_steps, measure.max_seconds or the epochs in workload.args; start again"
COLUMNS = {column.key: column for column in columns("csv")}


@dataclass(frozen=True)
class Case:
    """What is judged: one mode and variant.

    series: its measured points, by size. points: those with as many GPUs per node as the largest, at least one.
    runs: the good runs of each scale. job_scripts: a file of each scale, below the results. pictures: of
    what the runs used, below the report.
    """

    view: ReportView
    series: tuple[ScalePoint, ...]
    points: tuple[ScalePoint, ...]
    runs: Mapping[str, tuple[Record, ...]]
    job_scripts: Mapping[str, str]
    pictures: tuple[str, ...]

    @property
    def largest(self) -> ScalePoint:
        return self.points[-1]

    @property
    def all_runs(self) -> tuple[Record, ...]:
        return tuple(run for point in self.points for run in self.runs[str(point.scale)])


def _names(points: Sequence[ScalePoint]) -> str:
    return in_short([str(point.scale) for point in points], 8)


def _shown(key: str, points: Sequence[ScalePoint]) -> str:
    column = COLUMNS[key]
    shown = [f"{point.scale} {column.shown(point)} {column.unit}".strip() for point in points]
    return in_short(shown, 8)


def _node_counts(case: Case, parameters: Parameters) -> Found:
    counts = sorted({point.nodes for point in case.points})
    figure = f"{count(len(counts), 'node count')}: {', '.join(map(str, counts))}"
    if len(counts) >= parameters["least"]:
        return Found("pass", figure)
    return Found("fail", figure, _more_nodes(case))


def _more_nodes(case: Case) -> str:
    """Return how to measure other node counts: those that are planned, or else a new one."""
    largest, counts = case.largest, {point.nodes for point in case.points}
    kind = (largest.mode, largest.variant, largest.gpus_per_node)
    planned = [p for p in case.view.rungs if (p.mode, p.variant, p.gpus_per_node) == kind and p.nodes not in counts]
    failed = [point for point in planned if point.status == "failed"]
    others = [point for point in planned if point.status != "failed"]
    parts = [f"{_names(failed)} planned, but runs failed: do what the top of report/index.html says"] if failed else []
    parts += [f"{_names(others)} planned, but not run yet: see the gates in report/index.html"] if others else []
    if not planned:
        parts = [f"add scales such as {2 * largest.nodes}x{largest.gpus_per_node} to stages.stage3.scales"]
    return f"{'; '.join(parts)}; start snakemake again"


def _same_input(case: Case, parameters: Parameters) -> Found:
    if differing := [point for point in case.points if point.differing or not point.smallest_baseline]:
        fields = dict.fromkeys(field for point in differing for field in point.differing)
        figure = f"{', '.join(fields) or 'runs'} differ at {_names(differing)}"
        return Found("fail", figure, "measure all scales with the same script, arguments, versions and devices")
    samples = sorted({trained_samples(run) for run in case.all_runs})
    figure = f"same script, arguments and fields in {count(len(case.all_runs), 'run')}"
    if allowed := next((point.allowed for point in case.points if point.allowed), ""):
        figure += f"; allowed by fingerprint.may_differ: {allowed}"
    if len(samples) > 1:
        figure += f"; {samples[0]:,} to {samples[-1]:,} samples trained, so times are compared by the sample"
    return Found("pass", figure)


def _through_slurm(case: Case, parameters: Parameters) -> Found:
    jobs = list(dict.fromkeys(run.job.id for run in case.all_runs if run.job))
    if simulated := [point for point in case.points if point.simulated]:
        figure = f"{_names(simulated)}: {simulated[0].simulated}"
        return Found("fail", figure, "run it on the centre's nodes: snakemake --profile profiles/slurm")
    if local := [job for job in jobs if job.startswith("local-")]:
        figure = f"not in Slurm: {in_short(local)}"
        return Found("fail", figure, "run it on the centre's machine: snakemake --profile profiles/slurm")
    partitions = {job.slurm.partition for job in case.view.results.plan.jobs if job.slurm.partition}
    where = f", partition {', '.join(sorted(partitions))}" if partitions else ""
    figure = f"Slurm jobs {in_short(jobs, 8)}, site {case.view.results.plan.site}{where}"
    return Found("pass", figure, "check that this is the centre's machine")


def _run_length(case: Case, parameters: Parameters) -> Found:
    walls = [(run.timing.wall_s, run) for point in case.points for run in case.runs[str(point.scale)] if run.timing]
    shortest_s, run = min(walls, key=lambda each: each[0])
    shares = [(point.startup_s / point.wall_s, point) for point in case.points if point.startup_s and point.wall_s]
    figure = f"shortest run {duration(shortest_s)} ({run.spec.scale})"
    if len(shares) < len(case.points):
        unknown = f"{figure}; the start-up was not recorded"
        if shortest_s < parameters["min_run_s"]:
            return Found("fail", unknown, LONGER)
        return Found("cannot be checked", unknown, "let the script run under the instrument, not from its log")
    share, worst = max(shares, key=lambda each: each[0])
    figure += f"; start-up at most {100 * share:.1f} % of a run ({worst.scale})"
    good = shortest_s >= parameters["min_run_s"] and share <= parameters["max_startup_fraction"]
    wanted = f"; wanted at least {duration(parameters['min_run_s'])} and at most "
    wanted += f"{100 * parameters['max_startup_fraction']:.0f} %"
    return Found("pass", figure) if good else Found("fail", figure + wanted, LONGER)


def _by_total_time(case: Case, parameters: Parameters) -> Found:
    found: list[Compared] = []
    base, larger = case.points[0], case.points[1:]
    unknown = _not_compared(case)
    if unknown is not None:
        return unknown
    for point in larger:
        one = efficiency_by_total_time(case.runs[str(point.scale)], case.runs[str(base.scale)])
        if one is None:
            return Found("cannot be checked", f"the samples of the runs of {point.scale} were not counted")
        found.append((point, one))
    judged = _judged(case, parameters, found, "efficiency_total_time")
    return judged if judged.verdict == "fail" else _hidden_by_startup(case, parameters, judged.figure) or judged


def _hidden_by_startup(case: Case, parameters: Parameters, figure: str) -> Found | None:
    """Return that scales pass only because every scale pays the same start-up; None if there are none."""
    base = case.runs[str(case.points[0].scale)]
    without = [
        (point, found[0])
        for point in case.points[1:]
        if (found := efficiency_by_total_time(case.runs[str(point.scale)], base, with_startup=False))
        and found[0] < parameters["min_efficiency"]
    ]
    if not without:
        return None
    text = COLUMNS["efficiency_total_time"].text
    shown = ", ".join(f"{point.scale} {text(value)}" for point, value in without)
    times = [run.timing for run in case.all_runs if run.timing]
    share = max(time.startup_s / time.wall_s for time in times if time.startup_s is not None)
    figure += f"; but without the start-up, which is up to {100 * share:.0f} % of a run: {shown}"
    return Found("cannot be checked", figure, LONGER)


def _by_steps(case: Case, parameters: Parameters) -> Found:
    unknown = _not_compared(case)
    if unknown is not None:
        return unknown
    found = [(point, _steps(point, case.points[0])) for point in case.points[1:]]
    return _judged(case, parameters, found, "efficiency_smallest")


def _not_compared(case: Case) -> Found | None:
    """Return why there is no efficiency at all; None if there is one."""
    if len(case.points) == 1:
        figure = f"only {case.largest.scale} was measured: nothing to compare it with"
        return Found("cannot be checked", figure, _more_nodes(case))
    other = [point for point in case.points if point.smallest_baseline != _baseline(case)]
    if other:
        figure = f"{_names(other)} ran another program than {case.points[0].scale}: {other[-1].note}"
        return Found("cannot be checked", figure, "measure all scales with the same script, arguments and versions")
    return None


def _baseline(case: Case) -> str:
    return case.points[0].smallest_baseline


def _steps(point: ScalePoint, base: ScalePoint) -> Estimate:
    """Return the efficiency by steps against a scale, without an interval."""
    return (point.samples_per_s or 0) * base.world_size / (point.world_size * (base.samples_per_s or 1)), None, None


def _judged(case: Case, parameters: Parameters, found: Sequence[Compared], key: str) -> Found:
    text, least = COLUMNS[key].text, parameters["min_efficiency"]
    shown = [
        f"{point.scale} {text(value)} {interval(text(low), text(high)) if (low or 0) < (high or 0) else ''}".strip()
        for point, (value, low, high) in found
    ]
    figure = f"{', '.join(shown)}, against {case.points[0].scale}"
    failing = [point for point, (value, _, _) in found if value < least]
    if not failing:
        doubt = [point for point, (_, low, _) in found if low is not None and low < least]
        if doubt:
            figure += f"; the interval of {_names(doubt)} goes below {100 * least:.0f} %: more repeats tell"
        return Found("pass", figure)
    return Found("fail", figure, _smaller_or_longer(case, failing, least))


def _smaller_or_longer(case: Case, failing: Sequence[ScalePoint], least: float) -> str:
    """Return what to do for scales that do not reach an efficiency: longer runs if only their steps do."""
    slow = next((point for point in failing if _steps(point, case.points[0])[0] < least), None)
    short = [point for point in failing if slow is None or point.world_size < slow.world_size]
    parts = []
    if slow is not None:
        most = [point for point in case.points if point.world_size < slow.world_size][-1].scale
        instead = 'do what the section "Where the time goes" proposes'
        parts.append(f"the steps of {slow.scale} do not reach it: ask for at most {most}, or {instead}")
    if short:
        parts.append(
            f"at {_names(short)} the steps alone reach it, so start-up and end take too much of a run: raise "
            "measure.max_steps, measure.max_seconds or the epochs in workload.args; start again"
        )
    return "; ".join(parts)


def _wall_times(case: Case, parameters: Parameters) -> Found:
    return Found("pass", _shown("wall_s", case.points))


def _gpu_utilisation(case: Case, parameters: Parameters) -> Found:
    if case.view.unit != "GPU":
        return Found("cannot be checked", "this site has no GPU")
    unknown = [point for point in case.points if point.gpu_busy_fraction is None]
    again = "set monitor.enabled to true, see docs/monitoring.md, and measure these scales again"
    if unknown:
        return Found("fail", f"not sampled at {_names(unknown)}", again)
    figure = f"GPUs busy: {_shown('gpu_busy_fraction', case.points)}"
    if not case.pictures:
        return Found("fail", f"{figure}; no picture, as the runs were too short for one", again)
    return Found("pass", f"{figure}; pictures in {case.pictures[0].rpartition('/')[0]}/")


def _batch_script(case: Case, parameters: Parameters) -> Found:
    script = case.job_scripts.get(str(case.largest.scale))
    if script is None:
        return Found(
            "fail", f"no job.sh of {case.largest.scale}", "keep results/runs: each run's directory has its job.sh"
        )
    return Found("pass", script)


def _by_a_person(case: Case, parameters: Parameters) -> Found:
    return Found("cannot be checked", "only a person knows", "fill in the marks in proposal.md")


def _speedup_table(case: Case, parameters: Parameters) -> Found:
    compared = [point for point in case.series if point.speedup_smallest is not None]
    if len(compared) < 2:
        return Found("fail", f"{count(len(compared), 'scale')} with a speed-up", "measure a second scale")
    last = compared[-1]
    return Found("pass", f"speed-up over {last.smallest_baseline}: {_shown('speedup_smallest', compared)}")


def _partition_limit(case: Case, parameters: Parameters) -> Found:
    partitions = sorted({job.slurm.partition for job in case.view.results.plan.jobs if job.slurm.partition})
    figure = f"largest run: {case.largest.scale}; the records do not hold the limit of a partition"
    return Found(
        "cannot be checked", figure, f"compare with MaxNodes of scontrol show partition {' '.join(partitions)}".strip()
    )


def _repeats(case: Case, parameters: Parameters) -> Found:
    few = [point for point in case.points if point.repeats < parameters["least"]]
    figure = f"runs of each scale: {_shown('repeats', case.points)}"
    next_step = f"set repeats to {parameters['least']:.0f} in config.yaml and start snakemake again"
    return Found("fail", figure, next_step) if few else Found("pass", figure)


def _no_failed_runs(case: Case, parameters: Parameters) -> Found:
    failed = [name for group in case.view.failures for name in group.runs]
    if failed:
        return Found("fail", f"failed: {in_short(failed)}", case.view.failures[0].failure.next)
    return Found("pass", f"{count(len(case.all_runs), 'run')}, none failed")


@dataclass(frozen=True)
class Check:
    """A check and the parameters that a rule must give it."""

    judge: Callable[[Case, Parameters], Found]
    parameters: tuple[str, ...] = ()


CHECKS: Mapping[str, Check] = {
    "node counts": Check(_node_counts, ("least",)),
    "same input": Check(_same_input),
    "through Slurm": Check(_through_slurm),
    "run length": Check(_run_length, ("min_run_s", "max_startup_fraction")),
    "efficiency by total time": Check(_by_total_time, ("min_efficiency",)),
    "efficiency by steps": Check(_by_steps, ("min_efficiency",)),
    "wall times": Check(_wall_times),
    "speed-up table": Check(_speedup_table),
    "partition limit": Check(_partition_limit),
    "GPU utilisation": Check(_gpu_utilisation),
    "batch script": Check(_batch_script),
    "repeats": Check(_repeats, ("least",)),
    "no failed runs": Check(_no_failed_runs),
    "by a person": Check(_by_a_person),
}
