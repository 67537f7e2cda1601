"""The ladder end to end on this machine. Nothing is trained: for that see test_climb_shipped.py."""

from __future__ import annotations

import json
import re

import yaml
from project_copy import NO_TORCH, ONE_STAGE, SNAKEMAKES_REPORT, Checkout, last_box

ALL = ("--cores", "all")
# Keeps what it is told in a file.
TOLD = "import pathlib, sys; pathlib.Path('told').open('a').write(f'{sys.argv[1]}\\n{sys.stdin.read()}\\n---\\n')"


def test_closed_gate_leaves_nothing_of_the_next_stage(checkout: Checkout) -> None:
    checkout.without_torch()
    config = yaml.safe_load((checkout.path / "config/config.yaml").read_text())
    gate = config["stages"]["stage2"]["gate"]
    gate["min_samples_per_s"] = 10**12
    config["notify"] = {"command": ["python", "-c", TOLD, "{subject}"]}
    (checkout.path / "config/config.yaml").write_text(yaml.safe_dump(config))
    climbed = checkout.snakemake("--profile", "profiles/local")
    assert climbed.returncode == 1
    assert "Traceback" not in climbed.stdout
    assert not SNAKEMAKES_REPORT.search(climbed.stdout), climbed.stdout
    assert "Error in rule gate" in checkout.snakemakes_log
    assert "Job stats" not in climbed.stdout
    assert not list(checkout.results.rglob("*2x1*"))
    assert not (checkout.results / "gates/stage2.json").exists()
    assert json.loads((checkout.results / "gates/stage2.closed.json").read_text())["verdict"] == "closed"
    assert checkout.processes() == []
    box = last_box(climbed.stdout)
    doubt = " on the estimate, uncertain"  # one repeat
    assert box["verdict"].endswith(f"the gate of stage2 is closed{doubt}; nothing above it was started")
    assert {"measured", "wanted"} <= box.keys()
    assert "stages.stage2.gate.min_samples_per_s" in box["next"]
    assert re.search(r"^log +\.snakemake/log/\S+\.log$", climbed.stdout, re.MULTILINE)
    assert "Stopped at the gate of stage 2" in (checkout.results / "report/index.html").read_text()

    first, closed, end = (checkout.path / "told").read_text().split("\n---\n")[:-1]
    assert first.startswith("ddp-ladder results: gate stage1: open")
    assert closed.startswith("ddp-ladder results: gate stage2: CLOSED, ")
    assert "stages.stage2.gate.min_samples_per_s" in closed
    assert end.startswith("ddp-ladder results: the climb has stopped\n")
    assert f"report   {checkout.results}/report/index.html" in end.replace(
        "report   results", f"report   {checkout.results}"
    )

    # The threshold is the only thing in the way: lowering it judges again, and measures nothing again.
    before = checkout.run_times()
    del gate["min_samples_per_s"]
    config["notify"] = {"command": ["sh", "-c", "echo no server >&2; exit 3"]}
    (checkout.path / "config/config.yaml").write_text(yaml.safe_dump(config))
    climbed = checkout.snakemake("stage3", *ALL)
    assert climbed.returncode == 0, climbed.stdout
    assert climbed.stdout.count("notify.command (sh) failed, and nothing was told: exit code 3: no server") == 1
    after = checkout.run_times()
    assert {run for run in after if after[run] != before.get(run)} == {"default/weak/2x1/r1"}
    assert not (checkout.results / "gates/stage2.closed.json").exists()


def test_scales_never_run_side_by_side_and_simulated_nodes_are_called_so(checkout: Checkout) -> None:
    """Whatever the site is called, and however many cores there are: it is Snakemake that starts the scales here."""
    checkout.configure(stages={**ONE_STAGE, "stage3": {"scales": ["3x1", "2x1"], "runtime": 5}})
    checkout.site(site="vega")
    checkout.without_torch()
    climbed = checkout.snakemake("--cores", "8")
    assert climbed.returncode == 0, climbed.stdout
    runs = [checkout.results / f"runs/default/weak/{scale}/r1" for scale in ("1x1", "3x1", "2x1")]
    times = [json.loads((run / "ended.json").read_text()) for run in runs]
    times_s = [each[key] for each in times for key in ("started_at_s", "ended_at_s")]
    assert times_s == sorted(times_s), climbed.stdout
    assert sorted(path.name for path in (checkout.results / "gates").iterdir()) == ["stage1.json", "stage3.json"]

    simulated = "simulated nodes: 3 agents on 1 host"
    assert "Stage 3 (simulated nodes: 2 agents on 1 host) reached" in climbed.stdout
    assert "2x1: simulated nodes: 2 agents on 1 host" in " ".join(climbed.stdout.split())
    assert f"3x1: {simulated}" in " ".join(climbed.stdout.split())
    for name in ("index.html", "scaling.md", "scaling.csv"):
        assert simulated in (checkout.results / "report" / name).read_text(), name
    record = checkout.record("default/weak/3x1/r1")
    assert len(set(record["world"]["nodes"])) == len(record["world"]["hosts"]) == 1
    assert [rank["node_rank"] for rank in record["ranks"]] == [0, 1, 2]
    assert "simulated" not in str(checkout.record("default/weak/1x1/r1"))


def test_a_failing_variant_does_not_stop_the_others_and_is_tried_again(checkout: Checkout) -> None:
    lost = {"network": {"interface": "no-such0"}}
    checkout.configure(
        variants={"broken": {"args": ["--crash"]}, "lost": lost, "default": {}},
        repeats=2,
        stages={**ONE_STAGE, "stage3": {"scales": ["2x1"], "runtime": 5}},
    )
    checkout.without_torch(NO_TORCH + 'if "--crash" in sys.argv: raise ValueError("this variant is broken")\n')
    climbed = checkout.climb("stage1", "stage3")
    assert climbed.returncode == 0, climbed.stdout
    assert "gate stage1: open (without broken, lost: see the report)" in climbed.stdout
    assert "no interface no-such0" in checkout.record("lost/weak/1x1/r1")["failure"]["why"]
    failure = checkout.record("broken/weak/1x1/r1")["failure"]
    assert failure["verdict"] == "the script raised an exception"
    assert failure["why"] == "rank 0: ValueError: this variant is broken"
    # Neither the repeat nor the next stage of a broken variant are worth the GPU hours.
    for run in ("broken/weak/1x1/r2", "broken/weak/2x1/r1"):
        assert checkout.record(run)["failure"]["verdict"] == "not run"
    assert checkout.record("default/weak/2x1/r2")["status"] == "ok"

    before = checkout.run_times()
    checkout.without_torch()
    climbed = checkout.climb("stage1", "stage3")
    assert climbed.returncode == 0, climbed.stdout
    after = checkout.run_times()
    assert {run.split("/")[0] for run in after if after[run] != before.get(run)} == {"broken"}
    assert checkout.record("broken/weak/1x1/r2")["status"] == "ok"
    assert (checkout.results / "runs/broken/weak/1x1/r1/attempts/1/nodes/node0.zip").exists()


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
    stages = {**ONE_STAGE, "stage2": {"scales": ["1x2"], "runtime": 5}}
    workload = {"script": "loop.py", "args": ["{batch_per_gpu}", "{seed}", "{world_size}"], "batch_per_gpu": 16}

    def climb(at_most: int) -> str:
        bounds = {"at_least": 3, "at_most": at_most, "until_percent": 3}
        checkout.configure(workload=workload, stages=stages, repeats=bounds)
        checkout.without_torch(UNSTEADY)
        done = checkout.climb("stage1", "stage2")
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
