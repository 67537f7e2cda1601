"""Findings on GPUs: idle, throttled, at their power limit, their memory. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from ddp_ladder.common.messages import leave_out
from ddp_ladder.usage.models import GpuUsage, NodeUsage, UsageFinding
from ddp_ladder.usage.run_use import RunUse, gpus_in_words, listed, place_of, share, shares

LEAST_BUSY = 0.8  # centres ask for at least this in applications for large partitions
MUCH_WAIT = 0.1  # of the step time: a wait that explains an idle GPU
MUCH_THROTTLED = 0.05  # of the samples: a single one of a minute may be chance
THROTTLES = ("thermal", "hw_slowdown", "hw_power_brake")  # no GPU that is cooled and supplied well has them
OFTEN_CAPPED = 0.5  # of the samples; dense matrix products reach the limit of most GPUs now and then
CAPPED_CLOCK = 0.8  # of the highest clock: what the limit costs then is worth knowing
SLOWER_CLOCK = 0.95  # of the peers' clock: GPUs of one model differ by less
LOWERED_LIMIT = 0.95  # of the limit that the GPU allows: a lower one was set by somebody
FULL, EMPTY = 0.95, 0.5  # of the memory: a little more ends the run; twice the batch may fit
ALLOCATED = 0.85  # of the memory: below, a full memory is torch's cache, which it frees when it needs it
FILLED_BY_ESTIMATE = 0.9  # of the memory
BATCH_MULTIPLE = 8  # sizes that tensor cores like
GIB = 2**30

On = tuple[NodeUsage, GpuUsage]


def gpu_findings(run: RunUse) -> Iterator[UsageFinding]:
    """Yield what is wrong with the GPUs of a run."""
    yield from _idle(run)
    yield from _throttled(run)
    yield from _power_limit(run)
    yield from _memory_full(run)
    yield from _memory_empty(run)


def _idle(run: RunUse) -> Iterator[UsageFinding]:
    idle = [on for on in run.gpus if (on[1].busy_fraction or 0.0) < LEAST_BUSY and on[1].busy_fraction is not None]
    if not idle:
        return
    busy = shares([gpu.busy_fraction or 0.0 for _, gpu in idle])
    wait, exposed = run.data_wait_fraction or 0.0, run.exposed_comm_fraction or 0.0
    if wait >= MUCH_WAIT:
        why = f"the ranks waited for data {share(wait)} of the step time"
        advice = (
            "give the script more loader workers (workload.args), and node.cpus in cluster.yaml for them, or put "
            "workload.data_dir on faster storage"
        )
    elif exposed >= MUCH_WAIT:
        why = f"communication that the backward pass did not hide took {share(exposed)} of the step time"
        advice = (
            "raise workload.batch_per_gpu, so that each exchange of gradients serves more samples; see whether "
            "network.interface is the fastest one"
        )
    else:
        why = "the ranks waited neither for data nor for gradients, so the host launches work too slowly"
        advice = (
            "raise workload.batch_per_gpu; let the script compile its model (torch.compile), and read results from "
            "the GPU (.item(), .cpu()) less often"
        )
    node, gpu = place_of(idle)
    what = f"{gpus_in_words(idle, run)}: busy {busy} of the measured time; {why}"
    alike = len(idle) == len(run.gpus)
    yield UsageFinding(kind="GPU idle", what=what, node=node, gpu=gpu, next=advice, everywhere=alike)


def _throttled(run: RunUse) -> Iterator[UsageFinding]:
    found = [on for on in run.gpus if _worst(on[1]) >= MUCH_THROTTLED]
    if not found:
        return
    node, gpu = place_of(found)
    reasons = listed([reason for _, each in found for reason in each.throttled or () if reason in THROTTLES])
    heat = max((each.temperature_c for _, each in found if each.temperature_c is not None), default=None)
    hot = f", up to {heat:.0f} C" if heat is not None else ""
    what = (
        f"{gpus_in_words(found, run)}: throttled in {shares([_worst(each) for _, each in found])} of the samples "
        f"({reasons}{hot}){_clocks(found, run)}"
    )
    names = listed([each.node for each, _ in found])
    advice = f"report {names} to the site, whose cooling or power supply is at fault; until then "
    advice += leave_out(*(each.node for each, _ in found))
    yield UsageFinding(kind="GPU throttled", what=what, node=node, gpu=gpu, next=advice)


def _worst(gpu: GpuUsage) -> float:
    return max((_share(gpu, reason) for reason in THROTTLES), default=0.0)


def _share(gpu: GpuUsage, reason: str) -> float:
    return (gpu.throttled or {}).get(reason, 0.0)


def _power_limit(run: RunUse) -> Iterator[UsageFinding]:
    found = [on for on in run.gpus if _share(on[1], "power_cap") >= OFTEN_CAPPED and _matters(on, run)]
    if not found:
        return
    node, gpu = place_of(found)
    limits = {each.power_limit_w for _, each in found if each.power_limit_w}
    limit = f" ({min(limits):.0f} W)" if len(limits) == 1 else ""
    capped = shares([_share(each, "power_cap") for _, each in found])
    what = f"{gpus_in_words(found, run)}: at the power limit{limit} in {capped} of the samples{_clocks(found, run)}"
    lowered = [on for on in found if _is_lowered(on, run)]
    if lowered:
        highest = max(_limit_max(on, run) or 0.0 for on in lowered)
        what += f"; the limit was lowered: {gpus_in_words(lowered, run)} can have {highest:.0f} W"
        advice = (
            "ask the site whether the lower limit is meant; slurm.constraint in cluster.yaml may choose other nodes"
        )
    elif len(found) < len(run.gpus):
        advice = f"{leave_out(*(each.node for each, _ in found))}, compare, and report the difference"
    else:
        advice = (
            "nothing, if the computation is dense matrix products, which take all power that a GPU may have; a lower "
            "precision (workload.args) does more with the same power"
        )
    alike = len(found) == len(run.gpus)
    yield UsageFinding(kind="GPU power limit", what=what, node=node, gpu=gpu, next=advice, everywhere=alike)


def _matters(on: On, run: RunUse) -> bool:
    """Return True if the power limit costs a notable part of the clock, or is lower than it need be."""
    gpu = on[1]
    if _is_lowered(on, run):
        return True
    if gpu.sm_clock_mhz is None:
        return False
    peers = _clock_of_peers([on], run)
    if peers is not None and gpu.sm_clock_mhz < SLOWER_CLOCK * peers:
        return True
    return gpu.max_sm_clock_mhz is not None and gpu.sm_clock_mhz < CAPPED_CLOCK * gpu.max_sm_clock_mhz


def _is_lowered(on: On, run: RunUse) -> bool:
    limit, highest = on[1].power_limit_w, _limit_max(on, run)
    return limit is not None and highest is not None and limit < LOWERED_LIMIT * highest


def _limit_max(on: On, run: RunUse) -> float | None:
    node, gpu = on
    return run.about[node.node_rank].gpus[gpu.index].power_limit_max_w


def _clocks(found: Sequence[On], run: RunUse) -> str:
    """Return the SM clock of these GPUs, beside that of the others or the highest."""
    own = [gpu.sm_clock_mhz for _, gpu in found if gpu.sm_clock_mhz is not None]
    if not own:
        return ""
    peers = _clock_of_peers(found, run)
    highest = [gpu.max_sm_clock_mhz for _, gpu in found if gpu.max_sm_clock_mhz]
    if peers is not None:
        beside = f", {peers:.0f} MHz on the other GPUs"
    else:
        beside = f" of {max(highest)} MHz" if highest else ""
    return f"; SM clock {statistics.median(own):.0f}{'' if beside.startswith(' of') else ' MHz'}{beside}"


def _clock_of_peers(found: Sequence[On], run: RunUse) -> float | None:
    """Return the median SM clock of the other GPUs of the same model."""
    models = {gpu.name for _, gpu in found}
    others = [gpu for on in run.gpus for gpu in on[1:] if on not in found and gpu.name in models]
    clocks = [gpu.sm_clock_mhz for gpu in others if gpu.sm_clock_mhz is not None]
    return statistics.median(clocks) if clocks else None


def _memory_full(run: RunUse) -> Iterator[UsageFinding]:
    full = [on for on in run.gpus if (_filled(on[1]) or 0.0) > FULL and not _is_cache(on[1], run)]
    if not full:
        return
    node, gpu = place_of(full)
    used, total = full[0][1].memory_used_bytes or 0, full[0][1].memory_bytes or 1
    what = (
        f"{gpus_in_words(full, run)}: memory nearly full, {used / GIB:.1f} of {total / GIB:.1f} GiB "
        f"({shares([_filled(each) or 0.0 for _, each in full])})"
    )
    now = "each GPU's share of it is" if run.batch_is_share else "now"
    advice = (
        f"lower workload.batch_per_gpu ({now} {run.batch_per_gpu}) a little: a longer sample, or a fragmented memory, "
        "ends the run with CUDA out of memory"
    )
    alike = len(full) == len(run.gpus)
    yield UsageFinding(kind="GPU memory full", what=what, node=node, gpu=gpu, next=advice, everywhere=alike)


def _is_cache(gpu: GpuUsage, run: RunUse) -> bool:
    allocated = next((rank.peak_gpu_memory_bytes for rank in run.ranks if rank.rank == gpu.rank), None)
    return allocated is not None and allocated < ALLOCATED * (gpu.memory_bytes or 0)


def _filled(gpu: GpuUsage) -> float | None:
    if gpu.memory_used_bytes is None or not gpu.memory_bytes:
        return None
    return gpu.memory_used_bytes / gpu.memory_bytes


def _memory_empty(run: RunUse) -> Iterator[UsageFinding]:
    filled = [(fraction, on) for on in run.gpus if (fraction := _filled(on[1])) is not None]
    # A share of the batch may leave memory empty: it is the first scale that has to fit the whole.
    if not filled or run.batch_is_share:
        return
    most, (node, gpu) = max(filled, key=lambda each: each[0])
    if most >= EMPTY:
        return
    fits = int(run.batch_per_gpu * FILLED_BY_ESTIMATE / most) // BATCH_MULTIPLE * BATCH_MULTIPLE
    used, total = gpu.memory_used_bytes or 0, gpu.memory_bytes or 0
    where = "the GPU uses" if len(filled) == 1 else "no GPU uses more than"
    yield UsageFinding(
        kind="GPU memory empty",
        what=f"{where} {used / GIB:.1f} of its {total / GIB:.1f} GiB of memory ({share(most)}): the batch could grow",
        node=node.node if len(filled) == 1 else None,
        gpu=gpu.index if len(filled) == 1 else None,
        next=f"raise workload.batch_per_gpu (now {run.batch_per_gpu}): {max(fits, run.batch_per_gpu + 1)} should fit, "
        "even if all of the memory grew with the batch",
        everywhere=True,
    )
