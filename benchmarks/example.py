"""Make docs/example/ and the pictures of the docs: two ladders and a training on the test cluster.

    sudo make example

Four nodes on one machine, each with its own network, host name and a share of a CPU core; Slurm, Gloo, no GPU. A ladder
on a slow network; a ladder of three scales with two variants on a fast one; a rehearsal and a chain of three jobs at
its largest scale. Writes to docs/example/ the report with two applications, what the witness saw, the final report of
the chain and the history of both ladders; to docs/ the pictures. It takes 30 minutes on two cores, and needs what the
tests on Slurm need, Chromium and control groups.
"""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "workflow/scripts"), str(ROOT / "tests"), str(ROOT / "tests/slurm")]

from cluster import Cluster, clean_orphans  # noqa: E402
from cluster_config import Spec  # noqa: E402
from faults import LIMIT  # noqa: E402
from project_copy import Checkout, copy_project  # noqa: E402

DOCS = ROOT / "docs"
EXAMPLE = DOCS / "example"
NODES = 4
CORES_LEFT = 0.2  # for Slurm, Snakemake and the kernel
PERIOD_US = 10_000  # short, so that a step of 100 ms has its share
SITE: Mapping[str, Any] = {
    "site": "four-nodes-on-one-machine-Gloo-no-GPU",
    "slurm": {"partition": "gpu", "account": "project"},
    "node": {"gpus": 1, "device": "cpu", "gres": "gpu", "cpus": 1, "memory_mb": 2000},
    "network": {"interface": "ib0"},
    "launcher": "srun",
}
SLOW = LIMIT.format(mbit=50)
FAST = "tc qdisc delete dev ib0 root"
SAMPLES = 4800  # an epoch
ARGS = ["--batch-size", "{batch_per_gpu}", "--layers", 2, "--width", 64, "--samples", SAMPLES]
SCALES = ("1x1", "2x1", "4x1")
LINKS, TRAINING_S = 3, 108  # the chain, and how long a link of four minutes trains before it is told to end
EXPERIMENT: Mapping[str, Any] = {
    "workload": {"script": "workflow/workloads/gpt.py", "args": [*ARGS, "--epochs", 100], "batch_per_gpu": 48},
    "measure": {"warmup_steps": 10, "min_steps": 40, "max_steps": 50, "plain_baseline": False},
    "repeats": 3,
    "stages": {
        "stage1": {"scales": SCALES[:1], "runtime": 30, "gate": {}},
        "stage3": {"scales": SCALES[1:], "runtime": 30, "gate": {"min_efficiency": None}},
    },
    "preflight": {"timeout_s": 240},
}
VARIANTS: Mapping[str, Any] = {
    "modes": ["weak", "strong"],
    "variants": {"default": {}, "zero1": {"args": ["--strategy", "zero1"]}},
}
FORMS = ("lumi", "eurohpc")
PAGE_SIZE = "1280,930"


@contextmanager
def limited_nodes(cluster: Cluster) -> Iterator[None]:
    """Give each node's Slurm daemon, and so all that it starts, its share of the machine's cores; end the cluster."""
    groups = []
    try:
        for process in psutil.process_iter(["cmdline"]):
            command = process.info["cmdline"] or []
            if command[:1] == ["slurmd"] and str(cluster.root) in " ".join(process.environ().values()):
                groups.append(limit(process.pid, command[-1]))
        yield
    finally:
        cluster.down()
        for group in groups:
            group.rmdir()


def limit(pid: int, node: str) -> Path:
    """Put the process into a control group with a node's share of CPU time; return the group."""
    share = ((os.cpu_count() or 1) - CORES_LEFT) / NODES
    old = Path("/sys/fs/cgroup/cpu")
    group = (old if old.is_dir() else old.parent) / f"ddp-ladder-example-{node}"
    group.mkdir(exist_ok=True)
    quota_us = str(int(share * PERIOD_US))
    if old.is_dir():
        (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
        (group / "cpu.cfs_quota_us").write_text(quota_us)
    else:
        (group / "cpu.max").write_text(f"{quota_us} {PERIOD_US}")
    (group / "cgroup.procs").write_text(str(pid))
    return group


def make(cluster: Cluster, checkout: Checkout) -> None:
    """Make both ladders, the training and its report, as a user would. JSON is YAML."""
    experiment = checkout.path / "config/config.yaml"
    (checkout.path / "config/cluster.yaml").write_text(json.dumps(SITE))
    for name, command, more in (("slow", SLOW, {}), ("fast", FAST, VARIANTS)):
        for node in cluster.nodes:
            cluster.run(command.split(), node=node)
        experiment.write_text(json.dumps({**EXPERIMENT, **more}))
        climb(checkout, name)
    experiment.write_text(json.dumps({**EXPERIMENT, **VARIANTS, **training(checkout.results)}))
    for form in FORMS:
        run(checkout, "report", "--config", f"centre={form}")
        shutil.move(checkout.results / "report/proposal.md", checkout.path / f"proposal-{form}.md")
    for target in ("rehearsal", "production"):
        run(checkout, target, "--profile", "profiles/slurm")
    run(checkout, "final_report")


def training(results: Path) -> Mapping[str, Any]:
    """Return the settings of a training that needs three jobs at the largest scale, at the rate that was measured."""
    with (results / "report/scaling.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if (row["variant"], row["mode"]) == ("default", "weak")]
    epochs = round((LINKS - 0.5) * TRAINING_S * float(rows[-1]["samples_per_s"]) / SAMPLES)
    production = {
        "scale": SCALES[-1],
        "args": [*ARGS, "--epochs", epochs, "--checkpoint-dir", "{run_dir}"],
        "runtime": 4,
        "warn_before_s": 30,
        "rehearse_s": 40,
        "up_to_hours": 2,
    }
    return {"report": {"epochs": epochs, "runs": 5}, "production": production}


def climb(checkout: Checkout, name: str) -> None:
    """Climb the ladder, and pack it as ``name``.zip; the results of one before are set aside."""
    if checkout.results.exists():
        checkout.results.rename(checkout.path / "before")
    run(checkout, "--profile", "profiles/slurm")
    run(checkout, "archive")
    (packed,) = checkout.results.glob("archive-*.zip")
    packed.rename(checkout.path / f"{name}.zip")


def run(checkout: Checkout, *arguments: str) -> None:
    """Run snakemake. Raises CalledProcessError."""
    with checkout.start(*arguments, output=None) as process:
        if process.wait() != 0:
            raise subprocess.CalledProcessError(process.returncode, ["snakemake", *arguments])


def keep(checkout: Checkout) -> None:
    """Copy what is shown to docs/."""
    results = checkout.results
    chain = results / "production"
    shutil.rmtree(EXAMPLE, ignore_errors=True)
    shutil.copytree(results / "report", EXAMPLE, ignore=shutil.ignore_patterns(".*", "planned.json"))
    (EXAMPLE / "scaling.md").unlink()
    for form in FORMS:
        shutil.copy(checkout.path / f"proposal-{form}.md", EXAMPLE)
    shutil.copy(results / "witness/default.json", EXAMPLE / "witness.json")
    for kind in ("html", "md", "csv"):
        shutil.copy(chain / f"final_report.{kind}", EXAMPLE)
    history = [sys.executable, "workflow/scripts/history.py", "slow.zip", "fast.zip"]
    with (EXAMPLE / "history.txt").open("w") as file:
        subprocess.run(history, cwd=checkout.path, stdout=file, check=True)
    shutil.copy(checkout.path / "history.csv", EXAMPLE)
    # The runs themselves are not kept, and the texts become pages of the docs: no links to these files.
    for name, picture in (("index.html", "report.png"), ("final_report.html", "final-report.png")):
        page = EXAMPLE / name
        page.write_text(re.sub(r'<a href="(?:\.\./[^"]*|[^"/]*\.md)">(.*?)</a>', r"\1", page.read_text()))
        browser = ("chromium", "--headless", "--no-sandbox", "--hide-scrollbars", f"--window-size={PAGE_SIZE}")
        subprocess.run([*browser, f"--screenshot={DOCS / picture}", str(page)], check=True, stderr=subprocess.DEVNULL)
    shutil.copy(EXAMPLE / f"usage/usage_default_weak_{SCALES[-1]}_r1.png", DOCS / "usage.png")


def main() -> int:
    """Return 0, or the exit code of what failed."""
    clean_orphans()
    with TemporaryDirectory(prefix="ddp-ladder-example-") as name:
        cluster = Cluster.up(Spec(nodes=NODES, gpus=1, cpus=1, memory_mb=4000, accounting=True))
        with limited_nodes(cluster):
            checkout = copy_project(Path(name) / "ddp-ladder", cluster)
            try:
                make(cluster, checkout)
            except subprocess.CalledProcessError as error:
                return error.returncode
            keep(checkout)
            links = json.loads((checkout.results / "production/links.json").read_text())["links"]
    print("written: docs/example/ and the pictures of the docs")
    if len(links) != LINKS:
        print(f"the chain has {len(links)} links, not {LINKS}: change TRAINING_S for this machine")
    return 0


if __name__ == "__main__":
    sys.exit(main())
