"""A program in another language, from configuration to report: what it writes down itself, and what it prints."""

from __future__ import annotations

import pytest
from make_files import write_programs
from project_copy import Checkout

PROGRAM = """
for step in 1 2 3 4 5 6; do
  echo "{\\"samples\\": 16, \\"seconds\\": 0.0$step}" >>"$DDP_LADDER_METRICS"
  echo "throughput: ${step}00 samples/s"
done
"""


@pytest.mark.parametrize(("source", "launcher"), [("metrics", "srun"), ("log", "torchrun")])
def test_weaker_evidence_from_configuration_to_report(checkout: Checkout, source: str, launcher: str) -> None:
    checkout.site(launcher=launcher)
    write_programs(checkout.path, train=PROGRAM)
    regex = "'throughput: ([0-9.]+) samples/s'" if source == "log" else "null"
    config = checkout.path / "config/config.yaml"
    config.write_text(
        f"workload: {{script: train, batch_per_gpu: 16, throughput_regex: {regex}}}\n"
        "measure: {warmup_steps: 2, min_steps: 3, plain_baseline: false}\nrepeats: 1\nstages: {stage1: {}}\n"
        "preflight: {enabled: false}\n"
    )
    climbed = checkout.climb("stage1")
    assert climbed.returncode == 0, climbed.stdout
    throughput = checkout.record("default/weak/1x1/r1")["throughput"]
    assert throughput["source"] == source
    if source == "log":
        assert throughput["samples_per_s"] == 450
    else:
        assert throughput["samples_per_s_total"] == pytest.approx(4 * 16 / 0.18)
    assert checkout.script("report.py").returncode == 0
    assert "weaker" in (checkout.path / "results/report/scaling.md").read_text()
