"""Ways to train, each with the instrument and without: the same losses, every step counted, its time to 1 %."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from gpu_day_parts.figures import Figures, Setting
from gpu_day_parts.runs import Ran, train

AT_ONCE = {"cuda": 8, "cpu": 2}
BATCHES = {"cuda": 400, "cpu": 40}
CLOSE = 0.01
EQUAL = 1e-4  # of losses, relative: a compiler may choose another order of sums in each process


@dataclass(frozen=True)
class Kind:
    """A way to train. shows: in the checklist. is_counted: the optimizer steps outside of any graph."""

    name: str
    shows: int = 9
    ranks: int = 1
    ends_early: bool = False
    is_counted: bool = True


KINDS = {
    "cuda": (
        Kind("reduce_overhead"),  # the longest first
        Kind("graph", ends_early=True),
        Kind("side_stream"),
        Kind("whole_graph", is_counted=False),
        Kind("scaler"),
        Kind("no_sync"),
        Kind("fsdp2", ranks=2),
        Kind("fork", 10),
        Kind("forkserver", 10),
        Kind("plain", 7),
    ),
    "cpu": (Kind("fork", 10),),
}


def measure(setting: Setting, figures: Figures) -> None:
    """Train in all ways at once, and compare."""
    kinds, good = KINDS[setting.device], 0
    with ThreadPoolExecutor(AT_ONCE[setting.device]) as pool:
        pairs = [[pool.submit(_train, setting, kind, instrumented) for instrumented in (True, False)] for kind in kinds]
    for kind, pair in zip(kinds, pairs, strict=True):
        problem = compare(kind, *(future.result() for future in pair), figures)
        figures.put(**{kind.name: problem or "as without"})
        figures.check(f"{kind.name}: differs from the same without", int(bool(problem)), at_most=0, shows=kind.shows)
        good += not problem
    figures.headline(f"{good} of {len(kinds)} ways to train are as without the instrument")


def _train(setting: Setting, kind: Kind, instrumented: bool) -> Ran:
    early, batches = kind.ends_early and instrumented, BATCHES[setting.device]
    directory = setting.work / f"{kind.name}-{'with' if instrumented else 'without'}"
    words: list[object] = [kind.name, setting.device, 10**9 if early else batches]
    return train(directory, words, kind.ranks, instrumented, batches if early else None)


def compare(kind: Kind, ran: Ran, plain: Ran, figures: Figures) -> str:
    """Return what differs, or was not counted; empty if nothing. Checks the times and the GPU's processes."""
    if ran.problem or plain.problem:
        return ran.problem or plain.problem
    own, reference = ran.result(), plain.result()
    if reference["gpu_processes"]:
        processes = own["gpu_processes"] - reference["gpu_processes"]
        figures.check(f"{kind.name}: more processes on the GPU than without", processes, at_most=0, shows=11)
    else:
        figures.impossible(11, "nvidia-smi lists no processes here")
    ours, theirs = own["losses"], reference["losses"]
    if len(ours) != len(theirs) or any(abs(a - b) > EQUAL * abs(b) for a, b in zip(ours, theirs, strict=True)):
        return f"losses: {len(ours)}, the last {ours[-1]}; without: {len(theirs)}, the last {theirs[-1]}"
    times_s = ran.step_times_s()
    if kind.is_counted and len(times_s) != reference["steps"]:
        return f"{len(times_s)} steps counted, not {reference['steps']}"
    if kind.is_counted and not kind.ends_early:
        ratio = sum(times_s[own["first"] :]) / own["span_s"]
        figures.check(f"{kind.name}: step times / one pair of events", ratio, 1 - CLOSE, 1 + CLOSE, shows=7)
    return ""
