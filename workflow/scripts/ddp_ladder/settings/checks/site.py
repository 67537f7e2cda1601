"""Checks of a site's environment variables, sbatch options, nodes, software and network."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from ddp_ladder.common.messages import Problem
from ddp_ladder.common.redaction import NOT_SHOWN
from ddp_ladder.settings import sbatch_options
from ddp_ladder.settings.checks.given import Given
from ddp_ladder.settings.cluster_keys import Slurm
from ddp_ladder.settings.secrets import is_secret
from ddp_ladder.settings.strict_yaml import Document, KeyPath, key_name, shown
from ddp_ladder.settings.terms import MOST_GPUS

# The launchers and ddp-ladder set these for each process; another value would break the process group.
OWN_VARIABLES = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
)
OWN_PREFIX = "DDP_LADDER_"
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_CLEARING_OPTIONS = ("--cleanenv", "-e", "--containall", "-C")  # of apptainer and singularity exec


def variables_that_cannot_be_set(given: Given) -> Iterator[Problem]:
    """Refuse invalid variable names, variables that the launchers set, and values that need a shell."""
    yield from _env_problems(given.workload.env, given.config, ("workload", "env"))
    for variant in given.experiment.variants:
        yield from _env_problems(variant.env, given.config, ("variants", variant.name, "env"))
    yield from _env_problems(given.site.network.env, given.cluster, ("network", "env"))


def options_that_sbatch_must_not_get(given: Given) -> Iterator[Problem]:
    """Refuse options of sbatch that ddp-ladder sets itself."""
    for stage in given.experiment.stages:
        yield from _extra_problems(stage.slurm, given.config, ("stages", stage.name, "slurm", "extra"))
    yield from _extra_problems(given.site.slurm, given.cluster, ("slurm", "extra"))


def cores_and_gpus_that_contradict(given: Given) -> Iterator[Problem]:
    """Refuse fewer cores than GPUs, and a gres that is not a GPU name of Slurm."""
    node = given.site.node
    if node.cpus < node.gpus:
        yield Problem(
            where=given.cluster.where("node", "cpus"),
            what="fewer CPU cores than GPUs: each GPU's process needs a core",
            found=f"cpus {node.cpus}, gpus {node.gpus}",
            allowed=f"at least {node.gpus}",
            next="set node.cpus to the cores that a job gets on one node (nproc shows them)",
        )

    if node.gres is not None and (problem := _gres_problem(given, node.gres)):
        yield problem


def _gres_problem(given: Given, gres: str) -> Problem | None:
    kind, _, rest = gres.partition(":")
    *words, last = rest.split(":")
    where, allowed = given.cluster.where("node", "gres"), "gpu, or gpu:type such as gpu:a100, or null"
    if kind != "gpu":
        return Problem(
            where=where,
            what="not a GPU: gres names the GPUs that a job requests",
            found=gres,
            allowed=allowed,
            next="set gres: gpu, or null if jobs request no GPUs",
        )
    # A type may be a number too (gpu:3090), but one larger than any number of GPUs.
    is_count = last.isdecimal() and (bool(words) or int(last) <= MOST_GPUS)
    if is_count:
        name = ":".join((kind, *words))
        gpus = given.site.node.gpus
        differs = "" if int(last) == gpus else f" (node.gpus is {gpus})"
        return Problem(
            where=where,
            what="a number of GPUs, which the scale sets",
            found=gres + differs,
            allowed=allowed,
            next=f"set gres: {name}; a job on 1x2 then asks for {name}:2",
        )
    if words or gres.endswith(":"):
        return Problem(
            where=where,
            what="not written as Slurm names GPUs",
            found=gres,
            allowed=allowed,
            next="write what `sinfo --format=%G` shows, without its number",
        )
    return None


def python_that_is_not_there(given: Given) -> Iterator[Problem]:
    """Refuse a Python that is not a program on this machine, unless only the nodes have it."""
    software = given.site.software
    python = software.python
    # A Python from modules, setup or an image cannot be checked on this machine.
    elsewhere = software.container or (python and "/" not in python and (software.modules or software.setup))
    if python is not None and not elsewhere and shutil.which(python) is None:
        exists = Path(python).exists()
        yield Problem(
            where=given.cluster.where("software", "python"),
            what="not a program that can be run" if exists else "there is no such program",
            found=shown(python),
            allowed="a Python interpreter, or null for the one that runs the workflow",
            next="write the full path, as `which python` shows it where the training runs",
        )


def container_that_hides_the_run(given: Given) -> Iterator[Problem]:
    """Refuse a container without a Python, or with options that clear the environment."""
    container, path = given.site.software.container, ("software", "container")
    if container is None:
        return
    if given.site.software.python is None:
        yield Problem(
            where=given.cluster.where("software", "python"),
            what="the Python that runs the workflow is not in the container",
            found="python: null",
            allowed="the name or path of a Python inside the image",
            next="set software.python: python3, or the path that it has inside",
        )
    for index, argument in enumerate(container.args):
        if argument.partition("=")[0] in _CLEARING_OPTIONS:
            yield Problem(
                where=given.cluster.where(*path, "args", index),
                what="it clears the run's environment: ranks would not find each other, nor their run.json",
                found=shown(argument),
                allowed=f"options of `{container.engine} exec` that leave the environment as it is",
                next="remove it; to leave out the home directory, use --no-home",
            )


def names_that_no_node_has(given: Given) -> Iterator[Problem]:
    """Refuse a map of interfaces with an invalid node name."""
    interface = given.site.network.interface
    for node in () if isinstance(interface, str) else interface:
        if not _NODE.fullmatch(node):
            yield Problem(
                where=given.cluster.where("network", "interface", node),
                what="not a name that a node can have",
                found=shown(node),
                allowed="one node's name, as `sinfo --Node` shows it: letters, digits and . _ -",
                next="write a line for each node, such as node01: eth0",
            )


def nccl_without_gpus(given: Given) -> Iterator[Problem]:
    """Refuse NCCL on a site with device cpu."""
    if given.site.node.device != "cpu":
        return
    if given.site.network.backend == "nccl":
        yield _nccl_problem(given.cluster.where("network", "backend"))
    for variant in given.experiment.variants:
        if variant.backend == "nccl":
            path = ("variants", variant.name, "network", "backend")
            yield _nccl_problem(given.config.where(*path))


def _nccl_problem(where: str) -> Problem:
    return Problem(
        where=where,
        what="NCCL needs GPUs, and the site has device: cpu",
        found="nccl",
        allowed="auto or gloo",
        next="set backend: auto, or node.device: cuda in the site's file if its nodes have GPUs",
    )


def _extra_problems(slurm: Slurm, document: Document, path: KeyPath) -> Iterator[Problem]:
    for index, item in enumerate(slurm.extra):
        if objection := sbatch_options.objection(item):
            where = document.where(*path, index)
            yield Problem(where, objection.what, shown(item), objection.allowed, objection.next)


def _env_problems(env: Mapping[str, str], document: Document, path: KeyPath) -> Iterator[Problem]:
    for name, value in env.items():
        where = document.where(*path, name)
        value_shown = NOT_SHOWN if is_secret(name, value) else shown(value)
        if not _VARIABLE.fullmatch(name):
            yield Problem(
                where=where,
                what="not a name that an environment variable can have",
                found=shown(name),
                allowed="letters, digits and _, not starting with a digit",
                next=f"correct the name in {key_name(path)}",
            )
        elif name in OWN_VARIABLES or name.startswith(OWN_PREFIX):
            yield Problem(
                where=where,
                what="a variable that ddp-ladder sets for each process",
                found=shown(name),
                allowed=f"any variable but {', '.join(OWN_VARIABLES)} and {OWN_PREFIX}...",
                next="remove it",
            )
        elif re.search(rf"\$(?:{name}\b|\{{{name}\}})", value):
            yield Problem(
                where=where,
                what="a shell variable, which is not expanded here",
                found=value_shown,
                allowed="the whole value",
                next=f"move it to software.setup in cluster.yaml, which is shell: export {name}={value_shown}",
            )
