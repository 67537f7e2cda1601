"""The doctor's checks of software: versions of the workflow's packages, and the Python that runs the training."""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ddp_ladder.climb.executor import BELOW, DISTRIBUTION, INSTALL, OLDEST
from ddp_ladder.common.formats import dotted
from ddp_ladder.common.paths import SCRIPTS
from ddp_ladder.doctor.check_results import CheckResult
from ddp_ladder.node.software import NAMES_THE_CAUSE, TORCH_NOT_INSTALLED, SetUpError, environment
from ddp_ladder.plan.plan import RunSpec
from ddp_ladder.settings.keys import Site
from ddp_ladder.settings.secrets import FROM_ENVIRONMENT

OLDEST_SITE_PYTHON = (3, 9)
OLDEST_TORCH = (2, 4)
# Distribution, its name in the list, the versions that requirements.txt allows: from, and below.
PACKAGES = (
    ("snakemake", "Snakemake", (9, 3), (10,)),
    (DISTRIBUTION, "Slurm executor", OLDEST, BELOW),
    ("snakemake-executor-plugin-slurm-jobstep", "Slurm job step", (0, 6), (1,)),
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
