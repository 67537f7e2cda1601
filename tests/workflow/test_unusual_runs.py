"""What the ladder makes of unusual runs, without Snakemake and from configuration to report."""

from __future__ import annotations

import json

import pytest
from make_files import write_programs
from project_copy import NO_TORCH, ONE_STAGE, Checkout

RUNS = ["default/weak/1x1/r1", "plain/weak/1x1/r1", "default/weak/1x1/r2"]
# How a plain baseline fails or hangs: as scripts that wait for a peer, who does not come without a launcher.
SCRIPTS = {
    "the script needs a launcher": "import os\nrank = int(os.environ['RANK'])\n",
    "no first step": "import os, threading\nif 'RANK' not in os.environ: threading.Event().wait()\n",
}


@pytest.mark.parametrize("why", SCRIPTS)
def test_a_script_that_needs_a_launcher(checkout: Checkout, why: str) -> None:
    """It costs no other run and no gate anything. tests/unit/climb/test_to_do.py has a start after it."""
    measure = {"warmup_steps": 5, "min_steps": 10, "plain_baseline": True}
    checkout.configure(stages=ONE_STAGE, measure=measure, repeats=2, hang={"first_step_s": 3, "at_least_s": 1})
    checkout.without_torch(SCRIPTS[why] + NO_TORCH)
    climbed = checkout.climb("stage1")
    assert climbed.returncode == 0, climbed.stdout
    assert "gate stage1: open" in climbed.stdout
    times = checkout.run_times()
    assert sorted(times, key=lambda run: times[run]) == RUNS  # it is not tried for every repeat
    assert [checkout.record(RUNS[k])["status"] for k in (0, 2)] == ["ok", "ok"]
    failure = checkout.record(RUNS[1])["failure"]
    assert why in (failure["verdict"], failure["why"])
    assert climbed.stdout.count("no plain baseline: ") == 1
    assert checkout.script("report.py").returncode == 0
    message = "no efficiency against the plain script: the script failed without a launcher"
    assert message in (checkout.results / "report/scaling.md").read_text()
    assert checkout.processes() == []


PROGRAM = 'for step in 1 2 3 4 5 6; do echo "throughput: ${step}00 samples/s"; done\n'


def test_what_a_program_in_another_language_prints_from_configuration_to_report(checkout: Checkout) -> None:
    write_programs(checkout.path, train=PROGRAM)
    checkout.configure(
        workload={"script": "train", "batch_per_gpu": 16, "throughput_regex": "throughput: ([0-9.]+) samples/s"},
        measure={"warmup_steps": 2, "min_steps": 3, "plain_baseline": False},
        stages=ONE_STAGE,
    )
    climbed = checkout.climb("stage1")
    assert climbed.returncode == 0, climbed.stdout
    throughput = checkout.record("default/weak/1x1/r1")["throughput"]
    assert (throughput["source"], throughput["samples_per_s"]) == ("log", 450)
    assert checkout.script("report.py").returncode == 0
    assert "weaker" in (checkout.path / "results/report/scaling.md").read_text()


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
