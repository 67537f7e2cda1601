"""The plan as a table: what would run, on how many GPUs, for how long at most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ddp_ladder_instrument.redaction import redacted

from ddp_ladder.common.formats import count, in_short, significant, text_table
from ddp_ladder.plan.plan import Hours, Plan, RunSpec, ScaleJob
from ddp_ladder.plan.short_runs import WitnessRun, witnesses_in_words
from ddp_ladder.settings.checks import PASSES_BATCH
from ddp_ladder.settings.keys import GateThresholds
from ddp_ladder.settings.terms import ONE_GPU, Scale

HEADINGS = ("stage", "scale", "GPUs", "runs", "to do", "at most", "GPU h")


def plan_text(
    plan: Plan,
    stages: Sequence[str],
    to_do: Mapping[str, Sequence[RunSpec]],
    witnesses: Sequence[WitnessRun] = (),
) -> str:
    """Return the table of the jobs of ``stages``.

    plan: with the further repeats that have been begun among its runs. to_do: by scale, the runs still to be measured.
    witnesses: still to be made.
    """
    jobs = [job for job in plan.jobs if job.stage in stages]
    rows: list[tuple[str, ...]] = []
    unit, of_centre = plan.hour_unit, [plan.units.hours.name] if plan.units.hours else []
    to_do_cost = Hours()
    for job in jobs:
        missing, gpus = to_do.get(str(job.scale), ()), job.scale.world_size
        cost = Hours.held(job.runtime_min / 60, job.scale.nodes, job.scale.world_size) if missing else Hours()
        known = {run.name for run in (*job.runs, *missing)}
        further = sum(run.name not in known for run in job.more) if missing else 0
        to_do_cost += cost
        missing_runs, at_most = _range(len(missing), len(missing) + further), f"{job.runtime_min} min"
        hours = [f"{cost.gpus:.2f}", *(f"{cost.of_centre(unit.centre):.2f}" for _ in of_centre)]
        rows.append((job.stage, str(job.scale), str(gpus), _runs(job), missing_runs, at_most, *hours))
    table = text_table((*map(unit.of_device, HEADINGS), *of_centre), rows, wrapped="runs")
    followed = [*witnesses_in_words(jobs[0], witnesses), ""] if jobs and witnesses else []
    lines = [f"The plan for site {plan.site}:", "", *table, "", *_start(plan.first_scale), *followed]
    lines += [f"{stage} {_gate(plan.gates[stage])}" for stage in stages]
    whole = f"At most {to_do_cost.gpus:.2f} {unit.device} hours{unit.beside(to_do_cost)} from here"
    lines += ["", f"{whole}; a job ends as soon as its runs have.", ""]
    lines += _commands(jobs, plan.batch_search is not None)
    return "\n".join(lines)


def _start(first: Scale) -> list[str]:
    """Return what a ladder that starts above one GPU means; nothing for one that starts there."""
    meaning = "efficiencies are against it, and the plain baseline, of one GPU, is left out."
    return [] if first == ONE_GPU else [f"The ladder starts at {first}: {meaning}", ""]


def _runs(job: ScaleJob) -> str:
    """Return ``6 (default gloo; weak; 3 repeats)``, or ``6 to 16 (default gloo; weak; 3 to 8 repeats)``."""
    variants = " ".join(dict.fromkeys(run.variant for run in job.runs))
    modes = " ".join(dict.fromkeys(run.mode for run in job.runs))
    least = sum(run.repeat <= job.at_least for run in job.runs)
    repeats = f"{_range(job.at_least, job.at_most)} repeat{'s' if job.at_most > 1 else ''}"
    return f"{_range(least, least + len(job.more))} ({variants}; {modes}; {repeats})"


def _range(least: int, most: int) -> str:
    """Return ``3``, or ``3 to 8``."""
    return str(least) if least == most else f"{least} to {most}"


def _gate(gate: GateThresholds) -> str:
    wanted = []
    if gate.min_efficiency is not None:
        wanted.append(f"efficiency at least {100 * gate.min_efficiency:.3g} %")
    if gate.min_samples_per_s is not None:
        wanted.append(f"at least {significant(gate.min_samples_per_s)} samples/s")
    if gate.max_data_wait_fraction is not None:
        wanted.append(f"data wait at most {100 * gate.max_data_wait_fraction:.0f} %")
    return "passes its gate with sane runs" + (f" and {', '.join(wanted)}" if wanted else "")


def _commands(jobs: Sequence[ScaleJob], is_searched: bool) -> list[str]:
    """Return lines with what a run of each scale executes, and once one of each further variant.

    is_searched: the batch is still to be chosen.
    """
    lines, named, without_batch = ["What a run executes:"], set[str](), dict[str, None]()
    for job in jobs:
        firsts = dict[str, RunSpec]()
        for run in job.runs:
            firsts.setdefault(run.variant, run)
        for run in firsts.values():
            if run is job.runs[0] or run.variant not in named:
                lines += _command(run, job.runs[0], is_searched)
            named.add(run.variant)
            if not any(PASSES_BATCH.search(text) for text in (*run.args_template, *run.env_template.values())):
                without_batch[run.variant] = None
    if without_batch:
        lines += [
            "",
            f"{{batch_per_gpu}} is in no argument or variable of {in_short(list(without_batch))}: the script has a",
        ]
        lines += ["batch of its own there. Is it the batch per GPU above?"]
    return lines


def _command(run: RunSpec, first: RunSpec, is_searched: bool) -> list[str]:
    """Return what a run executes. first: of its scale; another one is named, with the variables that it changes."""
    name = str(run.scale) if run is first else f"{run.scale}, variant {run.variant}"
    batch = f"batch {run.batch_per_gpu} per GPU, {run.global_batch} in all"
    batch += ", the smallest that the first job will try" if is_searched else ""
    batch += f" ({run.accumulation} accumulated)" if run.accumulation else ""
    rate = f", learning rate {run.lr:.4g}" if run.lr is not None else ""
    threads = count(run.threads_per_rank, "thread")
    changed = [f"{key}={value}" for key, value in run.env.items() if first.env.get(key) != value]
    where = f"  (in {run.directory})" if run.directory is not None else ""
    return [
        f"  {name}: {run.launcher}, {run.backend}, {batch}{rate}, {threads} per process",
        f"    {redacted(' '.join((*changed, run.script, *run.args)))}{where}",
    ]


def changes_in_words(then: Plan, now: Plan) -> str:
    """Return a warning for results of plan ``then`` shown under the settings of ``now``; empty if nothing differs.

    Compares only what decides figures and gates; another queue or run time changes neither.
    """
    before, after = (
        {run.name: run.hash for job in plan.jobs for run in (*job.runs, *job.more)} for plan in (then, now)
    )
    changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    parts = [f"{count(len(changed), 'run')}: {in_short(changed)}"] if changed else []
    if any(then.gates[stage] != now.gates[stage] for stage in then.gates.keys() & now.gates.keys()):
        parts.append("thresholds of gates")
    if then.may_differ != now.may_differ:
        parts.append("fingerprint.may_differ")
    if not parts:
        return ""
    return (
        "the settings have changed since these runs were planned, and the results shown are of the earlier settings "
        f"({'; '.join(parts)}). Next: start snakemake again: it measures what has changed, and judges the gates"
    )
