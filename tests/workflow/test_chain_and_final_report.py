"""A real chain of two links on this machine, and its final report, against sums over the files of the links."""

from __future__ import annotations

import csv
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
from project_copy import Checkout

# 40 steps in two links of 20; rank 0 saves after every 8th step, and at the end of the first link.
SCRIPT = """
import os, sys, time, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

dist.init_process_group("gloo")
state, done = os.path.join(sys.argv[1], "state.pt"), 0
model = DistributedDataParallel(torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
if os.path.exists(state):
    saved = torch.load(state)
    model.load_state_dict(saved["model"])
    done = saved["done"]

def save():
    if dist.get_rank() == 0:
        torch.save({"model": model.state_dict(), "done": done}, state)

until = done + 20
for (inputs,) in DataLoader(TensorDataset(torch.randn(640, 16)), 16):
    optimizer.zero_grad()
    model(inputs).sum().backward()
    optimizer.step()
    time.sleep(0.02)
    done += 1
    if done == until:
        break
    if done % 8 == 0:
        save()
if done < 40:
    save()
    dist.barrier()
    sys.exit(75)
dist.destroy_process_group()
"""


def read(path: Path) -> Any:
    return json.loads(path.read_text())


@pytest.fixture
def chain(checkout: Checkout) -> Path:
    keys = {
        "scale": "1x2", "args": ["{run_dir}"], "runtime": 5, "up_to_hours": 1, "warn_before_s": 30, "unproven": True,
        "unrehearsed": True,
    }  # fmt: skip
    checkout.configure(production=keys)
    (checkout.path / "loop.py").write_text(SCRIPT)
    without = checkout.snakemake("final_report")
    assert without.returncode != 0
    assert without.stdout.count("there is no chain of jobs here") == 1, without.stdout
    done = checkout.snakemake("production", "--cores", "2")
    assert done.returncode == 0, done.stdout
    done = checkout.snakemake("final_report")
    assert done.returncode == 0, done.stdout
    assert "The training is complete: 2 links used " in done.stdout, done.stdout
    return checkout.results / "production"


def test_the_figures_of_a_real_chain_are_those_of_its_files(chain: Path) -> None:
    jobs = sorted(map(read, chain.glob("jobs/1x2/*.json")), key=lambda job: job["begun_at_s"])
    (last,) = chain.glob("runs/*/*/1x2/r1")
    packed = [zipfile.ZipFile(run / "nodes/node0.zip") for run in (*last.glob("attempts/*"), last)]
    ranks = [json.loads(content.read("ranks/rank0.json")) for content in packed]
    held_s = [job["ended_at_s"] - job["begun_at_s"] for job in jobs]
    saves_s = [sum(end - begin for begin, end in rank["phases"]["saves_s"]) for rank in ranks]
    rows = {row["link"]: row for row in csv.DictReader((chain / "final_report.csv").open())}
    first, second, both = rows["1"], rows["2"], rows["all"]
    assert (first["end"], second["end"]) == ("saved", "complete")
    links = (first, second)
    assert [float(row["gpu_hours"]) for row in links] == pytest.approx([2 * s / 3600 for s in held_s], rel=1e-4)
    assert float(both["node_hours"]) == pytest.approx(sum(held_s) / 3600, rel=1e-4)
    assert [float(row["samples_kept"]) for row in links] == [20 * 2 * 16] * 2
    assert [int(row["saves"]) for row in links] == [len(rank["phases"]["saves_s"]) for rank in ranks] == [3, 2]
    assert [float(row["checkpoints_s"]) for row in links] == pytest.approx(saves_s, abs=0.01)
    parts = ("training_s", "checkpoints_s", "start_up_s", "preflight_s", "failures_s", "rest_s")
    for row in rows.values():
        if row["link"] != "planned":
            assert sum(float(row[part]) for part in parts) == pytest.approx(float(row["elapsed_s"]), rel=1e-4)
    for rank, row in zip(ranks, links, strict=True):
        assert 19 * 0.02 < float(row["training_s"]) <= rank["training_s"]
    text = (chain / "final_report.md").read_text()
    assert "Mean time between failures: unknown; none was seen in" in text
    assert "process hours" in text
    assert "saved its state after 20 steps (exit code 75)" in (chain / "final_report.html").read_text()
