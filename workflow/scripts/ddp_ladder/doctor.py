"""The doctor: everything that can be known before a run, as a list of findings, each with what to do about it."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import yaml

from ddp_ladder import doctor_software, network
from ddp_ladder.files import NotWritten, check_room, nearest
from ddp_ladder.findings import Finding, Section
from ddp_ladder.ladder import Ladder
from ddp_ladder.messages import UserError
from ddp_ladder.settings import Settings
from ddp_ladder.slurm_check import check_jobs
from ddp_ladder.slurm_facts import Offer
from ddp_ladder.slurm_offer import read_offer
from ddp_ladder.slurm_query import SlurmError, run_command
from ddp_ladder.snakemake_settings import Sources

PROFILE = Path("profiles/slurm/config.yaml")
SHARED = (
    "nfs lustre gpfs beegfs ceph fuse.ceph wekafs panfs pvfs2 orangefs glusterfs fuse.glusterfs smb cifs afs".split()
)
ALONE = "tmpfs ramfs overlay ext2 ext3 ext4 xfs btrfs zfs f2fs apfs hfs".split()
SPACE_FOR_RESULTS_MB = 1000
TOO_LITTLE_SPACE_MB = 50
# Resources that each rule sets for itself; a profile's values would replace them.
OF_THE_RULES = ("mpi", "nodes", "tasks", "tasks_per_gpu", "gres", "cpus_per_task", "mem_mb", "runtime")
LOGIN_NODE = "run `snakemake doctor` on a login node of the cluster"


def examine(sources: Sources, profile: Path = PROFILE, base_env: Mapping[str, str] = os.environ) -> list[Section]:
    """All findings, by section."""
    sections: list[Section] = [("Versions", list(doctor_software.workflow_versions()))]
    try:
        ladder = Ladder.of(sources.load())
    except UserError as error:
        mistakes = [Finding.of(problem, "settings") for problem in error.problems]
        rest = Finding("not checked", "all else", "it needs valid settings", "mend them and run the doctor again")
        return [*sections, ("Settings", [*mistakes, rest])]
    site, on_a_cluster = ladder.settings.site, has_slurm()
    sections += [
        ("Settings", [*settings(ladder, sources), *profile_findings(profile)]),
        ("Files", [*results(ladder, on_a_cluster), *workload(ladder)]),
        ("Training software", list(doctor_software.site_python(ladder.plan.runs[0], site, base_env))),
        ("Network", list(interface(ladder.settings, network.addresses(), on_a_cluster))),
        ("Slurm", list(slurm(ladder, on_a_cluster))),
    ]
    return sections


def has_slurm() -> bool:
    """Whether this machine belongs to a cluster: Slurm's commands are here, and find a configuration."""
    if shutil.which("scontrol") is None:
        return False
    try:
        run_command(["scontrol", "ping"])
    except SlurmError as error:
        return "configuration source" not in str(error)
    return True


def failed(sections: Collection[Section]) -> bool:
    """Whether anything is wrong, rather than only doubtful."""
    return any(finding.outcome == "FAIL" for _, findings in sections for finding in findings)


# Settings


def settings(ladder: Ladder, sources: Sources) -> Iterator[Finding]:
    """That they could be read, and what they come to."""
    runs, jobs = len(ladder.plan.runs), len(ladder.plan.jobs)
    yield Finding("pass", "experiment", f"{sources.config}: {runs} runs in {jobs} jobs")
    yield Finding("pass", "site", f"{sources.cluster}: {ladder.settings.site.name}")


def profile_findings(profile: Path) -> Iterator[Finding]:
    """The profile for Slurm: what would keep the ladder from working with it."""
    topic = "Slurm profile"
    try:
        data = yaml.safe_load(profile.read_text())
    except (OSError, yaml.YAMLError) as error:
        reason = (str(getattr(error, "strerror", None) or error).splitlines() or ["unreadable"])[0]
        yield Finding("FAIL", topic, f"{profile}: {reason}", "take it from the project again: git checkout profiles")
        return
    if not isinstance(data, dict):
        yield Finding("FAIL", topic, f"{profile}: holds no settings", "git checkout profiles")
        return
    wrong = list(profile_problems(data, doctor_software.executor_settings()))
    for what, advice in wrong:
        yield Finding("FAIL", topic, f"{profile}: {what}", advice)
    if not wrong:
        yield Finding("pass", topic, str(profile))


def profile_problems(data: Mapping[str, Any], known: Collection[str]) -> Iterator[tuple[str, str]]:
    """What is wrong and what to do. known: options of the installed executor; empty when there is none."""
    if data.get("executor") != "slurm":
        yield f"executor: {data.get('executor')}, not slurm", "set executor: slurm"
    if "jobs" not in data:
        yield "jobs is missing, without which Snakemake submits nothing", "add jobs: 8"
    if "cores" in data:
        yield "cores: would limit the cores of a job", "remove it"
    for key in ("retries", "restart-times"):
        if data.get(key):
            yield f"{key}: {data[key]} would repeat jobs that the ladder repeats by itself", f"set {key}: 0"
    if data.get("slurm-requeue"):
        yield "slurm-requeue: a requeued job would run beside what is left of it", "set slurm-no-requeue: true"
    for key in ("default-resources", "set-resources", "resources"):
        for name in sorted(_resource_names(data.get(key)) & set(OF_THE_RULES)):
            yield f"{key}: {name} would change what the plan asks for", "remove it: the plan decides"
    for key in data:
        if known and key.startswith("slurm-") and key not in known:
            yield f"{key}: the installed Slurm executor has no such option", "remove it, or update the executor"


def _resource_names(value: Any) -> set[str]:
    """Names in ``[name=value]``, ``{name: value}`` or ``{rule: {name: value}}``."""
    if isinstance(value, Mapping):
        inner = [name for each in value.values() if isinstance(each, Mapping) for name in each]
        return {str(name).partition("=")[0].split(":")[-1] for name in (*value, *inner)}
    items = value if isinstance(value, list) else [] if value is None else [value]
    return {str(item).partition("=")[0].split(":")[-1].strip() for item in items}


# Files


def results(ladder: Ladder, on_a_cluster: bool) -> Iterator[Finding]:
    """Whether results can be written, by the compute nodes as well, and whether there is room."""
    wanted = Path(ladder.results).absolute()
    there = nearest(wanted)
    key = f"{ladder.settings.experiment.file}: results"
    try:
        check_room(wanted)
    except NotWritten as error:
        advice = "choose another directory for results, or have its permissions changed"
        yield Finding("FAIL", "results", f"{key}: {there}: {error.strerror}", advice)
        return
    yield Finding("pass", "results", f"{ladder.results} can be written")
    yield shared_directory(there, filesystem(there), on_a_cluster)
    free_mb = shutil.disk_usage(there).free // 1_000_000
    advice = "free some space, or choose another directory for results"
    if free_mb < TOO_LITTLE_SPACE_MB:
        yield Finding("FAIL", "disk space", f"{key}: {free_mb} MB free", advice)
    elif free_mb < SPACE_FOR_RESULTS_MB:
        yield Finding("warn", "disk space", f"{key}: {free_mb} MB free", advice)
    else:
        yield Finding("pass", "disk space", f"{free_mb / 1000:.0f} GB free")


def filesystem(path: Path) -> str:
    """Type of the file system that holds a path; empty where the system does not tell."""
    real = path.resolve()
    mounts = [each for each in psutil.disk_partitions(all=True) if real.is_relative_to(each.mountpoint)]
    return max(mounts, key=lambda each: len(each.mountpoint)).fstype if mounts else ""


def shared_directory(path: Path, kind: str, on_a_cluster: bool) -> Finding:
    """Whether compute nodes see a directory, judged by the kind of its file system."""
    topic = "shared directory"
    if not on_a_cluster:
        return Finding("pass", topic, "not needed: no Slurm here, everything runs on this machine")
    if any(kind.startswith(name) for name in SHARED):
        return Finding("pass", topic, f"{path} is on {kind}")
    alone = "a file system of one machine" if kind in ALONE else "which may not be shared"
    return Finding(
        "warn",
        topic,
        f"{path} is on {kind or 'an unknown file system'}, {alone}; compute nodes must see it under this name",
        f"look from a compute node: srun --nodes=1 ls {path}; if it is not there, move the project to one that is",
    )


def workload(ladder: Ladder) -> Iterator[Finding]:
    """The training script and its data; a script that is missing is a mistake in the settings."""
    work = ladder.settings.experiment.workload
    if not work.script.startswith("-m "):  # a module is looked for by the training's Python
        yield Finding("pass", "workload", work.script)
    if not ladder.prepared_data:
        return
    if Path(ladder.data_marker).exists():
        yield Finding("pass", "data", f"{work.data_dir}, prepared")
    else:
        yield Finding("pass", "data", f"{work.data_dir}, not there yet: the first start prepares it on this machine")


# Network


def interface(settings: Settings, here: Collection[str], on_a_cluster: bool) -> Iterator[Finding]:
    """here: names of this machine's interfaces."""
    topic, wanted = "interface", settings.site.network.interface
    where = f"{settings.site.file}: network.interface"
    several_nodes = any(scale.nodes > 1 for stage in settings.experiment.stages for scale in stage.scales)
    names = {wanted} if isinstance(wanted, str) else set(wanted.values())
    if "lo" in names and several_nodes and on_a_cluster:
        advice = "set it to auto, or to what `srun ip -brief address` shows"
        yield Finding("FAIL", topic, f"{where}: lo does not lead to other nodes", advice)
    elif names == {"auto"}:
        yield Finding(
            "pass", topic, "auto: each node takes the way to the first one" if on_a_cluster else "auto: the loopback"
        )
    elif missing := sorted(names - {"auto"} - set(here)):
        text = f"{where}: this machine has no {', '.join(missing)}; it has {', '.join(sorted(here))}"
        if on_a_cluster:
            yield Finding("not checked", topic, text, "look at a compute node: srun ip -brief address")
        else:
            yield Finding("warn", topic, text, f"use one of these, or auto; to check another cluster's, {LOGIN_NODE}")
    else:
        yield Finding("pass", topic, ", ".join(sorted(names)))


# Slurm


def slurm(ladder: Ladder, on_a_cluster: bool) -> Iterator[Finding]:
    """Whether Slurm takes every job of the plan."""
    if not on_a_cluster:
        yield Finding("not checked", "jobs", "no Slurm here", LOGIN_NODE)
    else:
        try:
            offer = read_offer()
        except UserError as error:
            yield from (Finding.of(problem, "controller") for problem in error.problems)
            yield Finding("not checked", "jobs", "Slurm does not answer", LOGIN_NODE)
            return
        yield from judge_jobs(ladder, offer)


def architecture(ladder: Ladder, offer: Offer, here: str) -> Iterator[Finding]:
    """Whether this machine's programs run on the nodes of the jobs; nothing where they do, or it is not known.

    here: this machine's, as ``uname -m`` tells it.
    """
    wanted = {name for job in ladder.plan.jobs for name in (job.slurm.partition or "").split(",") if name}
    nodes = [node for node in offer.nodes if not wanted or wanted & {*node.partitions}]
    other = sorted({node.architecture for node in nodes} - {here, ""})
    if other:
        yield Finding(
            "FAIL" if len(other) == len({node.architecture for node in nodes}) else "warn",
            "architecture",
            f"this machine is {here}, compute nodes are {', '.join(other)}: no Python runs on both",
            "climb on a compute node, with an environment that was set up there: `snakemake eject`, then "
            f"`sbatch {ladder.results}/climb.sh`, which tells how",
        )


def judge_jobs(ladder: Ladder, offer: Offer) -> Iterator[Finding]:
    """Every job of the plan against what Slurm offers."""
    yield Finding("pass", "controller", f"Slurm {offer.version} answers; partitions: {', '.join(offer.partitions)}")
    yield from architecture(ladder, offer, platform.machine())
    verdict = check_jobs(ladder.plan.jobs, ladder.settings, offer)
    yield from (Finding.of(problem, "jobs") for problem in verdict.wrong)
    yield from (Finding.of(problem, "jobs", "warn") for problem in verdict.waits)
    if not verdict.wrong:
        scales = " ".join(str(job.scale) for job in ladder.plan.jobs)
        yield Finding("pass", "jobs", f"Slurm can take all of them: {scales}")
    for what in verdict.not_checked:
        yield Finding("not checked", "accounting", what, "nothing, unless the site's documentation speaks of them")
