"""The monitor's samples of a known load: an idle GPU, matrix products, copies; and what the monitor costs."""

from __future__ import annotations

import csv
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import monitor_overhead
import numpy as np
import torch
from ddp_ladder.platform.accelerators import Gpus, open_nvidia

from gpu_day_parts.figures import Figures, Setting

EVERY_S = 0.5
PHASE_S = {"cuda": 6.0, "cpu": 0.5}
SIZE = {"cuda": 8192, "cpu": 64}
COPY_BYTES = {"cuda": 1 << 30, "cpu": 1 << 16}
OVERHEAD = {"cuda": (10, 100), "cpu": (1, 5)}  # quads and steps
SETTLE_S = 1.5  # NVML's busy fraction is a mean of up to a second

Spans = Mapping[str, tuple[float, float]]


def measure(setting: Setting, figures: Figures) -> None:
    """Sample the load; compare each phase with what it must show; keep the samples."""
    gpus = open_nvidia(os.environ) if setting.on_gpu else Gpus()
    figures.put(notes=list(gpus.notes))
    with tempfile.TemporaryDirectory(dir=setting.work) as name:
        monitor = monitor_overhead.monitor(Path(name), gpus, EVERY_S)
        spans = load(setting.device)
        end = monitor.end()
        text = (Path(name) / "node0.csv").read_text()
    (setting.out / "gpu_day_monitor.csv").write_text(text)
    rows = list(csv.DictReader(text.splitlines()))
    figures.put(samples=end.samples, cpu_ms_per_sample=1e3 * end.cpu_s / max(1, end.samples), error=end.error)
    if gpus.sampled:
        _compare(rows, spans, figures)
    quads, steps = OVERHEAD[setting.device]
    found = monitor_overhead.measure(setting.device, quads, steps)
    figures.put(overhead=found)
    loss, share = found["loss_scaled_to_every_2_s"]["clock"][0], found["monitor_core_share_every_2_s"]
    figures.check("throughput that a sample every 2 s costs, scaled from one every 0.2 s", loss, at_most=0.01)
    figures.check("share of a core that a sample every 2 s takes", share, at_most=0.01)
    figures.headline(
        f"a sample every 2 s costs {loss:.2%} of the throughput, scaled from one every {monitor_overhead.EVERY_S:g} s; "
        f"{found['cpu_ms_per_sample']:.1f} ms each"
    )


def load(device: str) -> Spans:
    """Do nothing, multiply in bf16, copy from and to the host; return the unix times of each."""
    size, count = SIZE[device], COPY_BYTES[device]
    a, b = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    host = torch.empty(count, dtype=torch.uint8, pin_memory=device == "cuda")
    there = torch.empty(count, dtype=torch.uint8, device=device)
    work: dict[str, Callable[[], object]] = {
        "idle": lambda: time.sleep(0.1),
        "products": lambda: a @ b,
        "copies": lambda: (there.copy_(host), host.copy_(there)),
    }
    return {name: _until(PHASE_S[device], call, device) for name, call in work.items()}


def _until(seconds: float, call: Callable[[], object], device: str) -> tuple[float, float]:
    begin_s = time.time()
    while time.time() < begin_s + seconds:
        for _ in range(5):
            call()
        if device == "cuda":
            torch.cuda.synchronize()
    return begin_s, time.time()


def means(rows: Sequence[Mapping[str, str]], span: tuple[float, float]) -> dict[str, float]:
    """Return the mean of each column of figures over a span, without its start."""
    inside = [row for row in rows if span[0] + SETTLE_S < float(row["time_s"]) < span[1]]
    found = {}
    for name in rows[0]:
        texts = [row[name] for row in inside if row[name]]
        if texts and not name.endswith("reasons"):
            found[name] = float(np.mean([float(text) for text in texts]))
    return found


def _compare(rows: Sequence[Mapping[str, str]], spans: Spans, figures: Figures) -> None:
    idle, products, copies = (means(rows, span) for span in spans.values())
    figures.put(idle=idle, products=products, copies=copies)
    figures.check("busy fraction, idle", idle["gpu0_busy_fraction"], at_most=0.05)
    figures.check("busy fraction, matrix products", products["gpu0_busy_fraction"], at_least=0.95)
    figures.check("power, products / idle", products["gpu0_power_w"] / idle["gpu0_power_w"], at_least=2)
    energy = [(float(row["time_s"]), float(row["gpu0_energy_j"])) for row in rows if row["gpu0_energy_j"]]
    power = [(float(row["time_s"]), float(row["gpu0_power_w"])) for row in rows if row["gpu0_power_w"]]
    if energy:
        times_s, watts = np.array(power).T
        integral = float(np.sum((watts[1:] + watts[:-1]) / 2 * np.diff(times_s)))
        ratio = integral / (energy[-1][1] - energy[0][1])
        figures.check("energy: integral of power / counter", ratio, at_least=0.95, at_most=1.05, shows=12)
    else:
        figures.impossible(12, "this GPU has no energy counter")
