"""The overhead of instrument.py per training step on this machine, in CPU time and in wall-clock time.

    python benchmarks/instrument_overhead.py --out benchmarks/results/instrument_overhead.json

The training has one process with one thread, and steps of about 5 ms and of about 0.5 ms. It is measured in two ways:

segments  One process under instrument.py, whose per-step hooks are removed and installed again every few steps, in the
          order with, without, without, with. Such quads are so short that a busy machine slows all four parts equally;
          the median over the quads resolves a tenth of a percent.
pairs     Whole processes with and without instrument.py, in alternating order. They include effects that the segments
          cannot show (memory layout, threads, progress once a second), and all of the machine's noise.

CPU time is the time that the process used, so that other processes do not count. The results are ratios, with /
without, of the median step: the median over quads or pairs, with its 95 % interval from order statistics.

With --device cuda whole segments are timed, because the host waits for the GPU only at their ends. The GPU limits a
5 ms step, so that the hooks' time can be hidden; the CPU limits a 0.5 ms step. Waiting costs CPU time, too.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

SCRIPTS = Path(__file__).parents[1] / "workflow" / "scripts"
sys.path.insert(0, str(SCRIPTS))

from ddp_ladder.measuring.statistic import median_interval  # noqa: E402

INSTRUMENT = SCRIPTS / "instrument.py"
STEPS_MS = (5.0, 0.5)
SEGMENT_STEPS = 20

TRAINING = """
import json, statistics, sys, time
import torch
from torch.utils.data import DataLoader, TensorDataset

steps, step_s, repeats, device = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
torch.manual_seed(0)
torch.set_num_threads(1)
batch, warmup = 64, 60
data = TensorDataset(torch.randn((steps + warmup) * batch, 64))
model = torch.nn.Linear(64, 64).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
work = torch.randn(*(1024, 1024) if device == "cuda" else (192, 192), device=device)

def compute(x):
    for _ in range(repeats):
        work @ work
    optimizer.zero_grad()
    model(x.to(device, non_blocking=True)).square().mean().backward()
    optimizer.step()

def times():  # wall-clock and CPU time, after a synchronisation
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter(), time.process_time()

def each_step(calls, at_once):  # medians, wall-clock and CPU; with a GPU, synchronises every at_once calls
    at_once = at_once if device == "cuda" else 1
    marks = [times()]
    for number, _ in enumerate(calls, 1):
        if number % at_once == 0:
            marks.append(times())
    return [statistics.median((b[k] - a[k]) / at_once for a, b in zip(marks, marks[1:])) for k in (0, 1)]

if not repeats:  # calibrate the work that fills a step: by CPU time, on a GPU by wall-clock time
    def cost(call):
        return each_step((call() for _ in range(steps)), 20)[device != "cuda"]
    unit = cost(lambda: work @ work)
    for _ in range(4):  # repeat, because the work takes longer inside a step than alone
        drawn = iter(DataLoader(data, batch_size=batch))
        repeats = max(1, repeats + round((step_s - cost(lambda: compute(next(drawn)[0]))) / unit))
    print(json.dumps({"repeats": repeats, "torch": torch.__version__}))
    sys.exit()
"""
WHOLE = (
    TRAINING
    + """
drawn = iter(DataLoader(data, batch_size=batch))
for _ in range(warmup):
    compute(next(drawn)[0])
clock_s, cpu_s = each_step((compute(x) for (x,) in drawn), steps)
print(json.dumps({"clock_s": clock_s, "cpu_s": cpu_s}))
"""
)
SEGMENTS = (
    TRAINING
    + """
from torch.optim import optimizer as optimizers
from torch.utils.data import dataloader
single, base = dataloader._SingleProcessDataLoaderIter, dataloader._BaseDataLoaderIter
hooks = optimizers._global_optimizer_post_hooks
installed = single._next_data, base._next_index, dict(hooks)
assert installed[2] and all(hasattr(patched, "__wrapped__") for patched in installed[:2])

class Unhooked(single):  # a separate class: changing the hooked one again and again would empty Python's caches
    _next_data = installed[0].__wrapped__
    _next_index = installed[1].__wrapped__

def put(on):
    hooks.update(installed[2]) if on else hooks.clear()
    return iterators[on]

length, order, segments = int(sys.argv[5]), (True, False, False, True), []
iterators = [iter(DataLoader(data, batch_size=batch)) for on in (False, True)]
iterators[False].__class__ = Unhooked
for on in (False, True):
    for _ in range(warmup):
        compute(next(put(on))[0])
for index in range(steps // length):
    iterator = put(order[index % 4])
    compute(next(iterator)[0])  # the first after a change is not counted
    segments.append(each_step((compute(next(iterator)[0]) for _ in range(length - 1)), length - 1))
print(json.dumps({"segments": segments}))
"""
)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure both step lengths and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quads", type=int, default=100, help="of segments (default: %(default)s)")
    parser.add_argument("--pairs", type=int, default=10, help="of processes (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=1000, help="of each process of a pair (default: %(default)s)")
    parser.add_argument(
        "--device", choices=["cpu", "cuda"], default="cpu", help="where it trains (default: %(default)s)"
    )
    parser.add_argument("--out", type=Path, help="also write the figures here, as JSON")
    options = parser.parse_args(argv)
    found: dict[str, Any] = {"machine": machine(), "steps": []}
    with tempfile.TemporaryDirectory() as name:
        bench = Bench(Path(name), options.device)
        for step_ms in STEPS_MS:
            figures = bench.measure(step_ms, options.quads, options.pairs, options.steps)
            found["steps"].append(figures)
            report(figures)
    found["machine"]["torch"] = bench.torch
    if options.out is not None:
        options.out.write_text(json.dumps(found, indent=2) + "\n")
    return 0


def machine() -> dict[str, Any]:
    """Return facts about this machine."""
    return {
        "date": date.today().isoformat(),
        "system": platform.platform(),
        "cpus": os.cpu_count(),
        "load_1min_before": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
    }


def report(figures: dict[str, Any]) -> None:
    """Print one step length's figures."""
    print(f"step of {figures['step_ms']:g} ms ({figures['step_ms_seen']:.2f} ms without, on a CPU the processor's)")
    for method in ("segments", "pairs"):
        for kind in ("cpu", "clock"):
            ratio, low, high = figures[method].get(kind, (math.nan,) * 3)  # nan: no pairs
            print(f"  {method:<8}  {kind:<5}  with / without {ratio:.4f}  [{low:.4f} to {high:.4f}]", flush=True)
    print(f"  segments  cpu    {figures['added_us']:.1f} microseconds added to each step", flush=True)


class Bench:
    """The benchmark's scripts, run in ``directory``."""

    def __init__(self, directory: Path, device: str) -> None:
        self._directory = directory
        self._device = device
        self._run_json = directory / "run.json"
        self._run_json.write_text(json.dumps({"spec_hash": "0", "job": {"id": "overhead", "attempt": 1}, "hang": {}}))
        self.torch = ""

    def measure(self, step_ms: float, quads: int, pairs: int, steps: int) -> dict[str, Any]:
        """Return all figures of one step length."""
        calibrated_on = max(40, min(300, round(2000 / step_ms)))  # steps
        calibration = self._run(WHOLE, calibrated_on, step_ms / 1000, 0, self._device, instrumented=False)
        self.torch = calibration["torch"]
        words = (step_ms / 1000, calibration["repeats"], self._device)
        segments, added_us, seen_ms = self._segments(quads, *words)
        return {
            "step_ms": step_ms,
            "step_ms_seen": seen_ms,
            "quads": quads,
            "pairs_of": steps,
            "segments": segments,
            "added_us": added_us,
            "pairs": self._pairs(pairs, steps, *words),
        }

    def _segments(self, quads: int, *words: object) -> tuple[dict[str, list[float]], float, float]:
        steps = 4 * quads * SEGMENT_STEPS
        result = self._run(SEGMENTS, steps, *words, SEGMENT_STEPS, instrumented=True)
        times = np.array(result["segments"]).reshape(quads, 4, 2)  # quad, part of it, wall-clock and CPU
        on, off = times[:, [0, 3]].sum(axis=1), times[:, [1, 2]].sum(axis=1)
        paced_by = 0 if self._device == "cuda" else 1
        ratios = {kind: list(median_interval(on[:, k] / off[:, k])) for k, kind in enumerate(("clock", "cpu"))}
        return ratios, float(np.median(on[:, 1] - off[:, 1]) / 2 * 1e6), float(np.median(off[:, paced_by]) / 2 * 1e3)

    def _pairs(self, pairs: int, steps: int, *words: object) -> dict[str, list[float]]:
        ratios: dict[str, list[float]] = {"clock": [], "cpu": []}
        for pair in range(pairs):
            order = (True, False) if pair % 2 else (False, True)
            done = {on: self._run(WHOLE, steps, *words, instrumented=on) for on in order}
            for kind, values in ratios.items():
                values.append(done[True][f"{kind}_s"] / done[False][f"{kind}_s"])
        return {kind: list(median_interval(np.array(values))) for kind, values in ratios.items() if values}

    def _run(self, text: str, *words: object, instrumented: bool) -> dict[str, Any]:
        script = self._directory / "train.py"
        script.write_text(text)
        before = [str(INSTRUMENT)] if instrumented else []
        done = subprocess.run(
            [sys.executable, *before, str(script), *map(str, words)],
            env={**os.environ, "DDP_LADDER_RUN": str(self._run_json), "DDP_LADDER_HEARTBEATS": str(self._directory)},
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        )
        result: dict[str, Any] = json.loads(done.stdout)
        return result


if __name__ == "__main__":
    sys.exit(main())
