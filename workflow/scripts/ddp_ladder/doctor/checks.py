"""The doctor: everything that can be checked before a run, as a list of findings, each with what to do."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from ddp_ladder.climb.ladder import Ladder
from ddp_ladder.common.file_systems import ALONE, filesystem, is_shared
from ddp_ladder.common.files import NotWritten, check_room, nearest
from ddp_ladder.common.messages import UserError
from ddp_ladder.doctor import software
from ddp_ladder.doctor.check_results import CheckResult, Section
from ddp_ladder.node import network
from ddp_ladder.preflight.admission import check_jobs, read_partitions
from ddp_ladder.preflight.variables import check_variables
from ddp_ladder.run.training_data import data_problem
from ddp_ladder.settings.keys import Settings
from ddp_ladder.settings.sources import Sources
from ddp_ladder.slurm.query import SlurmError, records, run_command

SPACE_FOR_RESULTS_MB = 1000
TOO_LITTLE_SPACE_MB = 50
LOGIN_NODE = "run `snakemake doctor` on a login node of the cluster"


def examine(sources: Sources, base_env: Mapping[str, str] = os.environ) -> list[Section]:
    """Return all findings, by section."""
    sections: list[Section] = [("Versions", list(software.workflow_versions()))]
    try:
        ladder = Ladder.of(sources.load())
    except UserError as error:
        mistakes = [CheckResult.of(problem, "settings") for problem in error.problems]
        rest = CheckResult("not checked", "all else", "it needs valid settings", "fix them and run the doctor again")
        return [*sections, ("Settings", [*mistakes, rest])]
    site, on_a_cluster = ladder.settings.site, has_slurm()
    sections += [
        ("Settings", list(settings(ladder, sources))),
        ("Files", [*results(ladder, on_a_cluster), *workload(ladder, on_a_cluster)]),
        ("Training software", list(software.site_python(ladder.plan.runs[0], site, base_env))),
        ("Network", _network(ladder, on_a_cluster, base_env)),
        ("Slurm", list(slurm(ladder, on_a_cluster))),
    ]
    return sections


def has_slurm() -> bool:
    """Return True if this machine belongs to a cluster: Slurm's commands exist and find a configuration."""
    if shutil.which("scontrol") is None:
        return False
    try:
        run_command(["scontrol", "ping"])
    except SlurmError as error:
        return "configuration source" not in str(error)
    return True


def failed(sections: Collection[Section]) -> bool:
    """Return True if a finding is a FAIL, not only a warning."""
    return any(finding.outcome == "FAIL" for _, findings in sections for finding in findings)


# Settings


def settings(ladder: Ladder, sources: Sources) -> Iterator[CheckResult]:
    """Yield that the settings were read, and how many runs and jobs they give."""
    runs, jobs = len(ladder.plan.runs), len(ladder.plan.jobs)
    yield CheckResult("pass", "experiment", f"{ladder.settings.experiment.file}: {runs} runs in {jobs} jobs")
    yield CheckResult("pass", "site", f"{sources.cluster}: {ladder.settings.site.site}")


# Files


def results(ladder: Ladder, on_a_cluster: bool) -> Iterator[CheckResult]:
    """Check whether results can be written, by the compute nodes as well, and whether there is room."""
    wanted = Path(ladder.results).absolute()
    there = nearest(wanted)
    key = f"{ladder.settings.experiment.file}: results"
    try:
        check_room(wanted)
    except NotWritten as error:
        advice = "choose another directory for results, or have its permissions changed"
        yield CheckResult("FAIL", "results", f"{key}: {there}: {error.strerror}", advice)
        return
    yield CheckResult("pass", "results", f"{ladder.results} can be written")
    yield shared_directory(there, filesystem(there), on_a_cluster)
    free_mb = shutil.disk_usage(there).free // 1_000_000
    advice = "free some space, or choose another directory for results"
    if free_mb < TOO_LITTLE_SPACE_MB:
        yield CheckResult("FAIL", "disk space", f"{key}: {free_mb} MB free", advice)
    elif free_mb < SPACE_FOR_RESULTS_MB:
        yield CheckResult("warn", "disk space", f"{key}: {free_mb} MB free", advice)
    else:
        yield CheckResult("pass", "disk space", f"{free_mb / 1000:.0f} GB free")


def shared_directory(path: Path, kind: str, on_a_cluster: bool) -> CheckResult:
    """Check whether compute nodes see a directory, by the kind of its file system."""
    topic = "shared directory"
    if not on_a_cluster:
        return CheckResult("pass", topic, "not needed: no Slurm here, everything runs on this machine")
    if is_shared(kind):
        return CheckResult("pass", topic, f"{path} is on {kind}")
    alone = "a file system of one machine" if kind in ALONE else "which may not be shared"
    return CheckResult(
        "warn",
        topic,
        f"{path} is on {kind or 'an unknown file system'}, {alone}; compute nodes must see it under this name",
        f"look from a compute node: srun --nodes=1 ls {path}; if it is not there, move the project to one that is",
    )


def workload(ladder: Ladder, on_a_cluster: bool) -> Iterator[CheckResult]:
    """Check the training script and its data. A missing script has been reported with the settings."""
    work = ladder.settings.experiment.workload
    if not work.script.startswith("-m "):  # a module is looked for by the training's Python
        yield CheckResult("pass", "workload", work.script)
    if problem := data_problem(ladder.settings.experiment, on_a_cluster):
        yield CheckResult.of(problem[1], "data", problem[0])
    elif Path(ladder.data_marker).exists():
        yield CheckResult("pass", "data", f"{work.data_dir}, prepared")
    elif ladder.prepared_data:
        yield CheckResult(
            "pass", "data", f"{work.data_dir}, not there yet: the first start prepares it on this machine"
        )
    elif work.data_dir is not None:
        yield CheckResult("pass", "data", work.data_dir)


# Network


def _network(ladder: Ladder, on_a_cluster: bool, shell: Mapping[str, str]) -> list[CheckResult]:
    found = check_variables(ladder.settings, shell)
    variables = [CheckResult.of(problem, "variables", "warn") for problem in found] or [
        CheckResult("pass", "variables", "NCCL, RCCL, Gloo, torch, OpenMP, CUDA, HSA, libfabric, UCX: no unknown name")
    ]
    return [*interface(ladder.settings, network.addresses(), on_a_cluster), *variables]


def interface(settings: Settings, here: Collection[str], on_a_cluster: bool) -> Iterator[CheckResult]:
    """Check network.interface. here: names of this machine's interfaces."""
    topic, wanted = "interface", settings.site.network.interface
    where = f"{settings.site.file}: network.interface"
    several_nodes = any(scale.nodes > 1 for stage in settings.experiment.ladder for scale in stage.scales)
    names = {wanted} if isinstance(wanted, str) else set(wanted.values())
    if "lo" in names and several_nodes and on_a_cluster:
        advice = "set it to auto, or to what `srun ip -brief address` shows"
        yield CheckResult("FAIL", topic, f"{where}: lo does not lead to other nodes", advice)
    elif names == {"auto"}:
        yield CheckResult(
            "pass", topic, "auto: each node takes its route to the first one" if on_a_cluster else "auto: the loopback"
        )
    elif missing := sorted(names - {"auto"} - set(here)):
        text = f"{where}: this machine has no {', '.join(missing)}; it has {', '.join(sorted(here))}"
        if on_a_cluster:
            yield CheckResult("not checked", topic, text, "look at a compute node: srun ip -brief address")
        else:
            yield CheckResult(
                "warn", topic, text, f"use one of these, or auto; to check another cluster's, {LOGIN_NODE}"
            )
    else:
        yield CheckResult("pass", topic, ", ".join(sorted(names)))


# Slurm


def slurm(ladder: Ladder, on_a_cluster: bool) -> Iterator[CheckResult]:
    """Check whether Slurm takes every job of the plan."""
    if not on_a_cluster:
        yield CheckResult("not checked", "jobs", "no Slurm here", LOGIN_NODE)
    else:
        try:
            partitions = read_partitions()
            yield CheckResult("pass", "controller", f"Slurm answers; partitions: {', '.join(partitions)}")
            yield from architecture(ladder, run_command(["scontrol", "--oneliner", "show", "node"]), platform.machine())
            admission = check_jobs(ladder.plan.jobs, ladder.settings, partitions)
        except UserError as error:
            yield from (CheckResult.of(problem, "controller") for problem in error.problems)
            yield CheckResult("not checked", "jobs", "Slurm does not answer", LOGIN_NODE)
            return
        except SlurmError as error:
            yield CheckResult("not checked", "jobs", f"Slurm does not answer: {error}", LOGIN_NODE)
            return
        yield from (CheckResult.of(problem, "jobs") for problem in admission.refused)
        yield from (CheckResult.of(problem, "jobs", "warn") for problem in admission.waits)
        if not admission.refused:
            scales = " ".join(str(job.scale) for job in ladder.plan.jobs)
            yield CheckResult("pass", "jobs", f"Slurm takes all of them: {scales}")
        if admission.starts:
            yield CheckResult("pass", "start", f"if submitted now: {admission.starts_in_words}")


def architecture(ladder: Ladder, nodes: str, here: str) -> Iterator[CheckResult]:
    """Check whether this machine's programs run on the nodes of the jobs; no finding if they do, or it is not known.

    nodes: ``scontrol --oneliner show node``. here: this machine's architecture, as ``uname -m`` prints it.
    """
    wanted = {name for job in ladder.plan.jobs for name in (job.slurm.partition or "").split(",") if name}
    rows = [row for row in records(nodes, "NodeName") if not wanted or wanted & {*row.get("Partitions", "").split(",")}]
    found = {row.get("Arch", "") for row in rows} - {""}
    if other := sorted(found - {here}):
        yield CheckResult(
            "warn" if here in found else "FAIL",
            "architecture",
            f"this machine is {here}, compute nodes are {', '.join(other)}: no Python runs on both",
            "climb on a compute node, with an environment that was set up there: `snakemake eject`, then "
            f"`sbatch {ladder.results}/climb.sh`, which explains how",
        )
