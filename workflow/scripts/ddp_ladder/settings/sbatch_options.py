"""Options of sbatch that slurm.extra may not contain, because another key or ddp-ladder sets them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

ALLOWED = "options that no other key sets, such as --exclusive, --hint=nomultithread or --signal=TERM@120"

_SHAPE = "remove it: the scale decides, see stages.stage1.scales to stages.stage3.scales in config.yaml"
_TASKS = "remove it: there is one task per node, and launcher: srun makes it one process per GPU"
_LOG = "remove it: the output is in results/logs, and each run's own in its train.log"
_JOB = "remove it: ddp-ladder finds its jobs by it"
_AGAIN = "remove it: a job that failed is started again by the next start of the workflow"


def _key(key: str) -> str:
    return f"remove it and set {key} instead"


# By long name of an option: what to do instead.
_DECIDED: Mapping[str, str] = {
    "account": _key("slurm.account"),
    "partition": _key("slurm.partition"),
    "qos": _key("slurm.qos"),
    "constraint": _key("slurm.constraint"),
    "reservation": _key("slurm.reservation"),
    "nodelist": _key("slurm.nodelist"),
    "nodefile": _key("slurm.nodelist"),
    "exclude": _key("slurm.exclude"),
    "gres": _key("node.gres"),
    "cpus-per-task": _key("node.cpus"),
    "cpus-per-gpu": _key("node.cpus"),
    "mem": _key("node.memory_mb"),
    "mem-per-cpu": _key("node.memory_mb"),
    "mem-per-gpu": _key("node.memory_mb"),
    "time": _key("the stage's runtime in config.yaml"),
    "time-min": _key("the stage's runtime in config.yaml"),
    "export": _key("network.env, or workload.env in config.yaml,"),
    "export-file": _key("network.env, or workload.env in config.yaml,"),
    "nodes": _SHAPE,
    "gpus": _SHAPE,
    "gpus-per-node": f"{_SHAPE}; node.gres says what a GPU is called",
    "gpus-per-socket": _SHAPE,
    "gpus-per-task": _SHAPE,
    "ntasks": _TASKS,
    "ntasks-per-node": _TASKS,
    "tasks-per-node": _TASKS,
    "ntasks-per-gpu": _TASKS,
    "ntasks-per-core": _TASKS,
    "ntasks-per-socket": _TASKS,
    "output": _LOG,
    "error": _LOG,
    "job-name": _JOB,
    "comment": _JOB,
    "parsable": _JOB,
    "clusters": "remove it: start the workflow on a login node of that cluster",
    "chdir": "remove it: jobs run in the directory where Snakemake works",
    "wrap": "remove it: ddp-ladder gives sbatch its script",
    "array": "remove it: two jobs of one scale would write to the same files",
    "wait": "remove it: Snakemake waits for the job",
    "test-only": "remove it: the job would never run",
    "requeue": _AGAIN,
    "no-requeue": _AGAIN,
}
_SHORT: Mapping[str, str] = {
    "A": "account", "C": "constraint", "D": "chdir", "F": "nodefile", "G": "gpus", "J": "job-name", "M": "clusters",
    "N": "nodes", "W": "wait", "a": "array", "c": "cpus-per-task", "e": "error", "n": "ntasks", "o": "output",
    "p": "partition", "q": "qos", "t": "time", "w": "nodelist", "x": "exclude",
}  # fmt: skip

_FORM = re.compile(r"--(?P<long>[A-Za-z][A-Za-z0-9-]*)(=.*)?|-(?P<short>[A-Za-z]).*")
_UNSAFE = re.compile(r"[^A-Za-z0-9._:@%+=,/\[\]-]")


@dataclass(frozen=True)
class Objection:
    """Why an item of slurm.extra is refused, and what to do."""

    what: str
    allowed: str
    next: str


def objection(item: str) -> Objection | None:
    """Return what is wrong with one item of slurm.extra; None for an allowed option."""
    form = _FORM.match(item)
    if form is None:
        advice = f"write --{item}" if re.fullmatch(r"[A-Za-z][A-Za-z0-9-]*(=\S+)?", item) else "start it with --"
        return Objection("not an option", "options of sbatch, each with its own -- in front", advice)
    name = form["long"] or _SHORT.get(form["short"], "")
    # Checked before the form of the value: "--partition gpu" needs the key, not an equals sign.
    if decided := _decided(name):
        return Objection("an option that is set elsewhere", ALLOWED, decided)
    if re.match(r"--signal[=\s]R?B", item):
        return Objection(
            "a signal to the batch shell, which would end the job at once",
            "--signal=TERM@120 and the like, which reach the training",
            "leave out B:",
        )
    if unsafe := _UNSAFE.findall(item):
        return _unsafe(item, unsafe)
    return None


def _decided(name: str) -> str | None:
    """Return the advice for an option that is set elsewhere; as in sbatch, a name may be abbreviated."""
    if name in _DECIDED:
        return _DECIDED[name]
    return next((advice for known, advice in _DECIDED.items() if name and known.startswith(name)), None)


def _unsafe(item: str, unsafe: list[str]) -> Objection:
    pair = re.fullmatch(r"(--[A-Za-z][A-Za-z0-9-]*)\s+([^-\s]\S*)", item)
    return Objection(
        "a space in an option"
        if set(unsafe) == {" "}
        else "a character that the shell would change before sbatch reads it",
        "letters, digits and . _ : @ % + = , / - [ ]",
        f"write {pair[1]}={pair[2]}" if pair else "one list item per option, its value after =, without quotes",
    )
