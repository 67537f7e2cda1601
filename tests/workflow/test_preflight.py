"""The preflight with real ranks on this machine: an all-reduce that returns a wrong value."""

from __future__ import annotations

from ddp_ladder.preflight.result import result_of
from make_preflight import WRONG
from project_copy import Checkout, last_box


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
