"""What is wrong with what a run used, and what to change: on its GPUs, its hosts, and the node that others wait for.

Pure. Which ranks hold up the others, and whether it is always the same ones, is judged in ``critical_rank``.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ddp_ladder.common.formats import count
from ddp_ladder.common.messages import leave_out
from ddp_ladder.nodes.critical_rank import StepParts
from ddp_ladder.nodes.usage import GpuUsage, NodeUsage, RankUse, UsageFinding
from ddp_ladder.plan.plan import Asked

NAMED = 3  # GPUs, or nodes, that a finding names
MUCH_WAIT = 0.1  # of the step time: a wait that explains an idle GPU, or full CPUs
LEAST_BUSY = 0.8  # centres ask for at least this in applications for large partitions
MUCH_THROTTLED = 0.05  # of the samples: a single one of a minute may be chance
THROTTLES = ("thermal", "hw_slowdown", "hw_power_brake")  # no GPU that is cooled and supplied well has them
FULL, EMPTY = 0.95, 0.5  # of the memory: a little more ends the run; twice the batch may fit
ALLOCATED = 0.85  # of the memory: below, a full memory is torch's cache, which it frees when it needs it
FILLED_BY_ESTIMATE = 0.9  # of the memory
BATCH_MULTIPLE = 8  # sizes that tensor cores like
GIB = 2**30
FULL_CPUS = 0.95  # of the CPUs that the run may use, on average
BUSY_CPUS = 0.9  # threads beyond the cores cost time only where the cores are busy
MUCH_OF_OTHERS = 0.2  # of the CPUs, by processes that are not the training's: then its threads do not fill them
MORE_THREADS = 1.2  # times the cores: a few more, such as those of idle workers, do no harm
FULL_LINK = 0.8  # of the link's rate, on average: headers and pauses between steps leave no more
LONGER_WORK = 0.2  # of a step: ranks that do the same work differ by less, also on a machine with other load
LEAST_DIFFERENCE_S = 0.001  # below, the difference is that of a thread that the kernel woke later
SLOWER_CLOCK = 0.95  # of the peers' clock: GPUs of one model differ by less
OTHER_LOAD = 0.1  # of the CPUs, more than at the peers: other processes than the training
LONGER_PART = 0.1  # of a step: a part of it that explains the difference

On = tuple[NodeUsage, GpuUsage]


@dataclass(frozen=True)
class RunUse:
    """A run, and how its ranks trained. Fractions are of the step time; None: not known.

    nodes: those with enough samples of the measured training. simulated: several agents share one machine.
    batch_is_share: batch_per_gpu is not the key's value, but a part of it (strong scaling). gpus_per_node: of the
    scale. threads_per_rank: that the ladder sets. asked: by the job, on each node.
    """

    nodes: tuple[NodeUsage, ...]
    ranks: tuple[RankUse, ...]
    simulated: bool
    on_gpus: bool
    batch_per_gpu: int
    batch_is_share: bool
    gpus_per_node: int
    threads_per_rank: int
    asked: Asked | None = None
    data_wait_fraction: float | None = None
    exposed_comm_fraction: float | None = None
    step: StepParts | None = None

    @property
    def gpus(self) -> tuple[On, ...]:
        """Return the GPUs that ranks trained on, with their nodes."""
        return tuple((node, gpu) for node in self.nodes for gpu in node.used_gpus)

    @property
    def wait(self) -> float:
        """Return the part of the step time that the ranks waited for data."""
        return self.data_wait_fraction or 0.0

    @property
    def uses_slurm(self) -> bool:
        return self.asked is None or self.asked.slurm

    def ranks_of(self, node: NodeUsage) -> tuple[RankUse, ...]:
        return tuple(rank for rank in self.ranks if rank.node_rank == node.node_rank)


def findings(run: RunUse) -> tuple[UsageFinding, ...]:
    """Return the findings on a run, the most telling first."""
    found = [*_other_processes(run), *_slow_nodes(run), *_idle(run), *_throttled(run), *_memory_full(run)]
    found += _memory_empty(run)
    if not run.simulated:  # agents on one machine share its CPUs, which says nothing
        found += [*_cpus_full(run), *_threads(run)]
    return (*found, *_network(run))


def _on_gpus(run: RunUse, some: Sequence[On]) -> dict[str, Any]:
    """Return the place of a finding on these GPUs, by the fields of a finding."""
    if len(some) == len(run.gpus) > 1:
        place = _all(len(some), "GPUs")
    else:
        place = _listed([f"GPU {gpu.index} of {node.node}" for node, gpu in some])
    gpu = some[0][1].index if len(some) == 1 else None
    return {"place": place, "node": _one([node.node for node, _ in some]), "gpu": gpu}


def _on_nodes(run: RunUse, some: Sequence[NodeUsage]) -> dict[str, Any]:
    """Return the place of a finding on these nodes, by the fields of a finding."""
    every = len(some) == len(run.nodes)
    names = [node.node for node in some]
    place = _all(len(some), "nodes") if every and len(some) > 1 and not run.simulated else _listed(names)
    return {"place": place, "node": _one(names), "everywhere": every}


def _all(number: int, what: str) -> str:
    return f"both {what}" if number == 2 else f"all {number} {what}"


def _listed(names: Sequence[str]) -> str:
    """Return the first names, and how many more there are."""
    names = [*dict.fromkeys(names)]
    rest = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {rest} more" if rest > 0 else "")


def _one(names: Sequence[str]) -> str | None:
    """Return the name if all are the same."""
    return names[0] if len({*names}) == 1 else None


def _shares(fractions: Sequence[float]) -> str:
    """Return ``43 %``, or ``43 to 51 %``."""
    low, high = f"{100 * min(fractions):.0f}", f"{100 * max(fractions):.0f}"
    return f"{low} %" if low == high else f"{low} to {high} %"


def _idle(run: RunUse) -> Iterator[UsageFinding]:
    idle = [on for on in run.gpus if on[1].busy_fraction is not None and on[1].busy_fraction < LEAST_BUSY]
    if not idle:
        return
    exposed = run.exposed_comm_fraction or 0.0
    if run.wait >= MUCH_WAIT:
        why = f"the ranks waited for data {_shares([run.wait])} of the step time"
        advice = (
            "give the script more loader workers (workload.args), and node.cpus in cluster.yaml for them, or put "
            "workload.data_dir on faster storage"
        )
    elif exposed >= MUCH_WAIT:
        why = f"communication that the backward pass did not hide took {_shares([exposed])} of the step time"
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
    yield UsageFinding(
        kind="GPU idle",
        **_on_gpus(run, idle),
        measured=f"busy {_shares([gpu.busy_fraction or 0.0 for _, gpu in idle])} of the measured time; {why}",
        wanted=f"busy at least {LEAST_BUSY:.0%}",
        next=advice,
        everywhere=len(idle) == len(run.gpus),
    )


def _throttled(run: RunUse) -> Iterator[UsageFinding]:
    def worst(gpu: GpuUsage) -> float:
        return max((gpu.throttled or {}).get(reason, 0.0) for reason in THROTTLES)

    found = [on for on in run.gpus if worst(on[1]) >= MUCH_THROTTLED]
    if not found:
        return
    gpus = [gpu for _, gpu in found]
    reasons = _listed([reason for gpu in gpus for reason in gpu.throttled or () if reason in THROTTLES])
    heat = max((gpu.temperature_c for gpu in gpus if gpu.temperature_c is not None), default=None)
    hot = f", up to {heat:.0f} C" if heat is not None else ""
    nodes = [node.node for node, _ in found]
    yield UsageFinding(
        kind="GPU throttled",
        **_on_gpus(run, found),
        measured=f"throttled in {_shares([worst(gpu) for gpu in gpus])} of the samples ({reasons}{hot})"
        f"{_clock_in_words(found, run)}",
        wanted="no throttling by heat or power supply",
        next=f"report {_listed(nodes)} to the site, whose cooling or power supply is at fault; until then "
        f"{leave_out(*nodes)}",
    )


def _clock_in_words(found: Sequence[On], run: RunUse) -> str:
    """Return the SM clock of these GPUs, beside that of the others of the same model, or the highest."""
    gpus = [gpu for _, gpu in found]
    own = _median(gpus, lambda gpu: gpu.sm_clock_mhz)
    if own is None:
        return ""
    models = {gpu.name for gpu in gpus}
    others = [on[1] for on in run.gpus if on not in found and on[1].name in models]
    peers = _median(others, lambda gpu: gpu.sm_clock_mhz)
    if peers is not None:
        return f"; SM clock {own:.0f} MHz, {peers:.0f} MHz on the other GPUs"
    highest = max((gpu.max_sm_clock_mhz or 0 for gpu in gpus), default=0)
    return f"; SM clock {own:.0f} of {highest} MHz" if highest else f"; SM clock {own:.0f} MHz"


def _median(gpus: Sequence[GpuUsage], figure: Callable[[GpuUsage], float | None]) -> float | None:
    known = [value for gpu in gpus if (value := figure(gpu)) is not None]
    return statistics.median(known) if known else None


def _filled(gpu: GpuUsage) -> float:
    """Return the part of the memory that was used; 0 if it is not known."""
    return (gpu.memory_used_bytes or 0) / gpu.memory_bytes if gpu.memory_bytes else 0.0


def _memory_full(run: RunUse) -> Iterator[UsageFinding]:
    def is_cache(gpu: GpuUsage) -> bool:
        allocated = next((rank.peak_gpu_memory_bytes for rank in run.ranks if rank.rank == gpu.rank), None)
        return allocated is not None and allocated < ALLOCATED * (gpu.memory_bytes or 0)

    full = [on for on in run.gpus if _filled(on[1]) > FULL and not is_cache(on[1])]
    if not full:
        return
    used, total = full[0][1].memory_used_bytes or 0, full[0][1].memory_bytes or 0
    now = "each GPU's share of it is" if run.batch_is_share else "now"
    yield UsageFinding(
        kind="GPU memory full",
        **_on_gpus(run, full),
        measured=f"memory nearly full, {used / GIB:.1f} of {total / GIB:.1f} GiB "
        f"({_shares([_filled(gpu) for _, gpu in full])})",
        wanted=f"at most {FULL:.0%}",
        next=f"lower workload.batch_per_gpu ({now} {run.batch_per_gpu}) a little: a longer sample, or a fragmented "
        "memory, ends the run with CUDA out of memory",
        everywhere=len(full) == len(run.gpus),
    )


def _memory_empty(run: RunUse) -> Iterator[UsageFinding]:
    known = [on for on in run.gpus if on[1].memory_used_bytes is not None and on[1].memory_bytes]
    # A share of the batch may leave memory empty: it is the first scale that has to fit the whole.
    if not known or run.batch_is_share:
        return
    fullest = max(known, key=lambda on: _filled(on[1]))
    gpu, most = fullest[1], _filled(fullest[1])
    if not 0 < most < EMPTY:
        return
    fits = int(run.batch_per_gpu * FILLED_BY_ESTIMATE / most) // BATCH_MULTIPLE * BATCH_MULTIPLE
    used, total = gpu.memory_used_bytes or 0, gpu.memory_bytes or 0
    where = "the GPU uses" if len(known) == 1 else "no GPU uses more than"
    yield UsageFinding(
        kind="GPU memory empty",
        measured=f"{where} {used / GIB:.1f} of its {total / GIB:.1f} GiB of memory ({_shares([most])}): the batch "
        "could grow",
        wanted=f"at least {EMPTY:.0%}",
        node=fullest[0].node if len(known) == 1 else None,
        gpu=gpu.index if len(known) == 1 else None,
        next=f"raise workload.batch_per_gpu (now {run.batch_per_gpu}): {max(fits, run.batch_per_gpu + 1)} should fit, "
        "even if all of the memory grew with the batch",
        everywhere=True,
    )


def _other_processes(run: RunUse) -> Iterator[UsageFinding]:
    """Yield the nodes whose CPUs other processes used, where the training lacked them.

    A training on GPUs lacks them if its ranks waited for data, or its threads for a core.
    """
    felt = not run.on_gpus or run.wait >= MUCH_WAIT
    found = [
        node
        for node in run.nodes
        if _is_shared(node, run) and (_is_crowded(node, run) or (felt and (node.cpu_fraction or 0.0) >= FULL_CPUS))
    ]
    if not found:
        return
    worst = max(found, key=lambda node: _cores_of_others(node, run))
    waited = f"; the ranks waited for data {_shares([run.wait])} of the step time" if run.wait >= MUCH_WAIT else ""
    on = "" if len({node.node for node in found}) == 1 else f" on {worst.node}"
    alone = (
        "ask for whole nodes (slurm.extra: [--exclusive] in cluster.yaml)"
        if run.uses_slurm
        else "end the other processes of this machine"
    )
    yield UsageFinding(
        kind="other processes",
        **_on_nodes(run, found),
        measured=f"other processes than the training used {_cores_of_others(worst, run):.1f} of the {worst.cpus} CPUs "
        f"of the run{on}, the training {_cores_of_training(worst, run):.2g}{waited}",
        wanted=f"at most {MUCH_OF_OTHERS:.0%} of the CPUs",
        next=f"{alone}, and delete the directories of these runs below results/runs, so that the next start measures "
        "them again",
    )


def _is_shared(node: NodeUsage, run: RunUse) -> bool:
    """Return True if much of a node's CPUs was used by other processes than the training."""
    return _cores_of_others(node, run) > MUCH_OF_OTHERS * node.cpus


def _cores_of_training(node: NodeUsage, run: RunUse) -> float:
    """Return the cores that the training used on a node's machine: on one that is several nodes, all agents'."""
    return sum(each.training_cpu_cores or 0.0 for each in (run.nodes if run.simulated else (node,)))


def _cores_of_others(node: NodeUsage, run: RunUse) -> float:
    """Return how many of the run's CPUs were busy with other processes than the training's; 0 if it is not known."""
    if node.cpu_fraction is None or node.training_cpu_cores is None:
        return 0.0
    return max(0.0, node.cpu_fraction * node.cpus - _cores_of_training(node, run))


def _cpus_full(run: RunUse) -> Iterator[UsageFinding]:
    workers = max((rank.workers or 0 for rank in run.ranks), default=0)
    full = [node for node in run.nodes if (node.cpu_fraction or 0.0) >= FULL_CPUS and not _is_shared(node, run)]
    if not workers or run.wait < MUCH_WAIT or not full:
        return
    more = "raise node.cpus in cluster.yaml, or " if run.uses_slurm else ""
    busy = _shares([node.cpu_fraction or 0.0 for node in full])
    yield UsageFinding(
        kind="CPUs full",
        **_on_nodes(run, full),
        measured=f"the {full[0].cpus} CPUs of the run were {busy} busy, with {workers} loader workers per rank, and "
        f"the ranks still waited for data {_shares([run.wait])} of the step time",
        next=f"{more}make a sample cheaper to load: smaller files, decoding and augmentation on the GPU",
    )


def _threads(run: RunUse) -> Iterator[UsageFinding]:
    """Yield the nodes with more threads that compute than CPUs: of torch on CPUs, and of loader workers."""
    crowded = [node for node in run.nodes if _is_crowded(node, run) and not _is_shared(node, run)]
    if not crowded:
        return
    first = crowded[0]
    ranks, workers, wanted = run.ranks_of(first), _workers(run, first), _runnable(run, first)
    parts = count(len(ranks), "rank") if run.on_gpus else f"{len(ranks)} x {ranks[0].threads} threads of torch"
    parts += f" and {workers} loader workers" if workers else ""
    asked = run.asked.cpus if run.asked and first.cpus < run.asked.cpus else None
    yield UsageFinding(
        kind="too many threads",
        **_on_nodes(run, crowded),
        measured=f"{wanted} threads that compute ({parts}) on {first.cpus} CPUs"
        f"{f' (asked for: {asked})' if asked else ''}, which were "
        f"{_shares([node.cpu_fraction or 0.0 for node in crowded])} busy",
        wanted="a CPU for each of them",
        next="; or ".join(_fewer_threads(run, first, would_do=asked is not None and wanted <= MORE_THREADS * asked)),
    )


def _fewer_threads(run: RunUse, node: NodeUsage, would_do: bool) -> Iterator[str]:
    """Yield ways to as many threads as CPUs. With node.cpus, torch's threads grow as well, which matters on CPUs.

    would_do: the CPUs that were asked for, of which the run may use fewer, would be enough.
    """
    ranks, workers = run.ranks_of(node), _workers(run, node)
    if would_do:
        yield (
            f"find out why the run may use {node.cpus} CPUs only: slurm.extra in cluster.yaml, taskset or numactl in "
            "the script"
            if run.uses_slurm
            else f"lower node.cpus in cluster.yaml to the {node.cpus} that can be used here, and node.gpus if it is "
            "larger"
        )
        return
    if not run.on_gpus and ((ranks[0].threads or 1) > run.threads_per_rank or not workers):
        usual = f"threads per rank: {run.threads_per_rank}"
        yield f"leave OMP_NUM_THREADS and torch.set_num_threads to the ladder ({usual})"
    if workers:
        yield "give the script fewer loader workers (workload.args)"
        if run.on_gpus and run.asked and run.asked.slurm and run.asked.node_gpus:
            wanted = math.ceil(_runnable(run, node) * run.asked.node_gpus / run.gpus_per_node)
            yield f"raise node.cpus in cluster.yaml to {wanted}, if the nodes have as many"


def _is_crowded(node: NodeUsage, run: RunUse) -> bool:
    return _runnable(run, node) > MORE_THREADS * node.cpus and (node.cpu_fraction or 0.0) >= BUSY_CPUS


def _runnable(run: RunUse, node: NodeUsage) -> int:
    """Return the threads that may want a core at once. On GPUs, those of torch's CPU operations mostly sleep."""
    return sum(1 if run.on_gpus else rank.threads or 1 for rank in run.ranks_of(node)) + _workers(run, node)


def _workers(run: RunUse, node: NodeUsage) -> int:
    return sum(rank.workers or 0 for rank in run.ranks_of(node))


def _network(run: RunUse) -> Iterator[UsageFinding]:
    for fabric in (False, True):
        found = [(node, *rates) for node in run.nodes if (rates := _link_rate(node, fabric))]
        full = [(node, used, link) for node, used, link in found if used >= FULL_LINK * link]
        if not full:
            continue
        node, used, link = full[0]
        name = "the InfiniBand or Slingshot ports" if fabric else node.interface
        yield UsageFinding(
            kind="network full",
            **_on_nodes(run, [node for node, _, _ in full]),
            measured=f"{name} carried {8 * used / 1e9:.3g} of {8 * link / 1e9:.3g} Gbit/s on average "
            f"({_shares([used / link for _, used, link in full])} of the link's rate)",
            wanted=f"less than {FULL_LINK:.0%}",
            next="raise workload.batch_per_gpu, so that gradients are exchanged less often; let the script compress "
            "them (torch's bf16_compress_hook); or set network.interface to a faster one",
        )


def _link_rate(node: NodeUsage, fabric: bool) -> tuple[float, float] | None:
    """Return the mean of the busier direction and the link's rate, bytes per second; None if one is not known."""
    if fabric:
        both, link = (node.fabric_received_bytes_per_s, node.fabric_sent_bytes_per_s), node.fabric_bytes_per_s
    else:
        both, link = (node.network_received_bytes_per_s, node.network_sent_bytes_per_s), node.interface_bytes_per_s
    known = [rate for rate in both if rate is not None]
    return (max(known), link) if known and link else None


def _slow_nodes(run: RunUse) -> Iterator[UsageFinding]:
    """Yield a finding for each node, or GPU, whose ranks the others wait for; agents on one machine are no nodes."""
    step = run.step
    if run.simulated or step is None or step.imbalance_kind != "persistent":
        return
    if step.imbalance_s < max(LONGER_WORK * step.step_s, LEAST_DIFFERENCE_S):
        return
    slow = [rank for rank in run.ranks if rank.rank in step.slow_ranks]
    for node in run.nodes:
        here = [rank for rank in slow if rank.node_rank == node.node_rank]
        others = [each for each in run.nodes if each is not node]
        if here and len(here) == len(run.ranks_of(node)) and others:
            peers = [gpu for other in others for gpu in other.used_gpus]
            why = [*_slower_clock(node.used_gpus, peers), *_other_load(node, others, run), *_longer_parts(step)]
            yield _slow(step, node, None, here, why)
            continue
        for rank in here:
            gpu = next((gpu for gpu in node.used_gpus if gpu.rank == rank.rank), None)
            if gpu is not None or others:  # ranks on the CPUs of one node share them in any way
                peers = [other for _, other in run.gpus if other is not gpu]
                why = [*(_slower_clock([gpu], peers) if gpu else []), *_longer_parts(step)]
                yield _slow(step, node, gpu, [rank], why)


def _slow(
    step: StepParts, node: NodeUsage, gpu: GpuUsage | None, slow: Sequence[RankUse], why: Sequence[str]
) -> UsageFinding:
    own_s = step.step_s - (step.exposed_comm_s or 0.0)
    ranks = ", ".join(str(rank.rank) for rank in slow[:3]) + (", ..." if len(slow) > 3 else "")
    if step.imbalance_compute_s is None or step.imbalance_data_s is None:
        unexplained = "its samples do not show why"
    else:
        unexplained = (
            "neither the forward and backward pass nor the wait for data is longer: the script does something else"
        )
    return UsageFinding(
        kind="slow node",
        place=f"GPU {gpu.index} of {node.node}" if gpu is not None else node.node,
        measured=f"slower than its peers, which wait for it in each step: its work takes {1000 * own_s:.3g} ms, theirs "
        f"{1000 * (own_s - step.imbalance_s):.3g} ms (rank{'s' if len(slow) > 1 else ''} {ranks}); "
        f"{'; '.join(why) or unexplained}",
        node=node.node,
        gpu=gpu.index if gpu is not None else None,
        next=f"{leave_out(node.node)}, measure again, and report it to the site if that is "
        "faster; else look for what the script does on this rank alone",
    )


def _slower_clock(own: Sequence[GpuUsage], peers: Sequence[GpuUsage]) -> list[str]:
    here, there = _median(own, lambda gpu: gpu.sm_clock_mhz), _median(peers, lambda gpu: gpu.sm_clock_mhz)
    if here is None or there is None or here >= SLOWER_CLOCK * there:
        return []
    reasons = dict.fromkeys(reason for gpu in own for reason in gpu.throttled or ())
    because = f" ({', '.join(reasons)})" if reasons else ""
    return [f"SM clock {here:.0f} MHz{because}, {there:.0f} MHz elsewhere"]


def _other_load(node: NodeUsage, others: Sequence[NodeUsage], run: RunUse) -> list[str]:
    """Return the CPUs that processes other than the training used, if they are more than on the other nodes."""
    known = [each for each in (node, *others) if each.cpu_fraction is not None and each.training_cpu_cores is not None]
    if node not in known or len(known) < 2:
        return []
    here = _cores_of_others(node, run)
    there = statistics.median(_cores_of_others(each, run) for each in known if each is not node)
    if here - there < OTHER_LOAD * node.cpus:
        return []
    return [f"other processes used {here:.1f} of its {node.cpus} CPUs, {there:.1f} elsewhere"]


def _longer_parts(step: StepParts) -> list[str]:
    """Return the parts of a step that take longer on the slow ranks."""
    parts = {"forward and backward pass": step.imbalance_compute_s, "wait for data": step.imbalance_data_s}
    return [
        f"{name} {1000 * longer_s:.3g} ms longer than elsewhere"
        for name, longer_s in parts.items()
        if longer_s is not None and longer_s >= LONGER_PART * step.step_s
    ]
