"""The site's software as sites have it: real environment modules, and a Python of its own."""

from __future__ import annotations

import itertools
import json
import os
import socket
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest
from ddp_ladder.common.files import RunDirectory
from ddp_ladder.plan.plan import ScaleJob
from ddp_ladder.run.job_script import write_job_script
from ddp_ladder.settings.keys import Slurm
from make_files import write_programs
from make_records import make_spec
from needed import need
from project_copy import EXPERIMENT, NO_TORCH, ONE_STAGE, Checkout

INITS = ("/usr/share/lmod/lmod/init/bash", "/usr/share/modules/init/bash")
RUN = "default/weak/1x1/r1"

# What the rank and each of its ancestors see: only the first ones may have the site's software.
WITNESS = """
import json, os, sys
def story(pid):
    with open(f"/proc/{pid}/stat") as file:
        parent = int(file.read().rpartition(")")[2].split()[1])
    with open(f"/proc/{pid}/environ", errors="surrogateescape") as file:
        pairs = dict(pair.split("=", 1) for pair in file.read().split("\\0") if "=" in pair)
    with open(f"/proc/{pid}/cmdline") as file:
        words = file.read().split("\\0")
    wanted = ("SITE_MARK", "PYTHONPATH", "VIRTUAL_ENV", "LD_LIBRARY_PATH")
    return parent, {"words": words, **{key: pairs.get(key) for key in wanted}}
lines, pid = [], os.getpid()
while pid > 1 and not any("run_scale.py" in word for line in lines for word in line["words"]):
    pid, line = story(pid)
    lines.append(line)
with open("witness.json", "w") as file:
    json.dump({"prefix": sys.prefix, "path": sys.path, "lines": lines}, file)
"""


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory of modules, with the module command of this machine; no module is loaded."""
    has_modules = any(Path(init).exists() for init in INITS)
    need(has_modules, "no environment modules here: install environment-modules or lmod")
    for key in [key for key in os.environ if "MODULE" in key or key.startswith("LMOD")]:
        monkeypatch.delenv(key)
    directory = tmp_path / "modules"
    directory.mkdir()
    monkeypatch.setenv("MODULEPATH", str(directory))
    return directory


def add_module(directory: Path, name: str, *lines: str) -> None:
    (directory / name).parent.mkdir(parents=True, exist_ok=True)
    (directory / name).write_text("\n".join(("#%Module", *lines, "")))


def measured(checkout: Checkout, **software: Any) -> dict[str, Any]:
    """Make the run with this software; return its record."""
    checkout.site(software=software)
    checkout.measure()
    return checkout.record(RUN)


@pytest.fixture
def witnessed(checkout: Checkout) -> Checkout:
    checkout.configure(stages=ONE_STAGE)
    checkout.without_torch(WITNESS + NO_TORCH, launcher="torchrun")
    return checkout


def witness(checkout: Checkout) -> Any:
    return json.loads((checkout.path / "witness.json").read_text())


def split(lines: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Apart: what the agent launched, and the agent with all that is above it."""
    (agent,) = (k for k, line in enumerate(lines) if any(word.endswith("/agent.py") for word in line["words"]))
    assert agent > 0
    assert len(lines) > agent + 1  # the scale's job
    return lines[:agent], lines[agent:]


def test_a_module_reaches_the_ranks_and_not_the_agent(witnessed: Checkout, modules: Path, tmp_path: Path) -> None:
    poison = tmp_path / "poison"
    poison.mkdir()
    (poison / "psutil.py").write_text("raise SystemExit('a module of the site in the workflow')\n")
    add_module(
        modules,
        "Site/1.0",
        "setenv SITE_MARK site",
        f"prepend-path PYTHONPATH {poison}",
        f"prepend-path LD_LIBRARY_PATH {poison}",
    )
    record = measured(witnessed, modules=["Site"], setup='export SITE_MARK="$SITE_MARK and setup"')
    assert record["status"] == "ok", record["failure"]
    launched, above = split(witness(witnessed)["lines"])
    for line in launched:
        assert line["SITE_MARK"] == "site and setup"
        assert str(poison) in line["PYTHONPATH"].split(":")
        assert str(poison) in line["LD_LIBRARY_PATH"].split(":")
    for line in above:
        assert line["SITE_MARK"] is None
        assert str(poison) not in f"{line['PYTHONPATH']}{line['LD_LIBRARY_PATH']}"


def test_a_module_that_does_not_exist_fails_the_run_in_its_own_words(witnessed: Checkout, modules: Path) -> None:
    add_module(modules, "Site/1.0", "setenv SITE_MARK site")
    record = measured(witnessed, modules=["Site/1.0", "Sight/2.0"])
    failure = record["failure"]
    assert (record["status"], failure["verdict"]) == ("failed", "software or network could not be set up")
    assert "software.modules: module Sight/2.0 does not load" in failure["why"]
    assert "locate a modulefile" in failure["why"] or "unknown" in failure["why"]  # Environment Modules, Lmod
    assert "software.modules" in failure["next"]
    run = witnessed.results / "runs" / RUN
    assert json.loads((run / "nodes/node0.json").read_text())["exit_code"] == 1
    assert "module Sight/2.0 does not load" in (run / "train.log").read_text()
    assert not (witnessed.path / "witness.json").exists()


@pytest.fixture
def other_python(tmp_path: Path) -> Path:
    """A Python of the site's: an environment of its own that has this one's packages."""
    home = tmp_path / "site python"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home], check=True)
    python = home / "bin/python"
    show = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = subprocess.run([python, "-c", show], check=True, capture_output=True, text=True).stdout.strip()
    ours = dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib"))
    Path(packages, "borrowed.pth").write_text("".join(f"{path}\n" for path in ours))
    return python


def test_the_ranks_run_with_the_sites_python(
    witnessed: Checkout, other_python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The workflow has none of its packages, and needs no torch: here it would not get one."""
    (tmp_path / "ours").mkdir()
    (tmp_path / "ours/torch.py").write_text("raise ImportError('the workflow imports torch')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "ours"))
    monkeypatch.setenv("VIRTUAL_ENV", sys.prefix)
    record = measured(witnessed, python=str(other_python))
    assert record["status"] == "ok", record["failure"]
    seen = witness(witnessed)
    launched, above = split(seen["lines"])
    assert seen["prefix"] == str(other_python.parents[1])
    assert str(tmp_path / "ours") not in seen["path"]
    assert {(line["PYTHONPATH"], line["VIRTUAL_ENV"]) for line in launched} == {(None, None)}
    assert {line["VIRTUAL_ENV"] for line in above} == {sys.prefix}


def test_a_python_without_torch_is_named(witnessed: Checkout, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    python = str(tmp_path / "bare/bin/python")
    witnessed.without_torch("import torch", "torchrun")
    failure = measured(witnessed, python=python)["failure"]
    assert failure["verdict"] == "software or network could not be set up"
    assert python in failure["why"]
    assert "No module named 'torch'" in json.dumps(failure)
    assert "software.python" in failure["next"]


def test_torch_that_sees_no_gpu_is_reported_with_its_own_words(checkout: Checkout) -> None:
    """The GPUs that may be here are hidden; the words are those of the real torch."""
    checkout.configure(stages=ONE_STAGE, workload={**EXPERIMENT["workload"], "env": {"CUDA_VISIBLE_DEVICES": ""}})
    (checkout.path / "loop.py").write_text("import torch\ntorch.cuda.set_device(0)\n")
    node = {"gpus": 1, "device": "cuda", "cpus": 2}
    checkout.site(node=node, network={"backend": "gloo"}, launcher="srun")
    checkout.measure()
    failure = checkout.record(RUN)["failure"]
    assert (failure["verdict"], failure["node"]) == ("torch sees no GPU", socket.gethostname())
    assert failure["why"].endswith("limited by CUDA_VISIBLE_DEVICES=''")
    assert "NVIDIA" in failure["why"] or "No CUDA GPUs" in failure["why"]


@pytest.mark.parametrize("name", ["Site/1.0", "Sight/2.0"])
def test_job_sh_loads_modules_as_the_run_does(
    modules: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Also one that the submitting shell had loaded; one that does not load ends the job in the module's own words."""
    add_module(modules, "Site/1.0", f"prepend-path PYTHONPATH {tmp_path}/site")
    monkeypatch.setenv("LOADEDMODULES", "Site/1.0")
    monkeypatch.setenv("_LMFILES_", str(modules / "Site/1.0"))
    monkeypatch.setenv("PYTHONPATH", "/ours")
    write_programs(tmp_path, python='echo "trained with $PYTHONPATH"')
    monkeypatch.chdir(tmp_path)
    spec = make_spec(python=str(tmp_path / "python"), modules=(name,))
    job = ScaleJob(spec.stage, spec.scale, runtime_min=5, runs=(spec,), cpus=1, slurm=Slurm())
    script = write_job_script(job, spec, RunDirectory(Path("run")))
    done = subprocess.run(["bash", script, "here"], capture_output=True, text=True, check=False)
    if name == "Site/1.0":
        assert done.stdout == f"trained with {tmp_path}/site\n"
    else:
        assert (done.returncode, done.stdout) == (1, "")
        assert "locate a modulefile" in done.stderr or "unknown" in done.stderr  # Environment Modules, Lmod


ENGINE = """
printf '%s\\n' "$@" >>engine.txt
while [ "$1" != a.sif ]; do shift; done
shift
exec "$@"
"""


def test_prepare_runs_as_the_training_does_with_a_stand_in_for_apptainer(checkout: Checkout, tmp_path: Path) -> None:
    """Through the engine that software.setup brings, with the same binds; and not again because of another key."""
    (tmp_path / "bin").mkdir()
    write_programs(tmp_path / "bin", apptainer=ENGINE)
    (checkout.path / "a.sif").touch()
    (checkout.path / "prepare.py").write_text("import os; open('data/mine/by', 'a').write(os.environ['SITE_MARK'])")
    workload = {**EXPERIMENT["workload"], "data_dir": "data/mine", "prepare": ["prepare.py"]}
    checkout.configure(stages=ONE_STAGE, workload=workload)
    checkout.without_torch()
    setup = f"export PATH={tmp_path}/bin:$PATH SITE_MARK=here"
    software = {"python": sys.executable, "container": {"image": "a.sif"}, "setup": setup}
    checkout.site(software=software)
    done = checkout.snakemake("--cores", "2", "stage1")
    assert done.returncode == 0, done.stdout
    assert (checkout.path / "data/mine/by").read_text() == "here"
    prepared, trained = (
        {bind for word, bind in itertools.pairwise(call.splitlines()) if word == "--bind"}
        for call in (checkout.path / "engine.txt").read_text().split("exec\n")[1:]
    )
    assert prepared == {str(checkout.path)}
    assert trained == {str(checkout.path), "/dev/shm"}  # for the heartbeats
    again = checkout.snakemake("--cores", "2", "stage1", "--config", "repeats=2")
    assert again.returncode == 0, again.stdout
    assert (checkout.path / "data/mine/by").read_text() == "here"
