"""A climb with `repeats: {at_least, at_most}`: what Snakemake makes of repeats that no rule declares."""

from __future__ import annotations

from project_copy import Checkout

# One GPU is steady; two are slower with every second seed.
UNSTEADY = """
import json, os, sys
samples, seed, ranks = map(int, sys.argv[1:])
step_s = 0.001 * (1.1 if ranks > 1 and seed % 2 else 1)
with open(os.environ["DDP_LADDER_METRICS"], "a") as file:
    for step in range(60):
        file.write(json.dumps({"samples": samples, "seconds": step_s + (step + seed) % 7 / 1e6}) + "\\n")
"""


def test_further_repeats_are_made_once_and_kept(checkout: Checkout) -> None:
    stages = {"stage1": {"scales": ["1x1"], "runtime": 5}, "stage2": {"scales": ["1x2"], "runtime": 5}}
    workload = {"script": "loop.py", "args": ["{batch_per_gpu}", "{seed}", "{world_size}"], "batch_per_gpu": 16}

    def climb(at_most: int) -> str:
        bounds = {"at_least": 3, "at_most": at_most, "until_percent": 3}
        checkout.configure(workload=workload, stages=stages, repeats=bounds)
        checkout.without_torch(UNSTEADY)
        done = checkout.snakemake("stage2", "--cores", "2")
        assert done.returncode == 0, done.stdout
        return done.stdout

    said = climb(4)
    assert "stage1 1x1: 3 of at most 4 repeats, each known to 3 %" in said
    assert "stage2 1x2: 4 of at most 4 repeats; default weak: known to " in said
    made = checkout.run_times()
    assert sorted(made) == sorted(
        [f"default/weak/1x1/r{k}" for k in (1, 2, 3)] + [f"default/weak/1x2/r{k}" for k in (1, 2, 3, 4)]
    )
    climb(5)
    after = checkout.run_times()
    assert {run for run in after if after[run] != made.get(run)} == {"default/weak/1x2/r5"}
    assert all(checkout.record(f"default/weak/1x2/r{k}")["status"] == "ok" for k in range(1, 6))
