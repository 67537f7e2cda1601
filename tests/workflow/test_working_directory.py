"""Where the training starts: a directory that all runs share, or one for each run. Real ladders on this machine."""

from __future__ import annotations

import json
from typing import Any

from project_copy import Checkout

ALL = ("--cores", "all")


# 10 epochs over 128 samples in the manner of the fault-tolerance tutorial: a snapshot in epochs 0 and 8, to go on from.
SNAPSHOTS = """
import json, os, sys

def train():
    begin = 0
    if os.path.exists("snapshot.pt"):
        begin = int(open("snapshot.pt").read())
    for epoch in range(begin, 10):
        with open(os.environ["DDP_LADDER_METRICS"], "a") as file:
            for step in range(32 // int(os.environ["WORLD_SIZE"])):
                file.write(json.dumps({"samples": 4, "seconds": 0.001}) + "\\n")
        if epoch % 8 == 0 and os.environ["WORLD_SIZE"] == "1":  # a second rank, which waits for none, would find it
            open("snapshot.pt", "w").write(str(epoch + 1))

if __name__ == "__main__":
    train()
"""
START = """
import os, sys
from mine import train
train.train()
if os.path.exists(sys.argv[1]):
    raise ValueError("crashed in the end")
"""


def bring_snapshots(checkout: Checkout, **workload: Any) -> None:
    mine = checkout.path / "mine"
    mine.mkdir(exist_ok=True)
    (mine / "train.py").write_text(SNAPSHOTS)
    script = {"script": "mine/train.py", "args": ["{batch_per_gpu}"], "batch_per_gpu": 4}
    checkout.site(launcher="srun")
    checkout.configure(
        workload={**script, **workload},
        measure={"warmup_steps": 2, "min_steps": 8, "plain_baseline": False},
        stages={
            "stage1": {"scales": ["1x1"], "runtime": 5},
            "stage2": {"scales": ["1x2"], "runtime": 5, "gate": {"min_efficiency": 0.01}},
        },
    )


def steps(checkout: Checkout, run: str) -> int:
    count: int = checkout.record(run)["ranks"][0]["steps"]
    return count


def test_a_snapshot_in_a_shared_directory_closes_the_gate(checkout: Checkout) -> None:
    bring_snapshots(checkout)
    assert checkout.snakemake(*ALL).returncode != 0
    assert (steps(checkout, "default/weak/1x1/r1"), steps(checkout, "default/weak/1x2/r1")) == (320, 16)
    box = json.loads((checkout.results / "gates/stage2.closed.json").read_text())
    assert "not comparable: not like for like: steps: 320 (1,280 samples) at 1x1, 16 (128 samples) at 1x2" in box["why"]
    assert 'workload.directory: "{run_dir}"' in box["next"]


def test_an_attempt_never_finds_what_the_one_before_it_left(checkout: Checkout) -> None:
    bring_snapshots(checkout, script="-m mine.start", directory="{run_dir}", args=["{start_dir}/broken"])
    (checkout.path / "mine/start.py").write_text(START)
    broken = checkout.path / "broken"
    broken.touch()
    assert checkout.snakemake("stage1", *ALL).returncode != 0
    assert checkout.record("default/weak/1x1/r1")["failure"]["why"] == "rank 0: ValueError: crashed in the end"
    broken.unlink()
    climbed = checkout.snakemake("stage2", *ALL)
    assert climbed.returncode == 0, climbed.stdout
    run = checkout.results / "runs/default/weak/1x1/r1"
    assert (run / "attempts/1/work/snapshot.pt").exists()
    assert (run / "work/snapshot.pt").exists()
    assert not list(checkout.path.glob("*.pt"))
    assert (steps(checkout, "default/weak/1x1/r1"), steps(checkout, "default/weak/1x2/r1")) == (320, 160)
    assert json.loads((run / "record.json").read_text())["remarks"] == []


def test_a_directory_that_cannot_be_made_is_reported_with_its_key(checkout: Checkout) -> None:
    checkout.configure(
        workload={"script": "loop.py", "args": [16], "batch_per_gpu": 16, "directory": "/proc/none/here"}
    )
    checkout.measure()
    failure = checkout.record("default/weak/1x1/r1")["failure"]
    assert failure["verdict"] == "the workload could not be set up"
    assert "workload.directory: /proc/none/here cannot be used: No such file or directory" in failure["why"]
    assert failure["next"].startswith("correct workload.directory in config.yaml")
