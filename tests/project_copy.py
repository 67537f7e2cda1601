"""A separate checkout for each test that runs Snakemake, and small experiments for it."""

from __future__ import annotations

import compileall
import contextlib
import functools
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Protocol

import psutil
import yaml
from ddp_ladder.common.files import write_json
from ddp_ladder.plan.plan import Plan, make_plan
from ddp_ladder.settings.load import load_settings

ROOT = Path(__file__).parents[1]

# The smallest plain DDP loop over a DataLoader: 60 steps on one process, 30 on two.
LOOP = """
import os, sys, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(0)
data = TensorDataset(torch.randn(960, 64), torch.randn(960, 1))
sampler = DistributedSampler(data)
loader = DataLoader(data, int(sys.argv[1]), sampler=sampler)
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.Linear(256, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(1):
    sampler.set_epoch(epoch)
    for inputs, targets in loader:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
dist.destroy_process_group()
"""


def loop_with(statement: str) -> str:
    """Return LOOP with this statement at the begin of each step."""
    step = "    for inputs, targets in loader:\n"
    assert step in LOOP
    return LOOP.replace("import os,", "import os, time,").replace(step, f"{step}        {statement}\n")


# A program that reports its own steps, for tests of the ladder itself: torch takes seconds to start.
NO_TORCH = """
import json, os, sys
with open(os.environ["DDP_LADDER_METRICS"], "a") as file:
    for step in range(60):
        file.write(json.dumps({"samples": int(sys.argv[1]), "seconds": 0.001 + step % 7 / 100_000}) + "\\n")
"""

HUNGRY_SAMPLES = 92
# A program that needs 4 MB per sample, under a limit of the kernel with room for this many. Larger batches are faster.
# A new thread's stack is less than the distance to the batches that are tried next to it, 88 and 96; the address space
# that malloc reserves for it is more, but is no data.
HUNGRY = f"""
import resource
used = int(open("/proc/self/statm").read().split()[5]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_DATA, (used + {HUNGRY_SAMPLES} * 4 * 1000**2,) * 2)
import sys
held = bytearray(int(sys.argv[1]) * 4 * 1000**2)
{NO_TORCH}"""

# What the rules start, in their order, for tests that need no Snakemake. In one process: Python takes time to start.
LADDER = """
import json, sys
sys.path.insert(0, "workflow/scripts")
import gate, plan, run_scale

def climb():
    yield plan.main(["--out", "results/plan.json"])
    with open("results/plan.json") as file:
        jobs = json.load(file)["jobs"]
    for stage in sys.argv[1:]:
        for job in jobs:
            if job["stage"] == stage:
                yield run_scale.main(["--plan", "results/plan.json", "--scale", job["scale"]])
        yield gate.main(["--plan", "results/plan.json", "--stage", stage])

sys.exit(next(filter(None, climb()), 0))
"""

ANY_EFFICIENCY = 1000
ONE_STAGE: Mapping[str, Any] = {"stage1": {"scales": ["1x1"], "runtime": 5}}
EXPERIMENT: Mapping[str, Any] = {
    "workload": {"script": "loop.py", "args": ["{batch_per_gpu}"], "batch_per_gpu": 16, "lr": None},
    "measure": {"warmup_steps": 5, "min_steps": 10, "plain_baseline": False},
    "repeats": 1,
    "stages": {**ONE_STAGE, "stage2": {"scales": ["1x2"], "runtime": 5}, "stage3": {"scales": ["2x1"], "runtime": 5}},
    "preflight": {"enabled": False},  # its tests switch it on
}


class LoginNode(Protocol):
    """The interface to a cluster that tests bring up."""

    @property
    def python(self) -> str:
        """The Python of its users' commands."""

    def command(self, argv: Sequence[str], *, cwd: Path | None = None) -> list[str]:
        """Return the arguments that run a command on its login node."""


@dataclass(frozen=True)
class Checkout:
    """A copy of the project with a user's commands, run on this machine or on a cluster's login node."""

    path: Path
    cluster: LoginNode | None = None

    def configure(self, **changes: Any) -> None:
        """Write config/config.yaml: the small experiment with ``changes`` over its top-level keys.

        By default, any efficiency passes: on shared cores, other tests disturb the baseline. Nothing is followed.
        """
        (self.path / "loop.py").write_text(LOOP)
        experiment = {**EXPERIMENT, **changes}
        stages = {
            name: stage and {**stage, "gate": {"max_efficiency": ANY_EFFICIENCY, **stage.get("gate", {})}}
            for name, stage in experiment["stages"].items()
        }
        measure = {"witness_steps": "off", **experiment["measure"]}
        text = yaml.safe_dump({**experiment, "stages": stages, "measure": measure}, sort_keys=False)
        (self.path / "config/config.yaml").write_text(text)

    def without_torch(self, script: str = NO_TORCH, launcher: str = "srun") -> None:
        """Replace the training with this program, and start it without torchrun, which imports torch."""
        (self.path / "loop.py").write_text(script)
        self.site(launcher=launcher)

    def site(self, **changes: Any) -> None:
        """Change top-level keys of config/cluster.yaml."""
        file = self.path / "config/cluster.yaml"
        file.write_text(yaml.safe_dump({**yaml.safe_load(file.read_text()), **changes}))

    def set_up(self, script: str, site: Mapping[str, Any], **config: Any) -> None:
        """Write the training, the whole of config/cluster.yaml, and config/config.yaml as `configure` does."""
        self.configure(**config)
        (self.path / "loop.py").write_text(script)
        (self.path / "config/cluster.yaml").write_text(yaml.safe_dump(dict(site)))

    def snakemake(self, *arguments: str, timeout_s: float = 500, **env: str) -> subprocess.CompletedProcess[str]:
        """Run snakemake to its end; output and errors are both in ``stdout``."""
        return self._run(["-m", "snakemake", *arguments], timeout_s, **env)

    def script(self, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a program of workflow/scripts on results/plan.json; output and errors are both in ``stdout``."""
        return self._run([f"workflow/scripts/{name}", "--plan", "results/plan.json", *arguments], 300)

    def climb(self, *stages: str) -> subprocess.CompletedProcess[str]:
        """Plan, measure and judge these stages without Snakemake, until a gate closes."""
        return self._run(["-c", LADDER, *stages], 300)

    @property
    def planned(self) -> Plan:
        """The plan of the settings, made in this process."""
        with contextlib.chdir(self.path):
            return make_plan(load_settings(Path("config/config.yaml"), Path("config/cluster.yaml")))

    def plan(self, scale: str) -> None:
        """Write the plan with this scale's job alone, which so does not wait for the gate below it."""
        plan = self.planned
        jobs = tuple(job for job in plan.jobs if str(job.scale) == scale)
        write_json(self.results / "plan.json", replace(plan, jobs=jobs).to_json())

    def measure(self, scale: str = "1x1") -> str:
        """Make the runs of a scale, without Snakemake; return what its job printed."""
        self.plan(scale)
        done = self.script("run_scale.py", "--scale", scale)
        assert done.returncode == 0, done.stdout  # whatever became of the runs
        return done.stdout

    def start(
        self,
        *arguments: str,
        output: int | IO[str] = subprocess.PIPE,
        stdin: int = subprocess.DEVNULL,
        through: Sequence[str] = (),
    ) -> subprocess.Popen[str]:
        """Start snakemake in its own process group, as a terminal does; ``through``: a command such as nohup."""
        return subprocess.Popen(
            [*through, *self._python(["-m", "snakemake", *arguments])],
            cwd=self.path,
            env=environment(),
            stdin=stdin,
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
            process_group=0,
        )

    def _run(self, argv: list[str], timeout_s: float, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self._python(argv),
            cwd=self.path,
            env={**environment(), **env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def _python(self, arguments: list[str]) -> list[str]:
        """Return the command line of Python with these arguments, on its machine."""
        if self.cluster is None:
            return [sys.executable, *arguments]
        return self.cluster.command([self.cluster.python, *arguments], cwd=self.path)

    @property
    def results(self) -> Path:
        return self.path / "results"

    def record(self, run: str) -> dict[str, Any]:
        data: dict[str, Any] = json.loads((self.results / "runs" / run / "record.json").read_text())
        return data

    def run_times(self) -> dict[str, int]:
        """Return the start time of each run, by name: it shows which runs were repeated."""
        runs = self.results / "runs"
        return {
            file.parent.relative_to(runs).as_posix(): file.stat().st_mtime_ns for file in runs.glob("*/*/*/r*/run.json")
        }

    @property
    def snakemakes_log(self) -> str:
        """The content of the latest one."""
        return max((self.path / ".snakemake/log").glob("*.log")).read_text()

    def processes(self) -> list[str]:
        """Return the command lines of all processes that mention this checkout."""
        found = []
        for process in psutil.process_iter(["cmdline", "cwd"]):
            command = " ".join(process.info["cmdline"] or [])
            if str(self.path) in command or process.info["cwd"] == str(self.path):
                found.append(command)
        return found


# Of a job that failed; the terminal shows the ladder's box instead.
SNAKEMAKES_REPORT = re.compile(
    r"RuleException|Error in rule|CalledProcessError|exited with non-zero|Shutting down|Exiting because"
    r"|Complete log|Elapsed time|WorkflowError"
)


def last_box(output: str) -> dict[str, str]:
    """Return the rows of the box at the end of the output; raise AssertionError if there is none."""
    edges = [number for number, line in enumerate(output.splitlines()) if line.startswith("+---")]
    assert edges, output
    assert edges[-1] == len(output.splitlines()) - 1, output
    rows: dict[str, str] = {}
    label = ""
    for line in output.splitlines()[edges[-2] + 1 : edges[-1]]:
        assert re.fullmatch(r"\| .{92} \|", line), line
        label = line[2:12].strip() or label
        rows[label] = f"{rows.get(label, '')} {line[12:-1].strip()}".strip()
    return rows


def environment() -> dict[str, str]:
    """Return the environment of a user's shell: without variables of pytest, make, the ladder and imports."""
    set_by_make = ("MAKE", "MFLAGS", "LOCKED")
    set_by_imports = ("PYTORCH_NVML_BASED_CUDA_CHECK", "KMP_")  # of Lightning and of scikit-learn
    ours = ("PYTEST", "DDP_", *set_by_make, *set_by_imports)
    return {key: value for key, value in os.environ.items() if not key.startswith(ours)}


@functools.cache
def compile_modules() -> None:
    """Compile the ladder's modules, which each copy takes along: a climb starts Python about 20 times."""
    assert compileall.compile_dir(ROOT / "workflow", quiet=1)


def copy_project(path: Path, cluster: LoginNode | None = None) -> Checkout:
    compile_modules()
    # Other test processes may be compiling: they write to temporary files, x.pyc.123.
    unfinished = shutil.ignore_patterns("*.pyc.*")
    for name in ("config", "profiles", "workflow"):
        shutil.copytree(ROOT / name, path / name, ignore=unfinished)
    shutil.copy(ROOT / "Snakefile", path)
    return Checkout(path, cluster)
