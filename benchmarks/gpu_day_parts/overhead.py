"""The instrument's overhead per training step on this device."""

from __future__ import annotations

from dataclasses import dataclass

import instrument_overhead

from gpu_day_parts.figures import Figures, Setting


@dataclass(frozen=True)
class Size:
    """The sizes of the measurement. most: the largest allowed ratio, with / without, by the step's length in ms."""

    most: dict[float, float]
    quads: int
    pairs: int
    steps: int


SIZES = {"cuda": Size({5.0: 1.01, 0.5: 1.05}, 25, 1, 500), "cpu": Size({0.5: 1.05}, 2, 0, 20)}


def measure(setting: Setting, figures: Figures) -> None:
    """Measure the ratio of wall-clock times for each step length."""
    size = SIZES[setting.device]
    bench = instrument_overhead.Bench(setting.work, setting.device)
    ratios = []
    for step_ms, most in size.most.items():
        found = bench.measure(step_ms, size.quads, size.pairs, size.steps)
        name = f"step_{step_ms:g}_ms".replace(".", "_")
        figures.put(**{name: found})
        ratio = found["segments"]["clock"][0]
        figures.check(f"step of {step_ms:g} ms with the instrument / without, by the clock", ratio, at_most=most)
        ratios.append(f"{ratio:.4f} of {step_ms:g} ms")
    figures.headline(f"with / without, by the clock: {', '.join(ratios)}")
    figures.note(
        "Overhead: benchmarks/instrument_overhead.py. A ratio is its median and the ends of its 95 % interval; "
        "segments: hooks taken out and put back in one process; pairs: whole processes; added_us: processor time."
    )
