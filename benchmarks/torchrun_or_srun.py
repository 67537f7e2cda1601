"""Why is torchrun slower than srun? How much each cause explains, by config/experiments/torchrun-or-srun.yaml.

    sudo .venv/bin/python benchmarks/torchrun_or_srun.py     # about ten minutes on two cores

On the clusters of tests/slurm, a real Slurm on this machine with two nodes of two cores: its variants take turns in one
job, in each of --repeats rounds. A cause is a pair of variants that differ in nothing else. Its figure is the ratio of
their throughputs in the same round, with its interval and verdict as `snakemake compare` has them.

  binding   1x2 on a Slurm that binds each task to cores of its own, as most sites' do
  threads   1x1 on a node with one GPU, whose rank has two cores
  nodes     2x1 on a Slurm that binds nothing: on this one machine, the nodes' first cores are the same one
  order     2x2 over links of --link-mbit: mnist.py directly under srun with --distribution=block, and =cyclic

The training is the experiment's, with fewer and smaller steps, on images of MNIST's size and format (random pixels).
It writes the figures to --out, and their table into docs/torchrun-or-srun.md.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import date
from functools import partial
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests/slurm"), str(ROOT / "workflow/scripts")]

from cluster import Cluster  # noqa: E402
from cluster_config import Spec  # noqa: E402
from ddp_ladder.common.formats import duration  # noqa: E402
from ddp_ladder.report.comparison import (  # noqa: E402
    beyond_chance,
    paired,
    verdict,
)
from machines import ClusterError  # noqa: E402
from project_copy import copy_project, environment  # noqa: E402
from small_datasets import write_mnist  # noqa: E402

EXPERIMENT = "config/experiments/torchrun-or-srun.yaml"
RESULTS = ROOT / "benchmarks/results/torchrun_or_srun.json"
DOC = ROOT / "docs/torchrun-or-srun.md"
BEGIN, END = "<!-- written by benchmarks/torchrun_or_srun.py -->", "<!-- end -->"

CORES = 2  # of each node
MEASURE = {"warmup_steps": 6, "min_steps": 20, "max_steps": 40, "plain_baseline": False}
BATCH = 64
PART_TIMEOUT_S = 3600.0  # more than any part takes: a hang must end
RUN_TIMEOUT_S = 180.0

ORDER_BATCH, ORDER_STEPS, ORDER_EPOCHS = 8, 12, 4
RUN = re.compile(r"(\S+/weak/r\d+): ([\d,.]+) samples/s, \d+ steps measured")
# What torchrun would set, from what srun sets.
RANKS = 'RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID exec "$0" "$@"'
EPOCH = re.compile(r"^epoch +\d+ +([\d,.]+) samples/s", re.MULTILINE)


@dataclass(frozen=True)
class Part:
    """Variants of the experiment at one scale, in one job. gpus: of a node, which share its cores."""

    name: str
    scale: str
    binds: bool
    gpus: int
    variants: tuple[str, ...]

    @property
    def nodes(self) -> int:
        return int(self.scale.partition("x")[0])

    @property
    def ranks(self) -> int:
        return int(self.scale.partition("x")[2])

    @property
    def cores(self) -> int:
        """Of the job on each node."""
        return CORES * self.ranks // self.gpus

    @property
    def stage(self) -> str:
        return "stage3" if self.nodes > 1 else "stage2" if self.ranks > 1 else "stage1"


PARTS = (
    Part(
        "binding",
        "1x2",
        True,
        2,
        ("default", "srun", "own-cores", "same-cores", "all-threads", "workers", "workers-own-cores"),
    ),
    Part("threads", "1x1", True, 1, ("default", "one-thread")),
    Part("nodes", "2x1", False, 2, ("default", "srun")),
)
ORDER = Part("order", "2x2", False, 2, ("block", "cyclic"))


@dataclass(frozen=True)
class Cause:
    """A pair of variants of a part that differ in one thing."""

    what: str
    part: str
    variant: str
    against: str


CAUSES = (
    Cause("the launcher: the same threads on the same cores", "binding", "own-cores", "srun"),
    Cause("the launcher, on two nodes", "nodes", "default", "srun"),
    Cause("CPU binding: one mask for all ranks, or own cores for each", "binding", "default", "own-cores"),
    Cause("too few cores: all ranks on those of one", "binding", "same-cores", "own-cores"),
    Cause("`OMP_NUM_THREADS`: the node's cores for each rank", "binding", "all-threads", "default"),
    Cause("`OMP_NUM_THREADS=1` for a rank with two cores", "threads", "one-thread", "default"),
    Cause(
        "a loader process per rank: one mask for all, or the rank's cores", "binding", "workers", "workers-own-cores"
    ),
    Cause("rank order, over a slow link", "order", "cyclic", "block"),
    Cause("the slides' torchrun and their srun: launcher, cores and threads", "binding", "same-cores", "srun"),
)

Rates = dict[str, dict[str, list[float]]]
"""Samples per second of each round, by part and variant."""


@contextmanager
def cluster_of(binds: bool) -> Iterator[Cluster]:
    """Bring up two nodes. binds: Slurm binds each task to cores of its own."""
    cluster = Cluster.up(Spec(nodes=2, gpus=2, cpus=CORES, conf=("TaskPlugin=task/affinity",) if binds else ()))
    try:
        yield cluster
    finally:
        cluster.down()


class Progress:
    """What has been measured, and about how long the rest takes."""

    def __init__(self, runs: int) -> None:
        self._runs, self._done, self._began_s = runs, 0, time.monotonic()

    def tell(self, run: str, samples_per_s: float) -> None:
        self._done += 1
        left_s = (time.monotonic() - self._began_s) / self._done * (self._runs - self._done)
        rest = f"{self._done} of {self._runs} runs, about {duration(left_s)} left"
        print(f"  {run:<42} {samples_per_s:8,.0f} samples/s   {rest}", flush=True)


def measured(part: Part, cluster: Cluster, directory: Path, repeats: int, progress: Progress) -> dict[str, list[float]]:
    """Run a part's job; return the samples per second of each variant in each round."""
    checkout = copy_project(directory / part.name, cluster)
    write_settings(part, checkout.path, directory, repeats)
    plan = checkout.path / "results/plan.json"
    argv = [sys.executable, "workflow/scripts/plan.py", "--config", EXPERIMENT, "--out", str(plan)]
    subprocess.run(argv, cwd=checkout.path, env=environment(), check=True, stdout=subprocess.DEVNULL)
    content = json.loads(plan.read_text())
    # Without the other jobs, this one does not wait for the gate of stage 1.
    plan.write_text(json.dumps({**content, "jobs": [job for job in content["jobs"] if job["scale"] == part.scale]}))
    run_job(part, cluster, checkout.path, progress)
    rates: dict[str, list[float]] = {}
    for variant in part.variants:
        files = [record_file(checkout.path, part, variant, number) for number in range(1, repeats + 1)]
        rates[variant] = [samples_per_s(file) for file in files]
    return rates


def write_settings(part: Part, checkout: Path, data: Path, repeats: int) -> None:
    """Write the experiment with the part's scale and variants, and its site."""
    file = checkout / EXPERIMENT
    config = yaml.safe_load(file.read_text())
    config |= {
        "results": "results",
        "workload": {**config["workload"], "batch_per_gpu": BATCH, "data_dir": str(data / "mnist"), "prepare": None},
        "measure": MEASURE,
        "repeats": repeats,
        "stages": {"stage1": {"scales": ["1x1"]}, part.stage: {"scales": [part.scale], "runtime": 60}},
        "variants": {name: config["variants"][name] for name in part.variants},
        # The nodes are one machine: what watches them would be there twice.
        "preflight": {"enabled": False},
        "monitor": {"enabled": False},
    }
    file.write_text(yaml.safe_dump(config, sort_keys=False))
    node = {"gpus": part.gpus, "device": "cpu", "gres": "gpu", "cpus": CORES, "memory_mb": 8000}
    (checkout / "config/cluster.yaml").write_text(yaml.safe_dump({"site": "benchmark", "node": node}))


def run_job(part: Part, cluster: Cluster, checkout: Path, progress: Progress) -> None:
    """Run the part's job in an allocation, and tell of each run as soon as it has ended."""
    asked = [f"--nodes={part.nodes}", "--ntasks-per-node=1", f"--cpus-per-task={part.cores}"]
    allocated = ["salloc", "--time=60", "--mem=8000", f"--gres=gpu:{part.ranks}", *asked]
    job = [sys.executable, "workflow/scripts/run_scale.py", "--plan", "results/plan.json", "--scale", part.scale]
    output, told = checkout / "output", 0
    deadline_s = time.monotonic() + PART_TIMEOUT_S
    with output.open("w") as file:
        argv, env = cluster.command([*allocated, *job], cwd=checkout), cluster.environment()
        process = subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT)
        try:
            ended = False
            while not ended:
                if time.monotonic() > deadline_s:
                    raise SystemExit(f"{part.name}: not done after {duration(PART_TIMEOUT_S)}:\n{output.read_text()}")
                with suppress(subprocess.TimeoutExpired):
                    ended = process.wait(timeout=1) is not None
                runs = RUN.findall(output.read_text())
                for run, rate in runs[told:]:
                    progress.tell(f"{part.scale} {run}", float(rate.replace(",", "")))
                told = len(runs)
        finally:
            process.terminate()
            process.wait()
    if process.returncode != 0:
        raise SystemExit(f"{part.name} failed:\n{output.read_text()}")


def record_file(checkout: Path, part: Part, variant: str, number: int) -> Path:
    """Return the record of a variant's run in a round, counted from 1."""
    return checkout / f"results/runs/{variant}/weak/{part.scale}/r{number}/record.json"


def samples_per_s(file: Path) -> float:
    """Return a run's throughput; SystemExit with the reason if it failed."""
    record = json.loads(file.read_text())
    if record["status"] != "ok":
        raise SystemExit(f"{file.parent} failed: {record['failure']}")
    return float(record["throughput"]["samples_per_s"])


def masks(cluster: Cluster) -> dict[str, list[str]]:
    """Return the CPUs of each task of a node with two cores, for two tasks (srun) and for one (torchrun)."""
    asked = {"srun": ["--ntasks=2", "--cpus-per-task=1"], "torchrun": ["--ntasks=1", "--cpus-per-task=2"]}
    show = ["sh", "-c", "grep Cpus_allowed_list /proc/self/status"]
    return {
        launcher: sorted(cluster.run(["srun", "--nodes=1", *options, *show]).stdout.split()[1::2])
        for launcher, options in asked.items()
    }


def measured_order(
    cluster: Cluster, directory: Path, repeats: int, link_mbit: int, progress: Progress
) -> dict[str, list[float]]:
    """Return the samples per second of four ranks on two nodes, in both orders, over throttled links."""
    for node in cluster.nodes:
        shaped = f"tc qdisc add dev ib0 root tbf rate {link_mbit}mbit burst 256kb latency 50ms"
        cluster.run(shaped.split(), node=node)
    data = write_mnist(directory / "small", train=ORDER_BATCH * ORDER_STEPS * 4)
    script = [sys.executable, str(ROOT / "workflow/workloads/mnist.py"), "--data", "mnist", "--data-dir", str(data)]
    script += ["--data-on", "host", "--batch-size", str(ORDER_BATCH), "--epochs", str(ORDER_EPOCHS)]
    rates: dict[str, list[float]] = {name: [] for name in ORDER.variants}
    for number in range(1, repeats + 1):
        for name in ORDER.variants:
            argv = ["srun", "--nodes=2", "--ntasks=4", "--ntasks-per-node=2", "--cpus-per-task=1", "--gres=gpu:2"]
            head = {"MASTER_ADDR": cluster.addresses["node1"], "MASTER_PORT": "29500", "WORLD_SIZE": "4"}
            env = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "ib0", "CUDA_VISIBLE_DEVICES": "", **head}
            run = partial(cluster.run, env=env, cwd=directory, timeout_s=RUN_TIMEOUT_S)
            command = [*argv, f"--distribution={name}", "sh", "-c", RANKS, *script]
            try:
                done = run(command)
            except ClusterError as error:  # rarely, torch aborts a rank at its exit: pytorch issue 190489
                print(f"{error}\n  {name}/r{number} failed and is run once more", flush=True)
                done = run(command)
            # The first epoch makes DDP's buckets.
            rates[name].append(median(float(rate.replace(",", "")) for rate in EPOCH.findall(done.stdout)[1:]))
            progress.tell(f"{ORDER.scale} {name}/r{number}", rates[name][-1])
    return rates


def explained(rates: Rates) -> list[dict[str, Any]]:
    """Return each cause with the ratio of its pair, interval and verdict, as `snakemake compare` has them."""
    ratios = [paired(rates[cause.part][cause.variant], rates[cause.part][cause.against]) for cause in CAUSES]
    scales = {part.name: part.scale for part in (*PARTS, ORDER)}
    found = []
    for cause, ratio, beyond in zip(CAUSES, ratios, beyond_chance(ratios), strict=True):
        scale = scales[cause.part]
        figures = {"ratio": ratio.value, "low": ratio.low, "high": ratio.high, "found": verdict(ratio, beyond)}
        found.append({**asdict(cause), "scale": scale, **figures})
    return found


def table(figures: Mapping[str, Any]) -> str:
    """Return what is written into the page: the causes as a table, and how they were measured."""
    rows = [
        "| cause | variants | scale | throughput | 95 % interval | found |",
        "| --- | --- | --- | ---: | --- | --- |",
    ]
    for cause in figures["causes"]:
        ratio, low, high = (cause[name] - 1 for name in ("ratio", "low", "high"))
        pair = f"`{cause['variant']}` / `{cause['against']}`"
        interval = f"{low:+.1%} to {high:+.1%}"
        rows.append(f"| {cause['what']} | {pair} | {cause['scale']} | {ratio:+.1%} | {interval} | {cause['found']} |")
    machine, setting = figures["machine"], figures["setting"]
    how = (
        f"{setting['repeats']} rounds on {machine['date']}: {machine['cpus']} cores ({machine['cpu']}), "
        f"torch {machine['torch']}, {machine['slurm']}; load of the machine before it began: "
        f"{machine['load_1min_before']:.1f}. {setting['batch_per_gpu']} samples per rank and step; for the rank order "
        f"{setting['order_batch_per_gpu']}, over links of {setting['link_mbit']} Mbit/s."
    )
    return re.sub(r"(\d)%", r"\1 %", "\n".join(rows)) + f"\n\n{how}"


def with_table(page: str, figures: Mapping[str, Any]) -> str:
    """Return the page with this table in place of its own."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{table(figures)}\n\n{END}{after}"


def cpu_name() -> str:
    """Return the processor's name as the system knows it."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


def measure(repeats: int, link_mbit: int) -> dict[str, Any]:
    """Return the figures of all parts."""
    machine: dict[str, Any] = {
        "date": date.today().isoformat(),
        "system": platform.platform(),
        "cpu": cpu_name(),
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "torch": version("torch"),
        "load_1min_before": round(os.getloadavg()[0], 1),
    }
    progress = Progress(repeats * sum(len(part.variants) for part in (*PARTS, ORDER)))
    rates: Rates = {}
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="torchrun-or-srun-") as name:
        directory = Path(name)
        write_mnist(directory / "mnist", train=60_000, test=1000)
        for binds in (True, False):
            with cluster_of(binds) as cluster:
                if binds:
                    machine["slurm"] = cluster.run(["srun", "--version"]).stdout.strip()
                    seen = masks(cluster)
                for part in PARTS:
                    if part.binds is binds:
                        print(f"{part.name}: {part.scale}, {repeats} rounds of {', '.join(part.variants)}", flush=True)
                        rates[part.name] = measured(part, cluster, directory, repeats, progress)
                if not binds:
                    print(f"{ORDER.name}: {ORDER.scale} over links of {link_mbit} Mbit/s", flush=True)
                    rates[ORDER.name] = measured_order(cluster, directory, repeats, link_mbit, progress)
    machine["load_1min_after"] = round(os.getloadavg()[0], 1)
    setting = {
        "repeats": repeats,
        "batch_per_gpu": BATCH,
        **{key: value for key, value in MEASURE.items() if key != "plain_baseline"},
        "order_batch_per_gpu": ORDER_BATCH,
        "link_mbit": link_mbit,
        "cpus_of_the_tasks_where_slurm_binds": seen,
        "took_s": round(time.monotonic() - began_s),
    }
    return {"machine": machine, "setting": setting, "causes": explained(rates), "samples_per_s": rates}


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the table, write the figures and the page's table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=4, help="rounds, 2 or more (default: %(default)s)")
    parser.add_argument("--link-mbit", type=int, default=1000, help="of the part order (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="the figures as JSON (default: %(default)s)")
    arguments = parser.parse_args(argv)
    if arguments.repeats < 2:
        parser.error(f"--repeats {arguments.repeats}: an interval needs at least 2")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the clusters are taken down
    figures = measure(arguments.repeats, arguments.link_mbit)
    print(f"\n{table(figures)}")
    arguments.out.write_text(json.dumps(figures, indent=2) + "\n")
    print(f"\nwritten: {arguments.out}")
    if arguments.out == RESULTS:
        DOC.write_text(with_table(DOC.read_text(), figures))
        print(f"written: {DOC}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
