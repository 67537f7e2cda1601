"""The instrument's overhead per training step on this device."""

from __future__ import annotations

from dataclasses import dataclass

import instrument_overhead

from gpu_day_parts.figures import Figures, Setting


@dataclass(frozen=True)
class Size:
    """A step's length, the largest allowed ratio, with / without, and the sizes of the measurement."""

    step_ms: float
    most: float
    quads: int
    pairs: int
    steps: int


SIZES = {"cuda": (Size(0.5, 1.05, 25, 1, 500), Size(100.0, 1.005, 4, 0, 0)), "cpu": (Size(0.5, 1.05, 2, 0, 20),)}


def measure(setting: Setting, figures: Figures) -> None:
    """Measure the ratio of wall-clock times for each step length."""
    bench = instrument_overhead.Bench(setting.work, setting.device)
    ratios = []
    for size in SIZES[setting.device]:
        found = bench.measure(size.step_ms, size.quads, size.pairs, size.steps)
        figures.put(**{f"step_{size.step_ms:g}_ms".replace(".", "_"): found})
        ratio, what = found["segments"]["clock"][0], f"step of {size.step_ms:g} ms with the instrument / without"
        figures.check(f"{what}, by the clock", ratio, at_most=size.most, shows=6)
        ratios.append(f"{ratio:.4f} of {size.step_ms:g} ms")
    figures.headline(f"with / without, by the clock: {', '.join(ratios)}")
    figures.note(
        "Overhead: benchmarks/instrument_overhead.py. A ratio is its median and the ends of its 95 % interval; "
        "segments: hooks taken out and put back in one process; pairs: whole processes; added_us: processor time."
    )
