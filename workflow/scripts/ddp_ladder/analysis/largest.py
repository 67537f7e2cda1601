"""The largest scale above an efficiency: where to stop. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from ddp_ladder.analysis.estimate import estimate
from ddp_ladder.analysis.measured import Series
from ddp_ladder.settings.terms import Scale

FAR = 16
"""Times the largest measured number of GPUs: farther than anything is known."""


@dataclass(frozen=True)
class Largest:
    """The largest scale whose efficiency is expected to reach a minimum; None if no scale is.

    interval_scale: the largest whose whole interval does. dips: the smaller scales that were measured below the
    minimum, in words; empty if there are none.
    """

    min_efficiency: float
    scale: str | None
    efficiency: float | None
    interval_scale: str | None
    note: str
    dips: str = ""


def largest_scale(series: Series, min_efficiency: float, most_gpus: int | None = None) -> Largest:
    """Return the last scale above an efficiency, going up in whole nodes as long as it stays above.

    It goes on at least to the largest measured scale that reaches the efficiency, though a smaller one may dip below.
    most_gpus: each has a sample of the global batch in strong mode. Raises ValueError for an empty series.
    """
    found: tuple[Scale, float] | None = None
    whole: Scale | None = None
    wanted = f"{100 * min_efficiency:.3g} %"
    measured = {p.scale: series.smallest.gpu_s_per_sample / p.gpu_s_per_sample for p in series.points}
    reached = max((scale.world_size for scale, own in measured.items() if own >= min_efficiency), default=0)
    note = "measure a larger one"
    for scale in sorted({*_upwards(series), *measured}, key=lambda scale: (scale.world_size, scale.nodes)):
        if most_gpus is not None and scale.world_size > most_gpus:
            note = f"{scale} has more GPUs than the global batch of {most_gpus} has samples"
            break
        here = estimate(series, scale)
        if here is None:
            if scale.world_size <= reached:
                continue
            note = f"{scale} is not known from these scales: measure a larger one"
            break
        ideal = scale.world_size / series.smallest.gpu_s_per_sample
        if here.samples_per_s / ideal < min_efficiency:
            if scale.world_size <= reached:
                continue
            note = f"stop at {found[0]}: {scale} is below {wanted}" if found else f"no scale reaches {wanted}"
            break
        found = scale, here.samples_per_s / ideal
        low = here.samples_per_s if here.low is None else here.low
        whole = scale if low / ideal >= min_efficiency else whole
    dips = [
        f"{scale} is below, at {100 * own:.3g} %"
        for scale, own in measured.items()
        if own < min_efficiency and scale.world_size < reached
    ]
    return Largest(
        min_efficiency=min_efficiency,
        scale=str(found[0]) if found else None,
        efficiency=found[1] if found else None,
        interval_scale=str(whole) if whole else None,
        note=note,
        dips=", ".join(dips),
    )


def _upwards(series: Series) -> Iterator[Scale]:
    """Yield the scales from the smallest measured one up: inside a node by doubling, then whole nodes.

    Every number of nodes up to 16, then steps of a sixteenth: nobody asks for 1001 nodes instead of 1000.
    """
    smallest, largest = series.smallest.scale, series.largest.scale
    full = max(point.scale.gpus_per_node for point in series.points)
    inside = [Scale(1, 2**power) for power in range(full.bit_length()) if 2**power < full]
    most = FAR * math.ceil(largest.world_size / full)
    counts = [1]
    while counts[-1] < most:
        counts.append(min(most, counts[-1] + max(1, counts[-1] // 16)))
    for scale in (*inside, *(Scale(count, full) for count in counts)):
        if scale.nodes >= smallest.nodes and scale.world_size >= smallest.world_size:
            yield scale
