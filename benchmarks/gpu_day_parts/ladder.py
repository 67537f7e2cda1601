"""Stage 1 of a ladder: imagenet.py on synthetic images with DDP and mixed precision."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from ddp_ladder.common.files import read_json

from gpu_day_parts.figures import Figures, Setting

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from project_copy import copy_project


@dataclass(frozen=True)
class Size:
    """The sizes of the training."""

    model: str
    pixels: int
    batch: int
    epoch_steps: int
    epochs: int
    measure: dict[str, Any]


SIZES = {
    "cuda": Size("resnet50", 224, 256, 16, 5, {"warmup_steps": None, "min_steps": 30, "plain_baseline": True}),
    "cpu": Size("squeezenet1_1", 32, 4, 8, 3, {"warmup_steps": 5, "min_steps": 10, "plain_baseline": False}),
}


def experiment(size: Size) -> dict[str, Any]:
    """Return the content of config.yaml."""
    args = ["--model", size.model, "--image-size", size.pixels, "--synthetic", size.batch * size.epoch_steps]
    args += ["--batch-size", "{batch_per_gpu}", "--epochs", size.epochs, "--precision", "bf16", "--seed", "{seed}"]
    return {
        "workload": {"script": "workflow/workloads/imagenet.py", "args": args, "batch_per_gpu": size.batch, "lr": None},
        "measure": size.measure,
        "modes": ["weak"],
        "repeats": 1,
        "stages": {"stage1": {"scales": ["1x1"], "runtime": 5, "gate": {}}},
        "variants": {"default": {}},
    }


def measure(setting: Setting, figures: Figures) -> None:
    """Run the ladder in a copy of the project; raise SystemExit if it fails."""
    size = SIZES[setting.device]
    checkout = copy_project(setting.work / "project")
    (checkout.path / "config/config.yaml").write_text(yaml.safe_dump(experiment(size)))
    cpus = len(os.sched_getaffinity(0)) if setting.on_gpu else 1
    checkout.site(site="gpu-day", node={"gpus": 1, "device": setting.device, "cpus": cpus})
    done = checkout.snakemake("--profile", "profiles/local")
    print(done.stdout, flush=True)
    page = checkout.results / "report" / "index.html"
    if page.exists():
        shutil.copy(page, setting.out / "gpu_day_ladder.html")
    if done.returncode:
        raise SystemExit(f"the ladder ended with exit code {done.returncode}: its last lines are in the log")
    first = read_json(checkout.results / "runs/default/weak/1x1/r1/record.json")
    figures.put(**_summary(first))
    exposed = first["timing"]["exposed_comm_fraction"]
    if exposed is not None:
        figures.check("exposed communication of one rank, fraction of a step", exposed, at_most=0.02, shows=8)
    backend, dtype = first["world"]["backend"], first["fingerprint"]["autocast_dtype"]
    figures.headline(f"{backend}, {dtype}: {first['throughput']['samples_per_s']:,.0f} images/s")


def _summary(record: dict[str, Any]) -> dict[str, Any]:
    throughput, timing, world, print_ = (record[key] for key in ("throughput", "timing", "world", "fingerprint"))
    return {
        "images_per_s": throughput["samples_per_s"],
        "step_time_s": timing["step_time_s"],
        "warmup_steps": timing["warmup_steps"],
        "data_wait_fraction": timing["data_wait_fraction"],
        "exposed_comm_fraction": timing["exposed_comm_fraction"],
        "startup_s": timing["startup_s"],
        "backend": world["backend"],
        "autocast_dtype": print_.get("autocast_dtype"),
        "remarks": [remark["measured"] for remark in record["remarks"]],
    }
