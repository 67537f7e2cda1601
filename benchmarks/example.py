"""Make docs/example/ and the pictures of the docs: a ladder of four scales with two variants on the test cluster.

    sudo make example

Six nodes on one machine, each with its own network, host name and a share of a CPU core; Slurm, Gloo, no GPU. Writes to
docs/example/ the report, with the application in the form of EuroHPC; to docs/ the pictures of its page. It takes 30
minutes on two cores, and needs what the tests on Slurm need, Chromium and control groups.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "workflow/scripts"), str(ROOT / "tests"), str(ROOT / "tests/slurm")]

from cluster import Cluster, clean_orphans  # noqa: E402
from cluster_config import Spec  # noqa: E402
from project_copy import Checkout, copy_project  # noqa: E402

DOCS = ROOT / "docs"
NODES = 6
CORES_LEFT = 0.2  # for Slurm, Snakemake and the kernel
PERIOD_US = 10_000  # short, so that a step of 100 ms has its share
SITE: Mapping[str, Any] = {
    "site": "six-nodes-on-one-machine-Gloo-no-GPU",
    "slurm": {"partition": "gpu", "account": "project"},
    "node": {"gpus": 1, "device": "cpu", "gres": "gpu", "cpus": 1, "memory_mb": 2000},
    "network": {"interface": "ib0"},
    "launcher": "srun",
}
EXPERIMENT: Mapping[str, Any] = {
    "workload": {
        "script": "workflow/workloads/gpt.py",
        "args": ["--batch-size", "{batch_per_gpu}", "--layers", 2, "--width", 64, "--samples", 20_000],
        "batch_per_gpu": 48,
    },
    "measure": {"warmup_steps": 10, "min_steps": 60, "max_steps": 75, "plain_baseline": False},
    "modes": ["weak", "strong"],
    "repeats": 3,
    "stages": {
        "stage1": {"scales": ["1x1"], "runtime": 30, "gate": {}},
        "stage3": {"scales": ["2x1", "4x1", "6x1"], "runtime": 30, "gate": {"min_efficiency": None}},
    },
    "variants": {"default": {}, "zero1": {"args": ["--strategy", "zero1"]}},
    "preflight": {"timeout_s": 240},
    "report": {"epochs": 100, "runs": 5},
}
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


def set_up(checkout: Checkout) -> None:
    """Write the settings as a user would; JSON is YAML."""
    (checkout.path / "config/config.yaml").write_text(json.dumps(EXPERIMENT))
    (checkout.path / "config/cluster.yaml").write_text(json.dumps(SITE))


def keep(report: Path) -> None:
    """Copy what is shown to docs/."""
    example = DOCS / "example"
    shutil.rmtree(example, ignore_errors=True)
    shutil.copytree(report, example, ignore=shutil.ignore_patterns(".*"))
    # The runs themselves are not kept; proposal.md becomes a page of the docs: no links to these files.
    (example / "scaling.md").unlink()
    page = example / "index.html"
    page.write_text(re.sub(r'<a href="(?:\.\./[^"]*|[^"/]*\.md)">(.*?)</a>', r"\1", page.read_text()))
    browser = ("chromium", "--headless", "--no-sandbox", "--hide-scrollbars", f"--window-size={PAGE_SIZE}")
    shot = f"--screenshot={DOCS / 'report.png'}"
    subprocess.run([*browser, shot, str(page)], check=True, stderr=subprocess.DEVNULL)
    shutil.copy(example / "usage/usage_default_weak_6x1_r1.png", DOCS / "usage.png")


def main(argv: Sequence[str] | None = None) -> int:
    """Return the exit code of the climb, or of the report."""
    clean_orphans()
    with TemporaryDirectory(prefix="ddp-ladder-example-") as name:
        cluster = Cluster.up(Spec(nodes=NODES, gpus=1, cpus=1, memory_mb=4000, accounting=True))
        with limited_nodes(cluster):
            checkout = copy_project(Path(name) / "ddp-ladder", cluster)
            set_up(checkout)
            for arguments in (("--profile", "profiles/slurm"), ("report", "--config", "centre=eurohpc")):
                with checkout.start(*arguments, output=None) as climb:
                    if climb.wait() != 0:
                        return climb.returncode
        keep(checkout.results / "report")
    print("written: docs/example/index.html and what belongs to it, docs/report.png, docs/usage.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
