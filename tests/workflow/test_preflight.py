"""The preflight with real ranks on this machine: an all-reduce that returns a wrong value."""

from __future__ import annotations

import re

import pytest
from ddp_ladder.preflight.result import result_of
from make_preflight import WRONG
from project_copy import EXPERIMENT, Checkout, last_box


def test_a_wrong_sum_closes_the_gate_and_starts_no_run(checkout: Checkout) -> None:
    wrong = checkout.path / "wrong"
    wrong.mkdir()
    (wrong / "sitecustomize.py").write_text(WRONG)
    checkout.configure(preflight={"enabled": True})
    checkout.site(software={"setup": f"export PYTHONPATH={wrong}"}, launcher="srun")
    assert "stage2 1x2: ERROR" in checkout.measure("1x2")
    assert not list((checkout.results / "runs").rglob("run.json"))
    result = result_of(checkout.results, "1x2")
    assert result
    assert result.matrix_tflop_per_s["fp32"] > 0
    judged = checkout.script("gate.py", "--stage", "stage2")
    assert judged.returncode == 1
    box = last_box(judged.stdout.rpartition("written:")[0].strip())
    assert "an all-reduce of 4096 bytes returned wrong values on rank 1" in box["why"]
    assert "1 of 512 elements are wrong" in box["why"]
    assert box["verdict"].startswith("the preflight failed (")
    assert "network.env in cluster.yaml" in box["next"]
    assert checkout.processes() == []


@pytest.mark.parametrize("target", ["preflight", "fit", "stage1"])
def test_with_the_profile_of_an_allocation_nothing_runs_outside_of_one(checkout: Checkout, target: str) -> None:
    """A login node would be measured in place of the nodes."""
    checkout.configure(workload={**EXPERIMENT["workload"], "batch_per_gpu": "auto"})
    done = checkout.snakemake("--profile", "profiles/allocation", target)
    assert "this is not inside a Slurm allocation" in done.stdout
    assert re.search("start it inside `salloc --nodes=[12] ", done.stdout)
    assert not (checkout.results / "jobs").exists()
