"""Ratios to baselines other than the first scale: one node, and the smallest scale that compares. Pure.

The runs of the first scale may have failed, or been made otherwise. The ladder then still shows how it
scales from the smallest scale that compares.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ddp_ladder.common.formats import factor, interval, tenths_of_percent
from ddp_ladder.gates.groups import Group, Groups
from ddp_ladder.gates.interval import Estimate, divided
from ddp_ladder.gates.notes import differences_to, excess_note, joined
from ddp_ladder.gates.scale_point import ScalePoint
from ddp_ladder.settings.terms import Scale

IN_SHORT = {
    **dict.fromkeys(("parameter_dtype", "autocast_dtype", "product_dtypes", "float32_products"), "precision"),
    **dict.fromkeys(("script", "script_sha256", "sources"), "script"),
    **dict.fromkeys(("args_template", "configuration"), "arguments"),
    **dict.fromkeys(("torch", "cuda", "nccl", "cudnn", "libraries", "driver", "python"), "versions"),
    **dict.fromkeys(("threads", "threads_per_rank"), "threads"),
    "num_workers": "workers",
    "gpu": "GPU model",
    "cpu_model": "CPU model",
}
"""Fields of the fingerprint in a word for a table; another one is named as it is."""


def with_other_baselines(point: ScalePoint, group: Group, groups: Groups) -> ScalePoint:
    """Return the point with its ratios to one node and to the smallest scale that it compares with.

    The group has good runs and no failed ones.
    """
    series = [each for (mode, variant, _), each in groups.items() if (mode, variant) == (point.mode, point.variant)]
    return _against_smallest(_against_node(point, group, series), group, series)


def _against_node(point: ScalePoint, group: Group, series: Sequence[Group]) -> ScalePoint:
    scale = Scale(1, max(each.first.gpus_per_node for each in series))
    if group.first.gpus < scale.world_size:
        return point
    node = next((each for each in series if each.first.scale == scale), None)
    if node is None or not _is_measured(node):
        state = "is not in the plan" if node is None else "failed" if node.failed else "has not been run"
        return replace(point, node_obstacle=f"{scale} {state}")
    if differing := _differing(group, node):
        return replace(point, node_obstacle=not_comparable(differing))
    speedup, efficiency = _ratios(group, node)
    return replace(
        point,
        node_baseline=str(scale),
        speedup_node=speedup[0],
        speedup_node_low=speedup[1],
        speedup_node_high=speedup[2],
        efficiency_node=efficiency[0],
        efficiency_node_low=efficiency[1],
        efficiency_node_high=efficiency[2],
    )


def _against_smallest(point: ScalePoint, group: Group, series: Sequence[Group]) -> ScalePoint:
    """Return the point with its ratio to the smallest measured scale of the same program; that may be its own."""
    obstacle = ""
    measured = [each for each in series if _is_measured(each)]
    for baseline in sorted(measured, key=lambda each: (each.first.gpus, each.first.nodes)):
        if baseline is group:
            break
        differing = _differing(group, baseline) if baseline.first.gpus < group.first.gpus else ()
        if baseline.first.gpus < group.first.gpus and not differing:
            break
        obstacle = obstacle or (f"{baseline.first.scale} {not_comparable(differing)}" if differing else "")
    else:
        return point
    speedup, efficiency = _ratios(group, baseline)
    times = group.first.gpus / baseline.first.gpus
    serial = [
        None if times == 1 or each is None else serial_fraction(each, times)
        for each in (speedup[0], speedup[2], speedup[1])
    ]
    return replace(
        point,
        smallest_baseline=str(baseline.first.scale),
        smallest_obstacle=obstacle,
        speedup_smallest=speedup[0],
        speedup_smallest_low=speedup[1],
        speedup_smallest_high=speedup[2],
        efficiency_smallest=efficiency[0],
        efficiency_smallest_low=efficiency[1],
        efficiency_smallest_high=efficiency[2],
        serial_fraction=serial[0],
        serial_fraction_low=serial[1],
        serial_fraction_high=serial[2],
    )


def serial_fraction(speedup: float, times: float) -> float:
    """Return Karp and Flatt's experimentally determined serial fraction. times: as many GPUs, above 1."""
    return (1 / speedup - 1 / times) / (1 - 1 / times)


def _is_measured(group: Group) -> bool:
    return bool(group.good) and not group.failed


def _differing(group: Group, baseline: Group) -> tuple[str, ...]:
    """Return the fields that forbid the ratio: between both groups, or between the repeats of one."""
    between = differences_to(group, baseline)
    found = group.forbidden((*between, *group.all_differences, *baseline.all_differences))
    return tuple(item.field for item in found)


def _ratios(group: Group, baseline: Group) -> tuple[Estimate, Estimate]:
    """Return speed-up and efficiency, each with the ends of its interval."""
    speedup = group.speedup_over(baseline)
    return speedup, divided(speedup, group.first.gpus / baseline.first.gpus)


def not_comparable(fields: Sequence[str]) -> str:
    """Return ``not comparable: precision, workers``."""
    return f"not comparable: {', '.join(dict.fromkeys(IN_SHORT.get(field, field) for field in fields))}"


def instead_of_the_baseline(point: ScalePoint, groups: Groups, most: float) -> str:
    """Return the ratio to the smallest scale in words, for a point without one to the first; empty if there is none.

    most: an efficiency above it is explained.
    """
    words = _against_smallest_in_words(point)
    if not words or (point.efficiency_smallest or 0) <= most:
        return words
    baseline = groups[point.mode, point.variant, Scale.parse(point.smallest_baseline)]
    return joined(words, excess_note(replace(point, efficiency=point.efficiency_smallest), baseline))


def _against_smallest_in_words(point: ScalePoint) -> str:
    low, high = point.efficiency_smallest_low, point.efficiency_smallest_high
    if point.smallest_baseline in ("", str(point.scale)):
        return ""
    words = f"speed-up {factor(point.speedup_smallest)}, efficiency {tenths_of_percent(point.efficiency_smallest)}"
    ends = f" {interval(tenths_of_percent(low), tenths_of_percent(high))}" if (low or 0) < (high or 0) else ""
    return f"against {point.smallest_baseline}, the smallest scale that compares: {words}{ends}"
