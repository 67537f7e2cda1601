"""Stage 1 of a ladder: imagenet.py on synthetic images with DDP and mixed precision, against its own stopwatch.

imagenet.py synchronises with the device before and after each epoch and prints the epoch's rate. The instrument
records a time for each step, on a GPU from CUDA events. Their sums over all epochs but the first must agree.
"""

from __future__ import annotations

import csv
import os
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from ddp_ladder.common.files import read_json

from gpu_day_parts.figures import Figures, Setting

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from project_copy import Checkout, copy_project

CLOSE = 0.01
EPOCH = re.compile(r"^epoch +(\d+) +([0-9,.]+) samples/s", re.MULTILINE)


@dataclass(frozen=True)
class Size:
    """The sizes of the training."""

    model: str
    pixels: int
    batch: int
    epoch_steps: int
    epochs: int
    repeats: int
    variants: dict[str, Any]
    plain_baseline: bool
    warmup_steps: int | None
    min_steps: int


FP16 = {"args": ["--precision", "fp16"], "reason": "scaled gradients on the GPU"}
SIZES = {
    "cuda": Size("resnet50", 224, 256, 16, 5, 1, {"default": {}, "fp16": FP16}, True, None, 30),
    "cpu": Size("squeezenet1_1", 32, 4, 8, 3, 1, {"default": {}}, False, 5, 10),
}


def experiment(size: Size) -> dict[str, Any]:
    """Return the content of config.yaml."""
    args = ["--model", size.model, "--image-size", size.pixels, "--synthetic", size.batch * size.epoch_steps]
    args += ["--batch-size", "{batch_per_gpu}", "--epochs", size.epochs, "--precision", "bf16", "--seed", "{seed}"]
    return {
        "workload": {"script": "workflow/workloads/imagenet.py", "args": args, "batch_per_gpu": size.batch, "lr": None},
        "measure": {
            "warmup_steps": size.warmup_steps,
            "min_steps": size.min_steps,
            "plain_baseline": size.plain_baseline,
        },
        "modes": ["weak"],
        "repeats": size.repeats,
        "stages": {"stage1": {"scales": ["1x1"], "runtime": 5, "gate": {}}},
        "variants": size.variants,
    }


def measure(setting: Setting, figures: Figures) -> None:
    """Run the ladder in a copy of the project; raise SystemExit if it fails or a run's data are incomplete."""
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
    records = {file.parent.relative_to(checkout.results / "runs"): read_json(file) for file in _records(checkout)}
    for run, record in records.items():
        figures.put(**{str(run): _summary(record)})
    worst = max(
        (
            stopwatch_ratio(checkout, record, size)
            for record in records.values()
            if record["spec"]["variant"] == "default"
        ),
        key=lambda ratio: abs(ratio - 1),
    )
    figures.put(step_times_over_stopwatch=worst)
    figures.check("sum of step times / synchronised stopwatch", worst, at_least=1 - CLOSE, at_most=1 + CLOSE)
    first = records[Path("default/weak/1x1/r1")]
    backend, dtype = first["world"]["backend"], first["fingerprint"]["autocast_dtype"]
    figures.headline(f"{backend}, {dtype}: step times / synchronised stopwatch {worst:.4f}")


def stopwatch_ratio(checkout: Checkout, record: dict[str, Any], size: Size) -> float:
    """Return the instrument's seconds divided by the script's, over all epochs but the first (start-up)."""
    spec = record["spec"]
    directory = checkout.results / "runs" / spec["variant"] / spec["mode"] / "1x1" / f"r{spec['repeat']}"
    with (directory / "ranks" / "rank0.csv").open() as file:
        times_s = [float(row["step_time_s"]) for row in csv.DictReader(file)]
    rates = [float(rate.replace(",", "")) for _, rate in EPOCH.findall((directory / "train.log").read_text())]
    if len(rates) != size.epochs or len(times_s) != size.epochs * size.epoch_steps:
        raise SystemExit(f"{directory.name}: {len(rates)} epochs in the log, {len(times_s)} steps in the rank's file")
    own_s = sum(size.epoch_steps * size.batch / rate for rate in rates[1:])
    return sum(times_s[size.epoch_steps :]) / own_s


def _records(checkout: Checkout) -> list[Path]:
    return sorted((checkout.results / "runs").glob("*/*/*/r*/record.json"))


def _summary(record: dict[str, Any]) -> dict[str, Any]:
    throughput, timing, world, print_ = (record[key] for key in ("throughput", "timing", "world", "fingerprint"))
    return {
        "images_per_s": throughput["samples_per_s"],
        "images_per_s_low": throughput["samples_per_s_low"],
        "images_per_s_high": throughput["samples_per_s_high"],
        "step_time_s": timing["step_time_s"],
        "warmup_steps": timing["warmup_steps"],
        "warmup_stable": timing["warmup_stable"],
        "measured_steps": timing["measured_steps"],
        "data_wait_fraction": timing["data_wait_fraction"],
        "exposed_comm_fraction": timing["exposed_comm_fraction"],
        "startup_s": timing["startup_s"],
        "backend": world["backend"],
        "autocast_dtype": print_.get("autocast_dtype"),
        "gpu": print_.get("gpu"),
        "remarks": [remark["what"] for remark in record["remarks"]],
    }
