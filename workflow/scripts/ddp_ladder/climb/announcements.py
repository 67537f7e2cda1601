"""What a start says before it begins: what it has to measure, and doubts about the settings and the data."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from ddp_ladder.climb.ladder import Ladder
from ddp_ladder.climb.to_do import runs_of_edited_scripts
from ddp_ladder.climb.written_secrets import missing_secrets, written_secrets
from ddp_ladder.common import meant
from ddp_ladder.common.formats import in_short
from ddp_ladder.common.messages import UserError
from ddp_ladder.common.redaction import redacted_arguments
from ddp_ladder.gates.verdict import gate_files
from ddp_ladder.nodes.findings import MUCH_OF_OTHERS
from ddp_ladder.nodes.sampler import cpu_times, cpu_use
from ddp_ladder.plan.file import read_plan
from ddp_ladder.preflight.variables import check_variables
from ddp_ladder.run.training_data import data_problem
from ddp_ladder.settings.models import Settings
from ddp_ladder.settings.secrets import marked
from ddp_ladder.settings.sources import Sources


def check_data(ladder: Ladder, stages: Sequence[str], on_nodes: bool, dry_run: bool) -> list[str]:
    """Return warnings about missing training data. Raises UserError if no run can find them; a dry run only warns.

    on_nodes: whether the training may run on other machines.
    """
    found = data_problem(ladder.settings.experiment, on_nodes) if ladder.measures(stages) else None
    if found is None:
        return []
    outcome, problem = found
    if outcome == "FAIL" and not dry_run:
        raise UserError(problem)
    return [f"warning: {problem}"]


def check_secrets(ladder: Ladder, sources: Sources, stages: Sequence[str], dry_run: bool) -> list[str]:
    """Return warnings about secrets that would be written. Raises UserError if one is missing; a dry run only warns."""
    if not ladder.measures(stages):
        return []
    missing = missing_secrets(ladder.settings, os.environ)
    if missing and not dry_run:
        raise UserError(missing)
    written = list(written_secrets(ladder.settings))
    config, cluster = sources.documents() if written else (None, None)
    found = [
        replace(problem, where=document.where(*path))
        for file, path, problem in written
        if (document := config if file == "config" else cluster)
    ]
    return [f"warning: {problem}" for problem in (*missing, *found)]


def variable_warnings(ladder: Ladder, sources: Sources, stages: Sequence[str] | None) -> list[str]:
    """Return warnings about environment variables that no communication library reads.

    stages: those that a start climbs; None for a preflight alone.
    """
    if stages is not None and not ladder.measures(stages):
        return []
    return [f"warning: {problem}" for problem in check_variables(ladder.settings, sources, os.environ)]


def check_load(ladder: Ladder, stages: Sequence[str], sampled_s: float = 0.5) -> list[str]:
    """Return a warning if other processes use much of this machine, on which the runs are about to start."""
    if not ladder.measures(stages):
        return []
    try:
        usable = os.sched_getaffinity(0)
        before = cpu_times()
        time.sleep(sampled_s)
        busy = (cpu_use(before, cpu_times(), usable).usable or 0.0) * len(usable)
    except (AttributeError, OSError, ValueError):  # no Linux, or no /proc
        return []
    if busy <= MUCH_OF_OTHERS * len(usable):
        return []
    return [
        f"warning: other processes use {busy:.1f} of the {len(usable)} CPUs of this machine: the training gets the "
        "rest, and its figures will be low and vary. Press Ctrl-C, end those processes (see `top`), and start again"
    ]


def announcements(ladder: Ladder, stages: Sequence[str]) -> list[str]:
    """Return the lines that a start prints before it begins."""
    lines = []
    if not ladder.measures(stages):
        known = "every run has a good record of these settings"
        lines.append(f"nothing to measure: {known}; the gates are judged again")
    jobs = ladder.settings.experiment.jobs
    if jobs > 1 and not ladder.several_jobs():
        lines.append(
            f"jobs: {jobs} has no effect in this start: without Slurm, and in an allocation, a scale has one job"
        )
    lines += _another_start(ladder)
    for stage in stages:
        opened, closed = gate_files(Path(ladder.results) / "gates", stage)
        if opened.exists() and closed.exists():
            lines.append(f"warning: {opened}: {closed.name} is beside it; neither counts, the gate is judged again")
    lines += [f"warning: {doubt}" for doubt in _doubtful_texts(ladder.settings)]
    edited = [run for run in runs_of_edited_scripts(ladder.plan, ladder.runs) if run.stage in stages]
    for script in dict.fromkeys(run.script for run in edited):
        names = [run.name for run in edited if run.script == script]
        lines.append(
            f"warning: {script} has changed since it ran as {in_short(names)}; these runs are kept, and not "
            "compared with runs of another version. To repeat them, delete their directories below "
            f"{ladder.results}/runs"
        )
    return lines


def _another_start(ladder: Ladder) -> Iterator[str]:
    """Yield what becomes of the runs there are if the ladder now starts at another scale."""
    try:
        before = read_plan(Path(ladder.results) / "plan.json").first_scale
    except UserError:
        return  # there is no plan yet, or what needs it reports it
    if before != (now := ladder.plan.first_scale):
        yield (
            f"warning: the ladder started at {before}, and now starts at {now}, its new baseline: runs whose batch, "
            "learning rate or stage changes with it are measured again, and those of scales that are no longer planned "
            "stay on disk, and are in no report"
        )


def _doubtful_texts(settings: Settings) -> Iterator[str]:
    """Yield a doubt on each argument and variable that the user seems to mean otherwise than the script gets it."""
    work, network = settings.experiment.workload, settings.site.network
    variants = settings.experiment.variants
    arguments: list[tuple[str, Iterable[str]]] = [
        ("workload.args", redacted_arguments(work.args)),
        ("workload.prepare", redacted_arguments(work.prepare or ())),
        *((f"variants.{each.name}.args", redacted_arguments(each.args)) for each in variants),
    ]
    variables: list[tuple[str, Iterable[str]]] = [
        ("workload.env", marked(work.env).values()),
        ("network.env", marked(network.env).values()),
        *((f"variants.{each.name}.env", marked(each.env).values()) for each in variants),
    ]
    for key, text in ((key, text) for key, texts in arguments for text in texts):
        if re.match(r"--?[A-Za-z][\w-]* \S", text):
            yield f"{key}: {text!r} reaches the script as one word; write its parts as items of the list"
    for key, text in ((key, text) for key, texts in (*arguments, *variables) for text in texts):
        if meant.has_variables(text):
            yield f"{key}: {text} reaches the script as it is, without the variable's value; {meant.path(text)}"
