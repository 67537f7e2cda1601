"""The doctor: what can be checked before a run, as a list of findings; and a draft of cluster.yaml, for a person.

The draft's text is workflow/templates/cluster.yaml.j2.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ddp_ladder_instrument.redaction import FROM_ENVIRONMENT
from packaging.requirements import Requirement
from packaging.version import Version

from ddp_ladder import __version__
from ddp_ladder.climb.ladder import Ladder
from ddp_ladder.climb.start import data_problem
from ddp_ladder.common.files import (
    ALONE,
    OWN,
    SCHEMAS,
    SCRIPTS,
    WORKFLOW,
    NotWritten,
    check_room,
    file_text,
    filesystem,
    is_shared,
    nearest,
    write_atomically,
)
from ddp_ladder.common.findings import DoctorKind, Finding, Severity, deciding
from ddp_ladder.common.formats import count
from ddp_ladder.common.messages import Problem, UserError, columns, fitted, notify, printable
from ddp_ladder.node.launch import is_module
from ddp_ladder.node.software import SetUpError, environment
from ddp_ladder.plan.plan import RunSpec
from ddp_ladder.platform.accelerators import ACCELERATORS, Accelerator
from ddp_ladder.platform.engines import ENGINES
from ddp_ladder.preflight.admission import (
    CHOOSE_NODES,
    NodeEntries,
    Partitions,
    allowed_qos,
    check_jobs,
    fits,
    node_in_words,
    offered,
    read_partitions,
)
from ddp_ladder.run.job_script import render
from ddp_ladder.settings import yaml
from ddp_ladder.settings.checks import check_variables
from ddp_ladder.settings.keys import Container, Site
from ddp_ladder.settings.load import Sources, flow, validated
from ddp_ladder.slurm.query import Partition, SlurmError, read_nodes, run_command, shapes_of

FAIL, WARN, PASS, NOT_CHECKED = "FAIL", "warn", "pass", "not checked"
WORDS = {FAIL: "failed", WARN: "warned", PASS: "passed", NOT_CHECKED: "not checked"}
OUTCOMES: Mapping[Severity, str] = {"error": FAIL, "warning": WARN, "note": PASS, "unknown": NOT_CHECKED}
FindingGroup = tuple[str, Sequence[Finding]]
"""Title and findings."""


def passed(topic: DoctorKind, text: str) -> Finding:
    """Return a check that passed."""
    return Finding(kind=topic, severity="note", measured=text)


def not_passed(severity: Severity, topic: DoctorKind, text: str, next_step: str) -> Finding:
    """Return a check that did not pass."""
    return Finding(kind=topic, severity=severity, measured=text, next=next_step)


def mistake(problem: Problem, topic: DoctorKind, severity: Severity = "error") -> Finding:
    """Return a user's mistake as a finding."""
    details = [f"{label} {text}" for label, text in (("found", problem.found), ("allowed", problem.allowed)) if text]
    text = f"{problem.where}: {problem.what}"
    return not_passed(severity, topic, f"{text} ({'; '.join(details)})" if details else text, problem.next or "")


def listing(sections: Sequence[FindingGroup]) -> str:
    """Return the aligned list, with each next step below its finding and the counts at the end."""
    findings = [finding for _, of_section in sections for finding in of_section]
    topic_width = max(len(finding.kind) for finding in findings)
    lines: list[str] = []
    for title, of_section in sections:
        lines += ["", title]
        for finding in of_section:
            head = f"  {OUTCOMES[finding.severity]:<11}  {finding.kind:<{topic_width}}  "
            for text in filter(None, (finding.measured, finding.next and f"next: {finding.next}")):
                below = " " * len(head)
                lines += fitted(printable(text), columns(), head, below).splitlines()
                head = below
    counts = Counter(OUTCOMES[finding.severity] for finding in findings)
    summary = ", ".join(f"{counts[result]} {word}" for result, word in WORDS.items() if counts[result])
    return "\n".join([*lines[1:], "", summary])


OLDEST_SITE_PYTHON = Version("3.9")
OLDEST_TORCH = Version("2.4")
CHECKED = ("snakemake", "snakemake-executor-plugin-slurm")  # of requirements.txt
TORCH_NOT_INSTALLED = "No module named 'torch'"  # of a Python's report why it cannot import torch
NAMES_THE_CAUSE = (
    "the message names the cause: the installation of torch, or a variable of workload.env, network.env or the shell"
)
IMPORT_WITHIN_S = 180  # torch on a cold network file system takes long
REQUIREMENTS = WORKFLOW / "requirements.txt"
INSTALL = f"{sys.executable} -m pip install -r {REQUIREMENTS}, or in a checkout of ddp-ladder `make setup`"
PROBE = SCRIPTS / "ddp_ladder/node/python_probe.py"


def workflow_versions() -> Iterator[Finding]:
    """List ddp-ladder and the Python that runs Snakemake, and check packages that requirements.txt bounds."""
    yield passed("ddp-ladder", __version__)
    yield passed("Python", f"{platform.python_version()} ({sys.executable})")
    for line in REQUIREMENTS.read_text().splitlines():
        if not line.startswith(CHECKED):
            continue
        wanted = Requirement(line)
        topic: DoctorKind = "snakemake" if wanted.name == "snakemake" else "executor-plugin-slurm"
        try:
            version = importlib.metadata.version(wanted.name)
        except importlib.metadata.PackageNotFoundError:
            version = ""
        if version and wanted.specifier.contains(version, prereleases=True):
            yield passed(topic, version)
        else:
            yield not_passed("error", topic, f"{version or 'not installed'}; wanted {wanted.specifier}", INSTALL)


def site_python(spec: RunSpec, site: Site, base_env: Mapping[str, str]) -> Iterator[Finding]:
    """Check the training's software, set up on this machine as it would be on a node."""
    try:
        env = environment(spec, base_env)
    except SetUpError as error:
        text = f"{site.file}: {' / '.join(str(error).splitlines()[:4])}"
        advice = "try the same in a shell here; if only compute nodes have it, in a shell there: srun --pty bash"
        yield not_passed("error", "environment", text, advice)
        yield not_passed("unknown", "training Python", "it needs the environment", "fix that first")
        return
    if done := [*spec.modules, *(["the setup snippet"] if spec.setup.strip() else [])]:
        yield passed("environment", ", ".join(done))
    env |= {name: value for name, value in spec.env.items() if value != FROM_ENVIRONMENT}
    container = spec.container
    yield from _training_python(spec, site, env) if container is None else _container(container, site, env)


def _container(container: Container, site: Site, env: Mapping[str, str]) -> Iterator[Finding]:
    engine, image, where = ENGINES[container.engine], container.image, f"{site.file}: software.container"
    name = engine.program
    if program := shutil.which(name, path=env.get("PATH")):
        yield passed("container engine", program)
    else:
        advice = f"load its module in software.modules, or check that the compute nodes have it: srun which {name}"
        yield not_passed("error", "container engine", f"{where}.engine: there is no {name} here", advice)
    if engine.is_name(image) or Path(image).exists():
        yield passed("container image", image)
    else:
        yield not_passed("error", "container image", f"{where}.image: there is no {image}", "correct the path")
    look = f"try it: {engine.trial(image)} {site.software.python} -c 'import torch'"
    yield not_passed("unknown", "training Python", f"{site.software.python} is inside the image", look)


def _training_python(spec: RunSpec, site: Site, env: Mapping[str, str]) -> Iterator[Finding]:
    where = f"{site.file}: software.python"
    program = spec.python or sys.executable
    path = shutil.which(program, path=env.get("PATH"))
    if path is None:
        advice = "write its full path, or name in software.modules the modules that bring it"
        yield not_passed("error", "training Python", f"{where}: there is no {program} here", advice)
        return
    notify(f"importing torch with {path}; on a cold file system this takes up to {IMPORT_WITHIN_S} s")
    try:
        report = _probe(path, site.node.device, env)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        text = f"{where}: {program} does not start: {error}"
        yield not_passed("error", "training Python", text, f"try it: {program} --version")
        return
    yield from judge_python(report, program, where, ACCELERATORS[site.node.device])


def _probe(path: str, device: str, env: Mapping[str, str]) -> dict[str, Any]:
    """Return a Python's report on itself. Raises OSError, ValueError or SubprocessError if it gives none."""
    argv, no_input = [path, "-c", PROBE.read_text(), device], subprocess.DEVNULL
    done = subprocess.run(argv, env=env, stdin=no_input, capture_output=True, text=True, timeout=IMPORT_WITHIN_S)
    if done.returncode:
        raise ValueError((done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"])[-1])
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return report


def judge_python(report: Mapping[str, Any], program: str, where: str, accelerator: Accelerator) -> Iterator[Finding]:
    """Check the versions of the training's Python and torch against what the instrumentation needs."""
    version = ".".join(map(str, report["python"]))
    if Version(version) < OLDEST_SITE_PYTHON:
        text = f"{where}: {program} is {version}; wanted {OLDEST_SITE_PYTHON} or newer"
        yield not_passed("error", "training Python", text, "name a newer one")
    else:
        yield passed("training Python", f"{version} ({report['executable']})")
    if "torch" not in report:
        advice = NAMES_THE_CAUSE
        if TORCH_NOT_INSTALLED in report["error"]:
            own = "`make setup TRAINING=1` adds torch to it" if program == sys.executable else "install torch for it"
            advice = f"{own}, or name in {where.rpartition(' ')[2]} the Python that you train with"
        yield not_passed("error", "torch", f"{where}: {program} cannot import torch: {report['error']}", advice)
    elif Version(report["torch"]) < OLDEST_TORCH:
        text = f"{where}: {program} has torch {report['torch']}; wanted {OLDEST_TORCH} or newer"
        yield not_passed("error", "torch", text, "install a newer one")
    elif accelerator.is_gpu and report["built_for"] is None:
        advice = f"install a torch with {accelerator.title} for it, or set node.device: cpu"
        text = f"{report['torch']} is built without {accelerator.title}, and node.device is {accelerator.name}"
        yield not_passed("error", "torch", text, advice)
    else:
        built = f", built for {accelerator.title} {report['built_for']}" if accelerator.is_gpu else ""
        yield passed("torch", f"{report['torch']}{built}")


LOGIN_NODE = "run `snakemake doctor` on a login node of the cluster"


def examine(sources: Sources) -> list[FindingGroup]:
    """Return all findings, by section."""
    versions: FindingGroup = ("Versions", list(workflow_versions()))
    try:
        ladder = Ladder.of(sources.load())
    except UserError as error:
        mistakes = [mistake(problem, "settings") for problem in error.problems]
        rest = not_passed("unknown", "all else", "it needs valid settings", "fix them and run the doctor again")
        return [versions, ("Settings", [*mistakes, rest])]
    site, on_a_cluster = ladder.settings.site, has_slurm()
    runs = ladder.plan.runs
    read = f"{ladder.settings.experiment.file}: {len(runs)} runs in {len(ladder.plan.jobs)} jobs"
    return [
        versions,
        ("Settings", [passed("experiment", read), passed("site", f"{site.file}: {site.site}")]),
        ("Files", [*results(ladder, on_a_cluster), *workload(ladder, on_a_cluster)]),
        ("Training software", [*site_python(runs[0], site, os.environ)]),
        ("Network", _network(ladder)),
        ("Slurm", [*([launcher()] if on_a_cluster else ()), *slurm(ladder, on_a_cluster)]),
    ]


def has_slurm() -> bool:
    """Return True if this machine belongs to a cluster: Slurm's commands exist and find a configuration."""
    if shutil.which("scontrol") is None:
        return False
    try:
        run_command(["scontrol", "ping"])
    except SlurmError as error:
        return "configuration source" not in str(error)
    return True


def failed(sections: Collection[FindingGroup]) -> bool:
    """Return True if a finding is a FAIL, not only a warning."""
    return deciding(finding for _, findings in sections for finding in findings) is not None


def results(ladder: Ladder, on_a_cluster: bool) -> Iterator[Finding]:
    """Check whether results can be written, by the compute nodes as well."""
    wanted = Path(ladder.results).absolute()
    existing, key = nearest(wanted), f"{ladder.settings.experiment.file}: results"
    try:
        check_room(wanted)
    except NotWritten as error:
        advice = "choose another directory for results, or have its permissions changed"
        yield not_passed("error", "results", f"{key}: {existing}: {error.strerror}", advice)
        return
    yield passed("results", f"{ladder.results} can be written")
    yield shared_directory(existing, filesystem(existing), on_a_cluster)


def shared_directory(path: Path, kind: str, on_a_cluster: bool) -> Finding:
    """Check whether compute nodes see a directory, by the kind of its file system."""
    if not on_a_cluster:
        return passed("shared directory", "not needed: no Slurm here, everything runs on this machine")
    if is_shared(kind):
        return passed("shared directory", f"{path} is on {kind}")
    alone = "a file system of one machine" if kind in ALONE else "which may not be shared"
    text = f"{path} is on {kind or 'an unknown file system'}, {alone}; compute nodes must see it under this name"
    advice = f"look from a compute node: srun --nodes=1 ls {path}; if it is not there, move the project to one that is"
    return not_passed("warning", "shared directory", text, advice)


def workload(ladder: Ladder, on_a_cluster: bool) -> Iterator[Finding]:
    """Check the training script and its data. A missing script has been reported with the settings."""
    work = ladder.settings.experiment.workload
    if is_module(ladder.plan.runs[0]):
        yield not_passed("unknown", "workload", f"{work.script}: a module", "the first run shows whether it is found")
    else:
        yield passed("workload", work.script)
    if problem := data_problem(ladder.settings.experiment, on_a_cluster):
        yield mistake(problem[1], "data", problem[0])
    elif work.data_dir is not None:
        is_missing = ladder.prepared_data and not Path(ladder.data_marker).exists()
        later = ", not there yet: the first start prepares it on this machine" if is_missing else ""
        yield passed("data", f"{work.data_dir}{later}")


def _network(ladder: Ladder) -> list[Finding]:
    known = passed(
        "variables", "NCCL, RCCL, Gloo, torch, OpenMP, CUDA, HSA, libfabric, UCX: no unknown name, none that slows down"
    )
    doubts = [mistake(problem, "variables", "warning") for problem in check_variables(ladder.settings, os.environ)]
    return doubts or [known]


def slurm(ladder: Ladder, on_a_cluster: bool) -> Iterator[Finding]:
    """Check whether Slurm takes every job of the plan."""
    if not on_a_cluster:
        yield not_passed("unknown", "jobs", "no Slurm here", LOGIN_NODE)
        return
    try:
        partitions = read_partitions()
        yield passed("controller", f"Slurm answers; partitions: {', '.join(partitions)}")
        nodes = read_nodes()
        yield _nodes(ladder, partitions, nodes)
        yield from architecture(ladder, nodes, platform.machine())
        notify(f"asking Slurm about {count(len(ladder.plan.jobs), 'job')}")
        admission = check_jobs(ladder.plan.jobs, ladder.settings, partitions)
    except UserError as error:
        yield from (mistake(problem, "jobs", "unknown") for problem in error.problems)
        return
    except SlurmError as error:
        yield not_passed("unknown", "jobs", f"Slurm does not answer: {error}", LOGIN_NODE)
        return
    yield from (mistake(problem, "jobs") for problem in admission.refused)
    yield from (mistake(problem, "jobs", "warning") for problem in admission.waits)
    if admission.starts:
        all_of = "all of them" if len(admission.starts) == len(ladder.plan.jobs) else "these"
        yield passed("jobs", f"Slurm takes {all_of}: {' '.join(admission.starts)}")
    if admission.starts_in_words:
        yield passed("start", f"if submitted now: {admission.starts_in_words}")


def launcher() -> Finding:
    """Check whether what starts the ranks in a job is here, and so probably on the nodes, too."""
    if path := shutil.which("srun"):
        return passed("launcher", path)
    advice = "load its module before Snakemake is started; those of software.modules are for the ranks"
    return not_passed("error", "launcher", "there is no srun here", advice)


def _nodes(ladder: Ladder, partitions: Partitions, nodes: NodeEntries) -> Finding:
    """Compare the shape of the nodes with what the site says of them. Whether the jobs fit is for Slurm to say."""
    asked, site = offered(ladder.plan.jobs, partitions, nodes), ladder.settings.site
    words = "; ".join(partition.in_words for partition in asked) or "no such partition, and no default one"
    text = f"{words} ({site.file}: {node_in_words(site.node)})"
    if not any(fits(site.node, shape) for partition in asked for shape in partition.shapes):
        advice = f"correct node or slurm.partition in {site.file}: no node is like this"
        return not_passed("warning", "nodes", text, advice)
    kinds = dict.fromkeys(shape.gres for partition in asked for shape in partition.shapes if shape.gpus)
    is_chosen = any(getattr(job.slurm, key) for job in ladder.plan.jobs for key in CHOOSE_NODES)
    if site.node.gres == "gpu" and len(kinds) > 1 and not is_chosen:
        advice = f"name one in {site.file}: node.gres, such as {next(iter(kinds))}: any of them may be measured now"
        return not_passed("warning", "nodes", f"nodes with different GPUs: {text}", advice)
    return passed("nodes", text)


def architecture(ladder: Ladder, nodes: NodeEntries, own: str) -> Iterator[Finding]:
    """Check whether this machine's programs run on the nodes of the jobs; no finding if they do, or it is not known.

    own: this machine's architecture, as ``uname -m`` prints it.
    """
    wanted = {name for job in ladder.plan.jobs for name in (job.slurm.partition or "").split(",") if name}
    rows = [row for row in nodes if not wanted or wanted & {*row.get("Partitions", "").split(",")}]
    of_nodes = {row.get("Arch", "") for row in rows} - {""}
    if other := sorted(of_nodes - {own}):
        text = f"this machine is {own}, compute nodes are {', '.join(other)}: no Python runs on both"
        advice = "climb on a compute node, with an environment that was set up there: `snakemake eject`, then "
        advice += f"`sbatch {ladder.results}/climb.sh`, which explains how"
        yield not_passed("warning" if own in of_nodes else "error", "architecture", text, advice)


SITES = Path("config/sites")
SHIPPED = OWN / SITES / "local.yaml"  # what config/cluster.yaml is before anyone changes it
_NO_SLURM = "a draft of cluster.yaml needs the answers of Slurm"
# Of a partition, and their values where they limit nothing.
_LIMITS = {
    "MaxTime": "UNLIMITED", "MaxNodes": "UNLIMITED", "State": "UP", "AllowAccounts": "ALL", "AllowQos": "ALL",
    "AllowGroups": "ALL", "Hidden": "NO", "RootOnly": "NO",
}  # fmt: skip


@dataclass(frozen=True)
class Cluster:
    """What Slurm says of a cluster."""

    name: str
    partitions: Sequence[Partition]  # the one to use first
    records: Partitions

    def limits(self, name: str) -> str:
        """Return what Slurm says of a partition besides its nodes: ``default, MaxTime=1-00:00:00``."""
        row = self.records[name]
        limits = [f"{key}={row[key]}" for key, none in _LIMITS.items() if row.get(key, none) != none]
        return ", ".join([*(["default"] if row.get("Default") == "YES" else []), *limits]) or "no limits"


def read_cluster() -> Cluster:
    """Ask Slurm. Raises UserError if it does not answer, or has no partition with nodes."""
    try:
        partitions = read_partitions()
        name = re.search(r"^ClusterName\s*= (\S+)", run_command(["scontrol", "show", "config"]), re.MULTILINE)
        return cluster_of(name[1] if name else "", partitions, read_nodes())
    except UserError as error:
        raise UserError(replace(problem, what=_NO_SLURM) for problem in error.problems) from None
    except SlurmError as error:
        advice = "try `scontrol show node` on this machine"
        raise UserError(Problem("Slurm", _NO_SLURM, str(error), next=advice)) from None


def cluster_of(name: str, partitions: Partitions, nodes: Sequence[Mapping[str, str]]) -> Cluster:
    """Return the cluster of these records. Raises UserError if no partition has nodes."""
    with_nodes = [partition for row in partitions.values() if (partition := shapes_of(row, nodes)).shapes]
    if not with_nodes:
        advice = "ask your site for one: `sinfo --all`"
        raise UserError(Problem("Slurm", _NO_SLURM, "no partition has nodes", next=advice))

    def rank(partition: Partition) -> tuple[int, ...]:
        row = partitions[partition.name]
        is_open = row.get("State") == "UP" and row.get("RootOnly") != "YES" and row.get("Hidden") != "YES"
        # Of equal ones that with the most nodes; sorting keeps Slurm's order.
        nodes = sum(partition.shapes.values())
        return is_open, partition.usual.gpus > 0, row.get("Default") == "YES", nodes

    with_nodes.sort(key=rank, reverse=True)
    return Cluster(re.sub(r"[^A-Za-z0-9._-]", "-", name).strip("._-")[:60] or "my-cluster", with_nodes, partitions)


# The file


def draft(cluster: Cluster, file: Path) -> str:
    """Return the text of ``file``, which describes the first partition. Raises UserError if the ladder refuses it."""
    chosen, schema = cluster.partitions[0], os.path.relpath(SCHEMAS / "cluster.schema.json", file.absolute().parent)
    of_cluster = {"cluster": cluster, "chosen": chosen, "shape": chosen.usual.of_one_slice}
    of_cluster["qos"] = allowed_qos(cluster.records[chosen.name])
    text = render("cluster.yaml.j2", **of_cluster, schema=schema, flow=flow)
    try:
        validated([(yaml.read(file, text.encode()), Site)])
    except UserError as error:
        what = "nothing is written: Slurm shows a value that cluster.yaml cannot hold, "
        advice = f"write {file} by hand, from a file of {SITES}; all keys: config/README.md"
        raise UserError(replace(each, what=what + each.what, next=advice) for each in error.problems) from None
    return text


def write_draft(cluster: Cluster, wanted: Path) -> tuple[Path, bool, list[Path]]:
    """Write the draft; return its file, whether that has changed, and the files that were kept as they are.

    In ``wanted`` if that is missing or as shipped, else in config/sites. A file that someone wrote is never replaced.
    """
    sites = [SITES / f"{cluster.name}{suffix}.yaml" for suffix in ("", *(f"-{number}" for number in range(2, 100)))]
    kept = list[Path]()
    for file in (wanted, *sites):
        text, present = draft(cluster, file), file_text(file) or ""
        if present == text:
            return file, False, kept
        if not file.exists() or (present and _values(present) == _values(file_text(SHIPPED) or "")):
            write_atomically(file, text)
            return file, True, kept
        kept.append(file)
    what, advice = "it has too many drafts of this site", "delete some of them"
    raise UserError(Problem(str(SITES), what, str(len(kept)), next=advice))


def _values(text: str) -> str:
    """Return a settings file without its first line, which names the schema relative to the file."""
    return text.partition("\n")[2]
