"""The doctor's look at software: versions of the workflow's own, and the Python that the training runs with."""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ddp_ladder.findings import Finding
from ddp_ladder.gpu_access import is_too_old, least_driver
from ddp_ladder.gpus import gpus
from ddp_ladder.plan import RunSpec
from ddp_ladder.settings import Site
from ddp_ladder.software import SetUpError, environment

OLDEST_WORKFLOW_PYTHON = (3, 11)
OLDEST_SITE_PYTHON = (3, 9)
OLDEST_TORCH = (2, 4)
# Distribution, what it is called in the list, the versions that requirements.txt takes: from, and below.
PACKAGES = (
    ("snakemake", "Snakemake", (9, 3), (10,)),
    ("snakemake-executor-plugin-slurm", "Slurm executor", (2, 8), (3,)),
    ("snakemake-executor-plugin-slurm-jobstep", "Slurm job step", (0, 6), (1,)),
)
# What ddp_ladder/slurm_executor.py puts its own in place of.
EXECUTOR_METHODS = ("check_active_jobs", "cancel_jobs", "get_account_arg", "get_partition_arg")
INSTALL = "run `make setup` once, or pip install -r requirements.txt"
IMPORT_WITHIN_S = 180  # torch on a cold network file system takes its time
PROBE = """
import importlib.util, json, sys
told = {"python": list(sys.version_info[:3]), "executable": sys.executable}
if sys.argv[1]:
    sys.path.insert(0, "")
    told["module"] = importlib.util.find_spec(sys.argv[1].split(".")[0]) is not None
try:
    import torch
    told.update(torch=torch.__version__, cuda=torch.version.cuda)
except Exception as error:
    told["error"] = f"{type(error).__name__}: {error}".splitlines()[0]
print("\\n" + json.dumps(told))
"""


def version_tuple(text: str) -> tuple[int, ...]:
    """Numbers at the beginning of a version: ``2.8.0+cu128`` is (2, 8, 0)."""
    form = re.match(r"\d+(\.\d+)*", text)
    return tuple(int(part) for part in form[0].split(".")) if form else ()


def _dotted(numbers: tuple[int, ...]) -> str:
    return ".".join(str(number) for number in numbers)


def workflow_versions() -> Iterator[Finding]:
    """Of the Python that runs Snakemake, and of the packages that the ladder builds on."""
    own = sys.version_info[:3]
    if own >= OLDEST_WORKFLOW_PYTHON:
        yield Finding("pass", "Python", f"{_dotted(own)} ({sys.executable})")
    else:
        wanted = f"the workflow needs {_dotted(OLDEST_WORKFLOW_PYTHON)} or newer"
        yield Finding("FAIL", "Python", f"{_dotted(own)}; {wanted}", "make setup PYTHON=/path/to/python3.12")
    for distribution, topic, oldest, below in PACKAGES:
        yield package_version(distribution, topic, oldest, below)
    yield from executor_interface()


def executor_interface(methods: Sequence[str] = EXECUTOR_METHODS) -> Iterator[Finding]:
    """Whether the Slurm executor still has what the ladder replaces; says nothing where it does, or is not there."""
    with contextlib.suppress(ImportError):  # told by its version
        executor = importlib.import_module("snakemake_executor_plugin_slurm").Executor
        if missing := [name for name in methods if not hasattr(executor, name)]:
            yield Finding("FAIL", "Slurm executor", f"it has no {', '.join(missing)}, which the ladder needs", INSTALL)


def package_version(distribution: str, topic: str, oldest: tuple[int, ...], below: tuple[int, ...]) -> Finding:
    """Whether an installed package is of the versions that the ladder was tested with."""
    wanted = f"{_dotted(oldest)} or newer, below {_dotted(below)}"
    try:
        found = importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return Finding("FAIL", topic, f"{distribution} is not installed; wanted {wanted}", INSTALL)
    if oldest <= version_tuple(found) < below:
        return Finding("pass", topic, found)
    return Finding("FAIL", topic, f"{found}; wanted {wanted}", INSTALL)


def executor_settings() -> frozenset[str]:
    """Names of the options that the installed Slurm executor takes, as a profile writes them. Empty without one."""
    try:
        plugin = importlib.import_module("snakemake_executor_plugin_slurm")
    except ImportError:  # told by its version
        return frozenset()
    fields = plugin.ExecutorSettings.__dataclass_fields__
    return frozenset(f"slurm-{name.replace('_', '-')}" for name in fields)


def site_python(spec: RunSpec, site: Site, base_env: Mapping[str, str]) -> Iterator[Finding]:
    """The software that the training runs with, set up on this machine as it would be on a node."""
    try:
        env = environment(spec, base_env)
    except SetUpError as error:
        yield Finding(
            "FAIL",
            "environment",
            f"{site.file}: {' / '.join(str(error).splitlines()[:4])}",
            "try the same in a shell here; where only compute nodes have it, in one there: srun --pty bash",
        )
        yield Finding("not checked", "training Python", "it needs the environment", "mend that first")
        return
    if spec.modules or spec.setup.strip():
        done = [*spec.modules, *(["the setup snippet"] if spec.setup.strip() else [])]
        yield Finding("pass", "environment", ", ".join(done))
    if spec.container is not None:
        yield from _container(spec.container, site, env)
        return
    yield from _training_python(spec, site, env)


def _container(container: Mapping[str, Any], site: Site, env: Mapping[str, str]) -> Iterator[Finding]:
    engine, image = container["engine"], container["image"]
    where = f"{site.file}: software.container"
    program = shutil.which(engine, path=env.get("PATH"))
    if program is not None:
        yield Finding("pass", "container engine", program)
    else:
        advice = f"load its module in software.modules, or check that the compute nodes have it: srun which {engine}"
        yield Finding("FAIL", "container engine", f"{where}.engine: there is no {engine} here", advice)
    if "://" in image:
        yield Finding(
            "warn",
            "container image",
            f"{where}.image: {image} is fetched anew by every node",
            f"fetch it once: {engine} pull image.sif {image}",
        )
    elif Path(image).exists():
        yield Finding("pass", "container image", image)
    else:
        yield Finding("FAIL", "container image", f"{where}.image: there is no {image}", "correct the path")
    look = f"try it: {engine} exec {image} {site.software.python} -c 'import torch'"
    yield Finding("not checked", "training Python", f"{site.software.python} is inside the image", look)


def _training_python(spec: RunSpec, site: Site, env: Mapping[str, str]) -> Iterator[Finding]:
    topic, where = "training Python", f"{site.file}: software.python"
    program = spec.python or sys.executable
    path = shutil.which(program, path=env.get("PATH"))
    if path is None:
        advice = "write its full path, or name in software.modules the modules that bring it"
        yield Finding("FAIL", topic, f"{where}: there is no {program} here", advice)
        return
    module = spec.script[3:] if spec.script.startswith("-m ") else ""
    try:
        told = _probe(path, module, env)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        yield Finding("FAIL", topic, f"{where}: {program} does not start: {error}", f"try it: {program} --version")
        return
    yield from judge_python(told, program, where, site.node.device)
    if site.node.device == "cuda" and told.get("cuda"):
        here = [gpu["driver"] for gpu in gpus()]
        yield judge_driver(site.node.driver or next(iter(here), None), told, f"{site.file}: node.driver")
    if module:
        found = told.get("module")
        if found:
            yield Finding("pass", "workload", spec.script)
        else:
            advice = "install it for that Python, or correct workload.script"
            yield Finding("FAIL", "workload", f"{spec.script}: {program} has no such module", advice)


def _probe(path: str, module: str, env: Mapping[str, str]) -> dict[str, Any]:
    """What a Python tells of itself. Raises OSError, ValueError or SubprocessError where it does not."""
    done = subprocess.run(
        [path, "-c", PROBE, module],
        env=dict(env),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=IMPORT_WITHIN_S,
        check=False,
    )
    if done.returncode:
        raise ValueError((done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"])[-1])
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


def judge_python(told: Mapping[str, Any], program: str, where: str, device: str) -> Iterator[Finding]:
    """Versions of the training's Python and torch, against what the instrumentation needs."""
    topic, version = "training Python", tuple(told["python"])
    if version < OLDEST_SITE_PYTHON:
        wanted = f"wanted {_dotted(OLDEST_SITE_PYTHON)} or newer"
        yield Finding("FAIL", topic, f"{where}: {program} is {_dotted(version)}; {wanted}", "name a newer one")
    else:
        yield Finding("pass", topic, f"{_dotted(version)} ({told['executable']})")
    if "torch" not in told:
        own = "`make setup TRAINING=1` adds torch to it" if program == sys.executable else "install torch for it"
        advice = f"{own}, or name in {where.rpartition(' ')[2]} the Python that you train with"
        yield Finding("FAIL", "torch", f"{where}: {program} cannot import torch: {told['error']}", advice)
    elif version_tuple(told["torch"]) < OLDEST_TORCH:
        wanted = f"wanted {_dotted(OLDEST_TORCH)} or newer"
        yield Finding("FAIL", "torch", f"{where}: {program} has torch {told['torch']}; {wanted}", "install a newer one")
    elif device == "cuda" and told["cuda"] is None:
        advice = "install a torch with CUDA for it, or set node.device: cpu"
        yield Finding("FAIL", "torch", f"{told['torch']} is built without CUDA, and node.device is cuda", advice)
    else:
        yield Finding("pass", "torch", f"{told['torch']}, built {_cuda(told['cuda'])}")


def judge_driver(driver: str | None, told: Mapping[str, Any], where: str) -> Finding:
    """The nodes' NVIDIA driver against the CUDA that torch is built for. driver: None where it is not known."""
    least, built = least_driver(told["cuda"]), f"torch {told['torch']} is built for CUDA {told['cuda']}"
    wants = f"{built}, which wants {least} or newer" if least else built
    if driver is None:
        return Finding("not checked", "driver", wants, f"write what `srun nvidia-smi` shows into {where}")
    if is_too_old(driver, told["cuda"]):
        advice = "install a torch that is built for an older CUDA (pytorch.org, previous versions)"
        return Finding("FAIL", "driver", f"{driver} is too old: {wants}", advice)
    return Finding("pass", "driver", f"{driver}; {wants}")


def _cuda(version: str | None) -> str:
    return f"for CUDA {version}" if version else "without CUDA"
