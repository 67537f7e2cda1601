"""How much instrument.py slows a training step on this machine: paired runs with and without it.

    python benchmarks/instrument_overhead.py --pairs 6 --steps 1000

A single-process script with steps of about --step-ms times itself after a warm-up: its undisturbed
step (the 10th percentile, which a busy machine moves least), its median and its mean. Each pair
runs it with and without instrument.py, in alternating order, so that a drift of the machine falls
on both. Reported is the median over the pairs of with / without, with the smallest and the largest.

Where the machine is too noisy for that, the last line still tells: the hooks alone, called as one
step calls them (a DataLoader's batch and an optimizer's step that do nothing), in microseconds.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

INSTRUMENT = Path(__file__).parents[1] / "workflow" / "scripts" / "instrument.py"
SCRIPT = """
import json, statistics, sys, time
import torch
from torch.utils.data import DataLoader, TensorDataset

steps, step_s = int(sys.argv[1]), float(sys.argv[2])
torch.manual_seed(0)
torch.set_num_threads(1)
batch, warmup = 64, 50
data = TensorDataset(torch.randn((steps + warmup) * batch, 64))
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
work = torch.randn(256, 256)
if len(sys.argv) > 3:
    repeats = int(sys.argv[3])
else:
    timings = []
    for _ in range(500):
        begin = time.perf_counter()
        work @ work
        timings.append(time.perf_counter() - begin)
    repeats = round(step_s / statistics.median(timings))
times = []
for (x,) in DataLoader(data, batch_size=batch):
    for _ in range(repeats):
        work @ work
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
    times.append(time.perf_counter())
each = [b - a for a, b in zip(times[warmup:], times[warmup + 1:])]
print(json.dumps({"undisturbed_s": sorted(each)[len(each) // 10],
                  "median_s": statistics.median(each), "mean_s": statistics.fmean(each),
                  "repeats": repeats, "torch": torch.__version__}))
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the pairs and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--steps", type=int, default=1000, help="steps per run after the warm-up")
    parser.add_argument("--step-ms", type=float, default=5.0, help="length of a step to aim at")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as name:
        measure(Path(name), options.pairs, options.steps, options.step_ms / 1000)
    return 0


def measure(directory: Path, pairs: int, steps: int, step_s: float) -> None:
    """Run all pairs in ``directory`` and print what was found."""
    script = directory / "train.py"
    script.write_text(SCRIPT)
    run_json = directory / "run.json"
    run_json.write_text(json.dumps({"spec_hash": "0", "job": {"id": "overhead", "attempt": 1}}))
    first = _run([str(script), str(steps), str(step_s)], None)
    # Every run does the same work: what one run calibrated.
    words = [str(script), str(steps), str(step_s), str(first["repeats"])]
    ratios: dict[str, list[float]] = {"undisturbed_s": [], "median_s": [], "mean_s": []}
    added_us: list[float] = []
    for pair in range(pairs):
        done = {}
        for measured in (True, False) if pair % 2 else (False, True):
            done[measured] = _run(words, run_json if measured else None)
        for key, values in ratios.items():
            values.append(float(done[True][key]) / float(done[False][key]))
        without_ms, with_ms = (float(done[kind]["undisturbed_s"]) * 1e3 for kind in (False, True))
        added_us.append((with_ms - without_ms) * 1e3)
        print(f"pair {pair + 1}: {without_ms:.4f} ms without, {with_ms:.4f} ms with", flush=True)
    print(f"torch {first['torch']}, python {platform.python_version()}, {os.cpu_count()} CPUs")
    print(f"added to an undisturbed step: {statistics.median(added_us):.1f} microseconds")
    for key, values in ratios.items():
        print(
            f"with / without, {key[:-2]} step: {statistics.median(values):.4f} ({min(values):.4f} to {max(values):.4f})"
        )
    alone = _run(["-c", HOOKS_ALONE, str(INSTRUMENT.parent)], None)
    print(f"the hooks alone: {float(alone['added_s']) * 1e6:.2f} microseconds per step")


HOOKS_ALONE = """
import json, statistics, sys, time, torch
sys.path.insert(0, sys.argv[1])
from ddp_ladder_instrument import hooks
from ddp_ladder_instrument.steps import Steps
from torch.utils.data import DataLoader, dataloader

loader = DataLoader([torch.zeros(2)], batch_size=1)
kind = dataloader._SingleProcessDataLoaderIter
batch = torch.zeros(64, 4), torch.zeros(64)
kind._next_data = lambda self: batch
steps, optimizer, rounds = Steps(), object(), 200

def per_step_s(after_step):
    iterator, each = iter(loader), []
    for _ in range(rounds):
        begin = time.perf_counter()
        for _ in range(100):
            iterator._next_data()
            after_step(optimizer, (), {})
        each.append((time.perf_counter() - begin) / 100)
    return statistics.median(each)

without_s = per_step_s(lambda optimizer, args, kwargs: None)
hooks.patch_loaders(steps)
with_s = per_step_s(steps.after_step)
assert steps.count == 100 * rounds and sum(steps.samples) == 6400 * rounds
print(json.dumps({"added_s": with_s - without_s}))
"""


def _run(words: list[str], run_json: Path | None) -> dict[str, float | str]:
    environment = dict(os.environ)
    before: list[str] = []
    if run_json is not None:
        environment["DDP_LADDER_RUN"] = str(run_json)
        before = [str(INSTRUMENT)]
    done = subprocess.run(
        [sys.executable, *before, *words],
        env=environment,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    result: dict[str, float | str] = json.loads(done.stdout)
    return result


if __name__ == "__main__":
    sys.exit(main())
