"""What the profiled steps spend their time on, from the events of torch.profiler's trace.

Each moment of the steps counts once, for the first of these parts that it belongs to, so the parts add up to the steps:

    on CUDA   kernels, communication, copies, gaps, Python
    on a CPU  copies, kernels (operators), communication, gaps, Python

A copy of a GPU runs beside its kernels; that of a CPU is one of the rank's own operators, often inside of another.
Gaps: nothing of these runs, and the host is in an operator, in a CUDA call, or in the autograd engine. Python: the host
is in none of these; it runs Python code, or waits for the data loader. Times of a trace are microseconds.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Event = Mapping[str, Any]
Span = tuple[float, float]

STEP = "ProfilerStep#"
OPTIMIZER = "Optimizer.step#"
MICROSECOND_S = 1e-6
MOST_LONGEST = 10
LONGEST_NAME = 120

_DEVICE_KINDS = ("kernel", "gpu_memcpy", "gpu_memset")
_HOST_KINDS = ("cpu_op", "cuda_runtime", "cuda_driver")
_GLOO_AND_MPI = ("gloo:", "mpi:")
_C10D = "c10d::"
_OF_COPIES = (
    "aten::copy_",
    "aten::to",
    "aten::_to_copy",
    "torch.distributed.ddp.reducer::copy_bucket_to_grad",
)
_ENGINE = "autograd::engine::"
_ON_CUDA = ("kernels", "communication", "copies", "gaps")
_ON_CPU = ("copies", "kernels", "communication", "gaps")


class NoSteps(ValueError):
    """The trace has no steps."""


def summary(events: Sequence[Event]) -> dict[str, Any]:
    """Return the times of the steps and of their parts in seconds, and the operations that take the longest.

    Raises NoSteps.
    """
    steps = sorted(_span(event) for event in events if _is_step(event))
    if not steps:
        raise NoSteps("the trace has no steps")
    on_cuda = any(event.get("cat") in _DEVICE_KINDS for event in events)
    spans: dict[str, list[Span]] = {part: [] for part in _ON_CUDA}
    operations = []
    communicating = set()
    for event in events:
        if event.get("ph") != "X" or "dur" not in event:
            continue
        part = _part(event, on_cuda)
        if part is not None:
            spans[part].append(_span(event))
        if event.get("cat") in (_DEVICE_KINDS if on_cuda else ("cpu_op",)):
            operations.append(event)
            if part == "communication":
                communicating.add(str(event["name"])[:LONGEST_NAME])
    left = union(steps)
    window = left
    parts_s = {}
    for part in _ON_CUDA if on_cuda else _ON_CPU:
        rest = minus(left, union(spans[part]))
        parts_s[f"{part}_s"] = (_length(left) - _length(rest)) * MICROSECOND_S
        left = rest
    communication = union(spans["communication"])
    hidden = _length(window) - _length(minus(window, communication))
    return {
        "on_cuda": on_cuda,
        "steps_s": [(end - begin) * MICROSECOND_S for begin, end in steps],
        "parts_s": {**parts_s, "python_s": _length(left) * MICROSECOND_S},
        "communication_total_s": hidden * MICROSECOND_S,
        "longest": [{**each, "communication": each["name"] in communicating} for each in _longest(operations, on_cuda)],
    }


def _is_step(event: Event) -> bool:
    return event.get("ph") == "X" and event.get("cat") == "user_annotation" and event["name"].startswith(STEP)


def _part(event: Event, on_cuda: bool) -> str | None:
    """Return the part that the event is of; None if it is of no part, as a step itself."""
    kind, name = event.get("cat"), event["name"]
    if kind == "kernel":
        return "communication" if "nccl" in name.lower() else "kernels"
    if kind in _DEVICE_KINDS:
        return "copies"
    if name.startswith(_GLOO_AND_MPI) or (name.startswith(_C10D) and not on_cuda):
        return "communication"
    if kind not in _HOST_KINDS:
        return None  # ranges with a name, such as DistributedDataParallel.forward: they hold Python code too
    if on_cuda or kind != "cpu_op" or name.startswith(_ENGINE):
        return "gaps"
    return "copies" if name in _OF_COPIES else "kernels"


def _span(event: Event) -> Span:
    begin = float(event["ts"])
    return begin, begin + float(event["dur"])


def union(spans: Iterable[Span]) -> list[Span]:
    """Return the spans sorted and merged, none of which touch."""
    merged: list[Span] = []
    for begin, end in sorted(spans):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        elif end > begin:
            merged.append((begin, end))
    return merged


def minus(spans: Sequence[Span], taken: Sequence[Span]) -> list[Span]:
    """Return what of the spans lies outside of the taken ones; both as ``union`` returns them."""
    left: list[Span] = []
    first = 0
    for begin, end in spans:
        while first < len(taken) and taken[first][1] <= begin:
            first += 1
        for cut_begin, cut_end in itertools.islice(taken, first, None):
            if cut_begin >= end:
                break
            if cut_begin > begin:
                left.append((begin, cut_begin))
            begin = max(begin, cut_end)
        if begin < end:
            left.append((begin, end))
    return left


def _length(spans: Iterable[Span]) -> float:
    return sum(end - begin for begin, end in spans)


def _longest(events: Sequence[Event], on_cuda: bool) -> list[dict[str, Any]]:
    """Return the operations by the time that they take themselves: on a CPU without that of operators inside them."""
    own = [float(event["dur"]) for event in events] if on_cuda else _own_times(events)
    total: dict[str, float] = {}
    calls: dict[str, int] = {}
    for index, event in enumerate(events):
        name = str(event["name"])[:LONGEST_NAME]
        total[name] = total.get(name, 0.0) + own[index]
        calls[name] = calls.get(name, 0) + 1
    names = sorted(total, key=lambda name: -total[name])[:MOST_LONGEST]
    return [{"name": name, "calls": calls[name], "time_s": total[name] * MICROSECOND_S} for name in names]


def _own_times(events: Sequence[Event]) -> list[float]:
    own = [float(event["dur"]) for event in events]
    open_ones: dict[Any, list[int]] = {}
    for index in sorted(range(len(events)), key=lambda k: (events[k]["ts"], -events[k]["dur"])):
        begin, end = _span(events[index])
        around = open_ones.setdefault(events[index].get("tid"), [])
        while around and _span(events[around[-1]])[1] < end:
            around.pop()
        if around:
            own[around[-1]] -= end - begin
        around.append(index)
    return own


def align_steps(events: Sequence[dict[str, Any]]) -> None:
    """Move each edge between two steps to the end of the Optimizer.step around it.

    A step ends in a hook of Optimizer.step, a moment before that range ends; viewers drop ranges that overlap so.
    """
    around = [_span(event) for event in events if event.get("ph") == "X" and event["name"].startswith(OPTIMIZER)]
    for step in [event for event in events if _is_step(event)]:
        begin, end = (_aligned(edge, around) for edge in _span(step))
        step["ts"], step["dur"] = begin, end - begin


def _aligned(edge: float, around: Sequence[Span]) -> float:
    return next((end for begin, end in around if begin < edge < end), edge)
