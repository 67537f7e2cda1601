"""The doctor: everything that can be checked before a run, as a list of findings, each with what to do."""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ddp_ladder.climb.executor import BELOW, DISTRIBUTION, INSTALL, OLDEST
from ddp_ladder.climb.ladder import Ladder
from ddp_ladder.common.files import ALONE, SCRIPTS, NotWritten, check_room, filesystem, is_shared, nearest
from ddp_ladder.common.formats import dotted
from ddp_ladder.common.messages import Problem, UserError, printable
from ddp_ladder.node import network
from ddp_ladder.node.software import SetUpError, environment
from ddp_ladder.plan.plan import RunSpec
from ddp_ladder.preflight.admission import check_jobs, read_partitions
from ddp_ladder.preflight.variables import check_variables
from ddp_ladder.run.training_data import data_problem
from ddp_ladder.settings.keys import Settings, Site
from ddp_ladder.settings.secrets import FROM_ENVIRONMENT
from ddp_ladder.settings.sources import Sources
from ddp_ladder.slurm.query import SlurmError, records, run_command

Outcome = Literal["pass", "warn", "FAIL", "not checked"]

WIDTH = 100
OUTCOMES: tuple[Outcome, ...] = ("FAIL", "warn", "pass", "not checked")
WORDS = {"FAIL": "failed", "warn": "warned", "pass": "passed", "not checked": "not checked"}


@dataclass(frozen=True)
class CheckResult:
    """One line of the doctor's list; next: what to do, unless it passed."""

    outcome: Outcome
    topic: str
    text: str
    next: str | None = None

    @classmethod
    def of(cls, problem: Problem, topic: str, outcome: Outcome = "FAIL") -> CheckResult:
        """Return a user's mistake as a finding."""
        details = [
            f"{label} {text}" for label, text in (("found", problem.found), ("allowed", problem.allowed)) if text
        ]
        text = f"{problem.where}: {problem.what}"
        return cls(outcome, topic, f"{text} ({'; '.join(details)})" if details else text, problem.next)


Section = tuple[str, Sequence[CheckResult]]  # title, findings


def listing(sections: Sequence[Section]) -> str:
    """Return the aligned list, with each next step below its finding and the counts at the end."""
    findings = [finding for _, found in sections for finding in found]
    topic_width = max(len(finding.topic) for finding in findings)
    lines: list[str] = []
    for title, found in sections:
        lines += ["", title] if lines else [title]
        for finding in found:
            lines += _lines(finding, topic_width)
    counts = {outcome: sum(finding.outcome == outcome for finding in findings) for outcome in OUTCOMES}
    summary = ", ".join(f"{count} {WORDS[outcome]}" for outcome, count in counts.items() if count)
    return "\n".join([*lines, "", summary])


def _lines(finding: CheckResult, topic_width: int) -> Iterator[str]:
    head = f"  {finding.outcome:<11}  {finding.topic:<{topic_width}}  "
    margin, text = " " * len(head), printable(finding.text)
    yield from textwrap.wrap(text, WIDTH, initial_indent=head, subsequent_indent=margin, break_on_hyphens=False)
    if finding.next:
        yield from textwrap.wrap(
            printable(finding.next),
            WIDTH,
            initial_indent=f"{margin}next: ",
            subsequent_indent=f"{margin}      ",
            break_on_hyphens=False,
        )


OLDEST_SITE_PYTHON = (3, 9)
OLDEST_TORCH = (2, 4)
# Distribution, its name in the list, the versions that requirements.txt allows: from, and below.
PACKAGES = (
    ("snakemake", "Snakemake", (9, 3), (10,)),
    (DISTRIBUTION, "Slurm executor", OLDEST, BELOW),
    ("snakemake-executor-plugin-slurm-jobstep", "Slurm job step", (0, 6), (1,)),
)
TORCH_NOT_INSTALLED = "No module named 'torch'"  # of a Python's report why it cannot import torch
NAMES_THE_CAUSE = (
    "the message names the cause: the installation of torch, or a variable of workload.env, network.env or the shell"
)
IMPORT_WITHIN_S = 180  # torch on a cold network file system takes long
PROBE = SCRIPTS / "ddp_ladder/node/python_probe.py"


def version_tuple(text: str) -> tuple[int, ...]:
    """Return the numbers at the beginning of a version: ``2.8.0+cu128`` is (2, 8, 0)."""
    form = re.match(r"\d+(\.\d+)*", text)
    return tuple(int(part) for part in form[0].split(".")) if form else ()


def workflow_versions() -> Iterator[CheckResult]:
    """List the Python that runs Snakemake, which is new enough, and check the versions of the packages."""
    yield CheckResult("pass", "Python", f"{dotted(sys.version_info[:3])} ({sys.executable})")
    for distribution, topic, oldest, below in PACKAGES:
        yield package_version(distribution, topic, oldest, below)


def package_version(distribution: str, topic: str, oldest: tuple[int, ...], below: tuple[int, ...]) -> CheckResult:
    """Check that an installed package has a version that the ladder was tested with."""
    wanted = f"{dotted(oldest)} or newer, below {dotted(below)}"
    try:
        found = importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return CheckResult("FAIL", topic, f"{distribution} is not installed; wanted {wanted}", INSTALL)
    if oldest <= version_tuple(found) < below:
        return CheckResult("pass", topic, found)
    return CheckResult("FAIL", topic, f"{found}; wanted {wanted}", INSTALL)


def site_python(spec: RunSpec, site: Site, base_env: Mapping[str, str]) -> Iterator[CheckResult]:
    """Check the training's software, set up on this machine as it would be on a node."""
    try:
        env = environment(spec, base_env)
    except SetUpError as error:
        yield CheckResult(
            "FAIL",
            "environment",
            f"{site.file}: {' / '.join(str(error).splitlines()[:4])}",
            "try the same in a shell here; if only compute nodes have it, in a shell there: srun --pty bash",
        )
        yield CheckResult("not checked", "training Python", "it needs the environment", "fix that first")
        return
    if spec.modules or spec.setup.strip():
        done = [*spec.modules, *(["the setup snippet"] if spec.setup.strip() else [])]
        yield CheckResult("pass", "environment", ", ".join(done))
    env |= {name: value for name, value in spec.env.items() if value != FROM_ENVIRONMENT}
    if spec.container is not None:
        yield from _container(spec.container, site, env)
        return
    yield from _training_python(spec, site, env)


def _container(container: Mapping[str, Any], site: Site, env: Mapping[str, str]) -> Iterator[CheckResult]:
    engine, image = container["engine"], container["image"]
    where = f"{site.file}: software.container"
    program = shutil.which(engine, path=env.get("PATH"))
    if program is not None:
        yield CheckResult("pass", "container engine", program)
    else:
        advice = f"load its module in software.modules, or check that the compute nodes have it: srun which {engine}"
        yield CheckResult("FAIL", "container engine", f"{where}.engine: there is no {engine} here", advice)
    if "://" in image:
        yield CheckResult(
            "warn",
            "container image",
            f"{where}.image: {image} is fetched again by every node",
            f"fetch it once: {engine} pull image.sif {image}",
        )
    elif Path(image).exists():
        yield CheckResult("pass", "container image", image)
    else:
        yield CheckResult("FAIL", "container image", f"{where}.image: there is no {image}", "correct the path")
    look = f"try it: {engine} exec {image} {site.software.python} -c 'import torch'"
    yield CheckResult("not checked", "training Python", f"{site.software.python} is inside the image", look)


def _training_python(spec: RunSpec, site: Site, env: Mapping[str, str]) -> Iterator[CheckResult]:
    topic, where = "training Python", f"{site.file}: software.python"
    program = spec.python or sys.executable
    path = shutil.which(program, path=env.get("PATH"))
    if path is None:
        advice = "write its full path, or name in software.modules the modules that bring it"
        yield CheckResult("FAIL", topic, f"{where}: there is no {program} here", advice)
        return
    module = spec.script[3:] if spec.script.startswith("-m ") else ""
    try:
        report = _probe(path, module, env)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        yield CheckResult("FAIL", topic, f"{where}: {program} does not start: {error}", f"try it: {program} --version")
        return
    yield from judge_python(report, program, where, site.node.device)
    if module:
        if report.get("module"):
            yield CheckResult("pass", "workload", spec.script)
        else:
            advice = "install it for that Python, or correct workload.script"
            yield CheckResult("FAIL", "workload", f"{spec.script}: {program} has no such module", advice)


def _probe(path: str, module: str, env: Mapping[str, str]) -> dict[str, Any]:
    """Return a Python's report on itself. Raises OSError, ValueError or SubprocessError if it gives none."""
    done = subprocess.run(
        [path, "-c", PROBE.read_text(), module],
        env=dict(env),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=IMPORT_WITHIN_S,
        check=False,
    )
    if done.returncode:
        raise ValueError((done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"])[-1])
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return report


def judge_python(report: Mapping[str, Any], program: str, where: str, device: str) -> Iterator[CheckResult]:
    """Check the versions of the training's Python and torch against what the instrumentation needs."""
    topic, version = "training Python", tuple(report["python"])
    if version < OLDEST_SITE_PYTHON:
        wanted = f"wanted {dotted(OLDEST_SITE_PYTHON)} or newer"
        yield CheckResult("FAIL", topic, f"{where}: {program} is {dotted(version)}; {wanted}", "name a newer one")
    else:
        yield CheckResult("pass", topic, f"{dotted(version)} ({report['executable']})")
    if "torch" not in report:
        advice = NAMES_THE_CAUSE
        if TORCH_NOT_INSTALLED in report["error"]:
            own = "`make setup TRAINING=1` adds torch to it" if program == sys.executable else "install torch for it"
            advice = f"{own}, or name in {where.rpartition(' ')[2]} the Python that you train with"
        yield CheckResult("FAIL", "torch", f"{where}: {program} cannot import torch: {report['error']}", advice)
    elif version_tuple(report["torch"]) < OLDEST_TORCH:
        wanted = f"wanted {dotted(OLDEST_TORCH)} or newer"
        yield CheckResult(
            "FAIL", "torch", f"{where}: {program} has torch {report['torch']}; {wanted}", "install a newer one"
        )
    elif device == "cuda" and report["cuda"] is None:
        advice = "install a torch with CUDA for it, or set node.device: cpu"
        yield CheckResult("FAIL", "torch", f"{report['torch']} is built without CUDA, and node.device is cuda", advice)
    else:
        yield CheckResult("pass", "torch", f"{report['torch']}, built {_cuda(report['cuda'])}")


def _cuda(version: str | None) -> str:
    return f"for CUDA {version}" if version else "without CUDA"


SPACE_FOR_RESULTS_MB = 1000
TOO_LITTLE_SPACE_MB = 50
LOGIN_NODE = "run `snakemake doctor` on a login node of the cluster"


def examine(sources: Sources, base_env: Mapping[str, str] = os.environ) -> list[Section]:
    """Return all findings, by section."""
    sections: list[Section] = [("Versions", list(workflow_versions()))]
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
        ("Training software", list(site_python(ladder.plan.runs[0], site, base_env))),
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
