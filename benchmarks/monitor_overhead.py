"""What the monitor of a node costs the training on it: throughput with and without, and its own CPU time.

    python benchmarks/monitor_overhead.py --out benchmarks/results/monitor_overhead.json
    python benchmarks/monitor_overhead.py --every-s 2 --steps 400 --quads 36 \\
        --out benchmarks/results/monitor_overhead_every_2_s.json

A training of one process with one thread makes steps of 5 ms or a little more (step_cpu_ms), beside processes that wait
as loader workers do. In this process, as in a node's agent, the monitor samples, or does not: segments of half a second
or more, in the order with, without, without, with. Such quads are so short that a busy machine slows all four parts
equally. For that it samples every 0.2 s, ten times as often as it does unless told otherwise, and
loss_scaled_to_every_2_s is a tenth of the loss that was measured. The second command samples every 2 s, in segments of
over 2 s: its interval is wider. All of it shares one core, so that whatever the monitor does takes time from the
training; on a cluster it has other cores to run on.

The result is the median over such quads of the throughput with / without, with its 95 % interval from order statistics.
clock is what a stopwatch shows, with all noise of the machine. cpu is the training's own CPU time, so that other
processes do not count, and the time that the monitor took of the same core: the throughput on a core that nothing else
uses.

With --device cuda the GPU is sampled too.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

SCRIPTS = Path(__file__).parents[1] / "workflow" / "scripts"
sys.path.insert(0, str(SCRIPTS))

from ddp_ladder.measuring.statistic import median_interval  # noqa: E402
from ddp_ladder.nodes.sampler import (  # noqa: E402
    MonitorEnd,
    NodeMonitor,
    NodeSampler,
)
from ddp_ladder.plan.plan import Job  # noqa: E402
from ddp_ladder.platform.accelerators import Gpus, open_nvidia  # noqa: E402
from instrument_overhead import TRAINING, machine  # noqa: E402

STEP_S = 0.005
EVERY_S = 0.2
DEFAULT_EVERY_S = 2.0  # of config.yaml
WORKERS = 64  # four ranks with 16 loader workers
ORDER = (True, False, False, True)

SEGMENTS = (
    TRAINING
    + """
import os
ends, kept = os.pipe()
for _ in range(int(sys.argv[5])):
    if os.fork() == 0:
        os.close(kept)
        os.read(ends, 1)  # until the training has ended
        os._exit(0)
print(json.dumps({"torch": torch.__version__}), flush=True)
for _ in sys.stdin:
    drawn = iter(DataLoader(data, batch_size=batch))
    for _ in range(3):
        compute(next(drawn)[0])
    clock_s, cpu_s = times()
    for (x,) in drawn:
        compute(x)
    end_s, cpu_end_s = times()
    print(json.dumps({"clock_s": end_s - clock_s, "cpu_s": cpu_end_s - cpu_s}), flush=True)
"""
)


class Training:
    """The training process: it makes the steps of a segment when it is told to."""

    def __init__(self, argv: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        self.torch = self._answer()["torch"]

    def segment(self) -> dict[str, float]:
        """Make the steps; return how long they took, by the clock and in CPU time."""
        assert self._process.stdin is not None
        print("go", file=self._process.stdin, flush=True)
        return self._answer()

    def end(self) -> None:
        """End the training and its workers."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer


@contextmanager
def training(directory: Path, device: str, steps: int, workers: int) -> Iterator[Training]:
    """Calibrate the steps and start the training."""
    script = directory / "train.py"
    script.write_text(TRAINING)
    argv = [sys.executable, str(script), "300", str(STEP_S)]
    done = subprocess.run([*argv, "0", device], check=True, stdout=subprocess.PIPE, text=True)
    repeats = json.loads(done.stdout)["repeats"]
    script.write_text(SEGMENTS)
    started = Training([sys.executable, str(script), str(steps), str(STEP_S), str(repeats), device, str(workers)])
    try:
        yield started
    finally:
        started.end()


RUN = {"schema_version": 1, "spec_hash": "0", "job": Job(id="overhead", attempt=1, run_id="0")}


def monitor(directory: Path, gpus: Gpus, every_s: float) -> NodeMonitor:
    """Return a monitor of this machine that has taken its first sample."""
    samples = directory / "node0.csv"
    samples.unlink(missing_ok=True)
    made = NodeMonitor(
        directory / "node0.monitor.json",
        samples,
        every_s,
        lambda: NodeSampler("lo", gpus, siblings=False),
        {**RUN, "node_rank": 0, "node": "here"},
    )
    until_s = time.monotonic() + 60
    while not samples.exists() or samples.read_text().count("\n") < 2:
        if time.monotonic() > until_s:
            raise TimeoutError(f"no sample within 60 s: {made.end().error}")
        time.sleep(0.01)
    return made


def measure(device: str, quads: int, steps: int, every_s: float = EVERY_S, workers: int = WORKERS) -> dict[str, Any]:
    """Return the figures of all quads."""
    gpus = open_nvidia(os.environ) if device == "cuda" else Gpus()
    if device == "cpu":
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})  # the training inherits it
    segments: list[dict[str, float]] = []
    ends: list[MonitorEnd] = []
    watched_s = 0.0
    with tempfile.TemporaryDirectory() as name, training(Path(name), device, steps, workers) as train:
        train.segment()  # the first is not counted
        for _ in range(quads):
            for on in ORDER:
                begin_s, running = time.monotonic(), monitor(Path(name), gpus, every_s) if on else None
                segments.append(train.segment())
                if running is not None:
                    ends.append(running.end())
                    watched_s += time.monotonic() - begin_s
        found = {"torch": train.torch, "gpus": len(gpus.sampled)}
    return {**found, **summary(segments, steps, ends, watched_s, every_s)}


def summary(
    segments: Sequence[Mapping[str, float]], steps: int, ends: Sequence[MonitorEnd], watched_s: float, every_s: float
) -> dict[str, Any]:
    """Return the ratios, and the monitor's share of a core. watched_s: how long it ran in all."""
    cpu_s, samples = sum(end.cpu_s for end in ends), sum(end.samples for end in ends)
    share = cpu_s / watched_s
    times = {kind: np.array([segment[f"{kind}_s"] for segment in segments]) for kind in ("clock", "cpu")}
    ratios = {kind: of_throughputs(values.reshape(-1, len(ORDER))) for kind, values in times.items()}
    ratios["cpu"] *= 1 - share
    intervals = {kind: median_interval(values) for kind, values in ratios.items()}
    return {
        "steps_per_segment": steps,
        "quads": len(ratios["clock"]),
        "step_cpu_ms": float(np.median(times["cpu"]) / steps * 1e3),
        "throughput_with_over_without": {kind: list(interval) for kind, interval in intervals.items()},
        "loss_scaled_to_every_2_s": {
            kind: [(1 - value) * every_s / DEFAULT_EVERY_S for value in (ratio, high, low)]
            for kind, (ratio, low, high) in intervals.items()
        },
        "monitor_core_share": share,
        "monitor_core_share_every_2_s": cpu_s / samples / DEFAULT_EVERY_S,
        "cpu_ms_per_sample": cpu_s / samples * 1e3,
        "errors": sorted({end.error for end in ends if end.error}),
    }


def of_throughputs(times_s: Any) -> Any:
    """Return the throughput with / without of each quad: the steps of all segments are the same."""
    return times_s[:, [1, 2]].sum(axis=1) / times_s[:, [0, 3]].sum(axis=1)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quads", type=int, default=150, help="of segments (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=100, help="of each segment (default: %(default)s)")
    parser.add_argument("--every-s", type=float, default=EVERY_S, help="between samples (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=WORKERS, help="processes that wait (default: %(default)s)")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="(default: %(default)s)")
    parser.add_argument("--out", type=Path, help="also write the figures here, as JSON")
    options = parser.parse_args(argv)
    here = machine()
    figures = measure(options.device, options.quads, options.steps, options.every_s, options.workers)
    found = {
        "machine": {**here, "load_1min_after": round(os.getloadavg()[0], 1), "torch": figures.pop("torch")},
        "device": options.device,
        "every_s": options.every_s,
        "waiting_processes": options.workers,
        **figures,
    }
    print(f"steps of {found['step_cpu_ms']:.2f} ms CPU time, a sample every {options.every_s:g} s")
    for kind, (ratio, low, high) in found["throughput_with_over_without"].items():
        print(f"  throughput with / without the monitor, {kind:<5}  {ratio:.4f}  [{low:.4f} to {high:.4f}]")
        loss, least, most = found["loss_scaled_to_every_2_s"][kind]
        print(f"    scaled to a sample every 2 s, that is a loss of {loss:.2%} [{least:.2%} to {most:.2%}]")
    share = found["monitor_core_share_every_2_s"]
    print(f"  a sample takes {found['cpu_ms_per_sample']:.1f} ms CPU time: {share:.2%} of a core, one every 2 s")
    for error in found["errors"]:
        print(f"  {error}")
    if options.out is not None:
        options.out.write_text(json.dumps(found, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
