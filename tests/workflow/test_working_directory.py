"""Where the training starts: a directory that all runs share, or one for each run. Real runs on this machine."""

from __future__ import annotations

import json

from project_copy import ONE_STAGE, Checkout

# 10 epochs of 32 steps in the manner of the fault-tolerance tutorial: a snapshot near the end, to go on from.
SNAPSHOTS = """
import json, os, sys
begin = int(open("snapshot.pt").read()) if os.path.exists("snapshot.pt") else 0
for epoch in range(begin, 10):
    with open(os.environ["DDP_LADDER_METRICS"], "a") as file:
        for step in range(32):
            file.write(json.dumps({"samples": 4, "seconds": 0.001}) + "\\n")
open("snapshot.pt", "w").write("9")
if os.path.exists(sys.argv[1]):
    raise ValueError("crashed in the end")
"""


def test_an_attempt_never_finds_what_the_one_before_it_left(checkout: Checkout) -> None:
    """If it did, it would make fewer steps than its repeats, and the gate would close."""
    (checkout.path / "mine").mkdir()
    (checkout.path / "mine/train.py").write_text(SNAPSHOTS)
    checkout.site(launcher="srun")
    workload = {"script": "-m mine.train", "args": ["{start_dir}/broken"], "batch_per_gpu": 4, "directory": "{run_dir}"}
    checkout.configure(workload=workload, stages=ONE_STAGE)
    broken = checkout.path / "broken"
    broken.touch()
    assert checkout.climb("stage1").returncode != 0
    assert checkout.record("default/weak/1x1/r1")["failure"]["why"] == "rank 0: ValueError: crashed in the end"
    broken.unlink()
    climbed = checkout.climb("stage1")
    assert climbed.returncode == 0, climbed.stdout
    run = checkout.results / "runs/default/weak/1x1/r1"
    assert (run / "attempts/1/work/snapshot.pt").exists()
    assert (run / "work/snapshot.pt").exists()
    assert not list(checkout.path.glob("*.pt"))
    record = json.loads((run / "record.json").read_text())
    assert (record["ranks"][0]["steps"], record["remarks"]) == (320, [])


def test_a_directory_that_cannot_be_made_is_reported_with_its_key(checkout: Checkout) -> None:
    checkout.configure(
        workload={"script": "loop.py", "args": [16], "batch_per_gpu": 16, "directory": "/proc/none/here"}
    )
    checkout.measure()
    failure = checkout.record("default/weak/1x1/r1")["failure"]
    assert failure["verdict"] == "the workload could not be set up"
    assert "workload.directory: /proc/none/here cannot be used: No such file or directory" in failure["why"]
    assert failure["next"].startswith("correct workload.directory in config.yaml")
