"""Time between a stage's last job and the next stage's first, against a chain of jobs with `sbatch -d afterok`.

    sudo .venv/bin/python benchmarks/stage_hops.py --seconds 2 --seconds 90

Both run on the cluster of tests/slurm, a real Slurm on this machine, one after the other. A hop is the time from the
end of a job to the submission of the next (chain: to its start, because all jobs are submitted at once), in whole
seconds from the accounting. The ladder's hop includes noticing the end of the job, the gate, and the submission.
--seconds is the length of each training: the plugin polls less often, the longer a job runs.
"""

from __future__ import annotations

import argparse
import itertools
import json
import platform
import sys
import tempfile
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "workflow/scripts"), str(ROOT / "tests"), str(ROOT / "tests/slurm")]

from cluster import Cluster  # noqa: E402
from cluster_config import ACCOUNT, Spec  # noqa: E402
from project_copy import LOOP, copy_project  # noqa: E402

STAGES = {
    "stage1": {"scales": ["1x1"], "runtime": 30},
    "stage2": {"scales": ["1x2"], "runtime": 30},
    "stage3": {"scales": ["2x1"], "runtime": 30},
}
SITE = {
    "site": "benchmark",
    "slurm": {"partition": "gpu", "account": ACCOUNT},
    "node": {"gpus": 2, "device": "cpu", "gres": "gpu", "cpus": 2, "memory_mb": 4000},
}


def ladder_hops(cluster: Cluster, directory: Path, seconds: float) -> list[float]:
    """Return the seconds from each stage's end to the next submission, with the shipped profile."""
    checkout = copy_project(directory, cluster)
    checkout.configure(stages=STAGES, measure={"warmup_steps": 1, "min_steps": 5})
    (checkout.path / "loop.py").write_text(f"import time; time.sleep({seconds})\n{LOOP}")
    (checkout.path / "config/cluster.yaml").write_text(yaml.safe_dump(SITE))
    done = checkout.snakemake("--profile", "profiles/slurm", timeout_s=600 + 4 * seconds)
    if done.returncode != 0:
        raise SystemExit(done.stdout)
    jobs = [int(checkout.record(f"default/weak/{scale}/r1")["job"]["id"]) for scale in ("1x1", "1x2", "2x1")]
    return hops(cluster, jobs, "Submit")


def chain_hops(cluster: Cluster, seconds: float) -> list[float]:
    """Return the seconds from each job's end to the next one's start, in a chain of Slurm dependencies."""
    jobs: list[int] = []
    for _ in STAGES:
        after = [f"--dependency=afterok:{jobs[-1]}"] if jobs else []
        jobs.append(cluster.sbatch(f"sleep {seconds}", f"--account={ACCOUNT}", *after))
    return hops(cluster, jobs, "Start")


def hops(cluster: Cluster, jobs: Sequence[int], begins: str) -> list[float]:
    """Return the seconds from each job's end to the next one's ``begins``, from the accounting."""
    for job in jobs:
        cluster.await_accounted(job, timeout_s=1200)
    command = ["sacct", "--allocations", "--noheader", "--parsable2", f"--jobs={','.join(map(str, jobs))}"]
    rows = [line.split("|") for line in cluster.run([*command, f"--format={begins},End"]).stdout.split()]
    times = [(datetime.fromisoformat(begin), datetime.fromisoformat(end)) for begin, end in rows]
    return [(later[0] - earlier[1]).total_seconds() for earlier, later in itertools.pairwise(times)]


def main(argv: Sequence[str] | None = None) -> int:
    """Run both, print the table, and write it to --out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, action="append", help="length of each training; may be repeated")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    arguments = parser.parse_args(argv)
    results = []
    print("training_s  hop      ladder_s  afterok_s")
    with tempfile.TemporaryDirectory() as directory:
        cluster = Cluster.up(Spec(nodes=2, accounting=True))
        try:
            for number, seconds in enumerate(arguments.seconds or [2.0]):
                ladder = ladder_hops(cluster, Path(directory) / str(number), seconds)
                chain = chain_hops(cluster, seconds)
                for name, ours, slurms in zip(("1 to 2", "2 to 3"), ladder, chain, strict=True):
                    print(f"{seconds:10.0f}  {name:7}  {ours:8.0f}  {slurms:9.0f}", flush=True)
                    results.append({"training_s": seconds, "hop": name, "ladder_s": ours, "afterok_s": slurms})
        finally:
            cluster.down()
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        about = {"machine": platform.platform(), "python": platform.python_version(), "hops": results}
        arguments.out.write_text(json.dumps(about, indent=2) + "\n")
        print(f"written: {arguments.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
