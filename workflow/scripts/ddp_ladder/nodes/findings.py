"""What is wrong with what a run used, and what to change: on its GPUs, its hosts, and the node that others wait for.

Pure. Which ranks hold up the others, and whether it is always the same ones, is judged in ``critical_rank``.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from ddp_ladder.common.findings import Finding, UsageKind
from ddp_ladder.common.formats import count, grouped, hostlist, in_short, rank_numbers
from ddp_ladder.common.messages import leave_out
from ddp_ladder.nodes.critical_rank import MORE_WORKERS, StepParts, against_waits, is_beside_passes
from ddp_ladder.nodes.usage import GpuUsage, NodeUsage, RankUse

MUCH_WAIT = 0.1  # of the step time: a wait that explains an idle GPU, or full CPUs
LEAST_BUSY = 0.8  # centres ask for at least this in applications for large partitions
MUCH_THROTTLED = 0.05  # of the samples: a single one of a minute may be chance
THROTTLES = ("thermal", "hw_slowdown", "hw_power_brake")  # no GPU that is cooled and supplied well has them
FULL_CPUS = 0.95  # of the CPUs that the run may use, on average
MUCH_OF_OTHERS = 0.2  # of the CPUs, by processes that are not the training's: then it does not fill them itself
FULL_LINK = 0.8  # of the link's rate, on average: headers and pauses between steps leave no more
LONGER_WORK = 0.2  # of a step: ranks that do the same work differ by less, also on a machine with other load
LEAST_DIFFERENCE_S = 0.001  # below, the difference is that of a thread that the kernel woke later
SLOWER_CLOCK = 0.95  # of the peers' clock: GPUs of one model differ by less

On = tuple[NodeUsage, GpuUsage]


@dataclass(frozen=True)
class RunUse:
    """A run, and how its ranks trained."""

    nodes: tuple[NodeUsage, ...]  # those with several samples of the measured training
    ranks: tuple[RankUse, ...]
    simulated: bool  # several agents share one machine
    on_gpus: bool
    accumulates: bool = False  # a global batch is set: a larger one per GPU means fewer batches between exchanges
    data_wait_fraction: float | None = None  # of the step time, as the next one; None: not known
    exposed_comm_fraction: float | None = None
    step: StepParts | None = None
    alone_cores: float | None = None  # that a rank used at the baseline's scale; None: not known

    @property
    def gpus(self) -> tuple[On, ...]:
        return tuple((node, gpu) for node in self.nodes for gpu in node.used_gpus)

    @property
    def batch_key(self) -> str:
        """Return the key that is raised for more samples in each exchange of gradients."""
        return "workload.global_batch" if self.accumulates else "workload.batch_per_gpu"

    @property
    def wait(self) -> float:
        """Return the part of the step time that the ranks waited for data."""
        return self.data_wait_fraction or 0.0

    @property
    def imbalance(self) -> float:
        """Return the part of the step time that the typical rank waited for the slowest one."""
        return (self.step.imbalance_s or 0.0) / self.step.step_s if self.step and self.step.step_s else 0.0

    @cached_property
    def _by_node(self) -> Mapping[int, Sequence[RankUse]]:
        return grouped((rank.node_rank, rank) for rank in self.ranks)

    def ranks_of(self, node: NodeUsage) -> Sequence[RankUse]:
        return self._by_node.get(node.node_rank, ())


def findings(run: RunUse) -> tuple[Finding, ...]:
    """Return the findings on a run, the most telling first."""
    judged = replace(run, nodes=tuple(node for node in run.nodes if node.is_enough))
    if not judged.nodes:
        return (*_throttled(run),)
    found = [*find_other_processes(judged), *_too_many_threads(judged), *_slow_nodes(judged), *_idle(judged)]
    found += _throttled(run)
    if not run.simulated:  # agents on one machine share its CPUs, which says nothing
        found += _cpus_full(judged)
    return (*found, *_network(judged))


def _found(
    kind: UsageKind, place: str, measured: str, next_step: str, wanted: str = "", *, everywhere: bool = False
) -> Finding:
    """Return a finding. everywhere: all nodes, or all GPUs, of the run have it: then it has no place of its own."""
    if everywhere:
        place, measured = "", f"{place}: {measured}"
    return Finding(kind=kind, severity="warning", place=place, measured=measured, wanted=wanted, next=next_step)


def _gpus(run: RunUse, some: Sequence[On]) -> str:
    """Return which GPUs these are."""
    of_nodes = grouped((node.node, gpu.index) for node, gpu in some)
    alike = grouped((tuple(gpus), node) for node, gpus in of_nodes.items())
    names = [f"GPU{'s' * (len(gpus) > 1)} {in_short(gpus, 99)} of {hostlist(on)}" for gpus, on in alike.items()]
    return f"all {len(some)} GPUs" if len(some) == len(run.gpus) > 1 else ", ".join(names)


def _nodes(run: RunUse, some: Sequence[NodeUsage]) -> str:
    """Return which nodes these are."""
    names = {node.node: None for node in some}
    return f"all {len(names)} nodes" if len(names) == len(run.nodes) > 1 else hostlist(names)


def _shares(fractions: Sequence[float]) -> str:
    """Return ``43 %``, or ``43 to 51 %``."""
    low, high = f"{100 * min(fractions):.0f}", f"{100 * max(fractions):.0f}"
    return f"{low} %" if low == high else f"{low} to {high} %"


def _idle(run: RunUse) -> Iterator[Finding]:
    idle = [on for on in run.gpus if on[1].busy_fraction is not None and on[1].busy_fraction < LEAST_BUSY]
    if not idle:
        return
    exposed = run.exposed_comm_fraction or 0.0
    if run.wait >= MUCH_WAIT:
        why = f"the ranks waited for data {_shares([run.wait])} of the step time"
        advice = against_waits(run.step.begin_wait_fraction if run.step else None)
        if advice == MORE_WORKERS:
            advice += ", and node.cpus in cluster.yaml for them, or put workload.data_dir on faster storage"
    elif exposed >= MUCH_WAIT:
        why = f"communication that the backward pass did not hide took {_shares([exposed])} of the step time"
        advice = (
            f"raise {run.batch_key}, so that each exchange of gradients serves more samples; see whether "
            "network.interface is the fastest one"
        )
    elif run.imbalance >= MUCH_WAIT:
        why = f"most ranks waited for slower ones {_shares([run.imbalance])} of the step time"
        advice = "even out the ranks' work, or leave out the slow node (the losses of this scale name the ranks)"
    else:
        why = "the ranks waited neither for data nor for gradients, so the host launches work too slowly"
        fewer = " (fewer batches are then accumulated)" if run.accumulates else ""
        advice = (
            f"raise workload.batch_per_gpu{fewer}; let the script compile its model (torch.compile), and read results "
            "from the GPU (.item(), .cpu()) less often"
        )
    yield _found(
        "GPU idle",
        _gpus(run, idle),
        f"busy {_shares([gpu.busy_fraction or 0.0 for _, gpu in idle])} of the measured time; {why}",
        advice,
        f"busy at least {LEAST_BUSY:.0%}",
        everywhere=len(idle) == len(run.gpus),
    )


def _throttled(run: RunUse) -> Iterator[Finding]:
    def worst(gpu: GpuUsage) -> float:
        return max((gpu.throttled or {}).get(reason, 0.0) for reason in THROTTLES)

    throttled = [on for on in run.gpus if worst(on[1]) >= (MUCH_THROTTLED if on[0].is_enough else 1.0)]
    if not throttled:
        return
    gpus = [gpu for _, gpu in throttled]
    reasons = dict.fromkeys(reason for gpu in gpus for reason in gpu.throttled or () if reason in THROTTLES)
    heat = max((gpu.temperature_c for gpu in gpus if gpu.temperature_c is not None), default=None)
    hot = f", up to {heat:.0f} C" if heat is not None else ""
    samples = "samples" if all(node.is_enough for node, _ in throttled) else "few samples"
    nodes = [*dict.fromkeys(node.node for node, _ in throttled)]
    yield _found(
        "GPU throttled",
        _gpus(run, throttled),
        f"throttled in {_shares([worst(gpu) for gpu in gpus])} of the {samples} ({', '.join(reasons)}{hot})",
        f"report {hostlist(nodes)} to the site, whose cooling or power supply is at fault"
        + ("" if {*nodes} == {node.node for node in run.nodes} else f"; until then {leave_out(*nodes)}"),
        "no throttling by heat or power supply",
    )


def find_other_processes(run: RunUse) -> Iterator[Finding]:
    """Yield nodes whose CPUs other processes used, where the training lacked them: on GPUs, if it waited for data."""
    felt = not run.on_gpus or run.wait >= MUCH_WAIT
    shared = [node for node in run.nodes if felt and _is_shared(node, run) and _lacks_cpus(node, run)]
    if not shared:
        return
    worst = max(shared, key=lambda node: _cores_of_others(node, run))
    waited = f"; the ranks waited for data {_shares([run.wait])} of the step time" if run.wait >= MUCH_WAIT else ""
    alone = "" if run.alone_cores is None else f", and each rank {run.alone_cores:.2g} at the baseline"
    on = "" if len({node.node for node in shared}) == 1 else f" on {worst.node}"
    yield _found(
        "other processes",
        _nodes(run, shared),
        f"other processes than the training used {_cores_of_others(worst, run):.1f} of the {worst.cpus} CPUs "
        f"of the run{on}, the training {_cores_of_training(worst, run):.2g}{alone}{waited}",
        "end them, or on Slurm ask for whole nodes (slurm.extra: [--exclusive] in cluster.yaml), and delete the "
        "directories of these runs, so that the next start measures them again",
        f"at most {MUCH_OF_OTHERS:.0%} of the CPUs",
        everywhere=len(shared) == len(run.nodes),
    )


def _too_many_threads(run: RunUse) -> Iterator[Finding]:
    """Yield nodes whose ranks compute with more threads than they have CPUs. Beside a GPU, these threads wait."""
    crowded = []
    for node in () if run.on_gpus else run.nodes:
        threads = [rank.threads for rank in (run.ranks if run.simulated else run.ranks_of(node))]
        known = [each for each in threads if each is not None]
        if len(known) == len(threads) and max(known, default=1) > 1 and sum(known) > node.cpus:
            crowded.append((node, known))
    if not crowded:
        return
    node, known = max(crowded, key=lambda each: sum(each[1]) / each[0].cpus)
    allowed = count(max(1, node.cpus // len(known)), "thread")
    yield _found(
        "too many threads",
        _nodes(run, [each for each, _ in crowded]),
        f"{count(len(known), 'rank')} and {sum(known)} threads of torch together on {count(node.cpus, 'CPU')}",
        f"let the script use {allowed} per rank: remove its torch.set_num_threads and "
        "OMP_NUM_THREADS of workload.env, in whose place the ladder sets node.cpus / node.gpus of cluster.yaml",
        f"at most {allowed} per rank",
        everywhere=len(crowded) == len(run.nodes),
    )


def _are_full(node: NodeUsage) -> bool:
    return (node.cpu_fraction or 0.0) >= FULL_CPUS


def _lacks_cpus(node: NodeUsage, run: RunUse) -> bool:
    """Return True if a node's CPUs are full, or too few for ranks that use what one used at the baseline's scale.

    A rank leaves its CPU idle while it waits for one that has none.
    """
    ranks = len(run.ranks if run.simulated else run.ranks_of(node))
    needed = 0.0 if run.alone_cores is None else ranks * run.alone_cores + _cores_of_others(node, run)
    return _are_full(node) or needed > node.cpus


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


def _cpus_full(run: RunUse) -> Iterator[Finding]:
    workers = max((rank.workers or 0 for rank in run.ranks), default=0)
    full = [node for node in run.nodes if _are_full(node) and not _is_shared(node, run)]
    if not workers or run.wait < MUCH_WAIT or not full:
        return
    busy = _shares([node.cpu_fraction or 0.0 for node in full])
    yield _found(
        "CPUs full",
        _nodes(run, full),
        f"the {full[0].cpus} CPUs of the run were {busy} busy, with {workers} loader workers per rank, and "
        f"the ranks still waited for data {_shares([run.wait])} of the step time",
        "raise node.cpus in cluster.yaml if the nodes have more, or make a sample cheaper to load: smaller files"
        + (", decoding and augmentation on the GPU" if run.on_gpus else ""),
        everywhere=len(full) == len(run.nodes),
    )


def _network(run: RunUse) -> Iterator[Finding]:
    for fabric in (False, True):
        known = [(node, *rates) for node in run.nodes if (rates := _link_rate(node, fabric))]
        full = [(node, used, link) for node, used, link in known if used >= FULL_LINK * link]
        if not full:
            continue
        node, used, link = full[0]
        name = "the InfiniBand or Slingshot ports" if fabric else node.interface
        yield _found(
            "network full",
            _nodes(run, [node for node, _, _ in full]),
            f"{name} carried {8 * used / 1e9:.3g} of {8 * link / 1e9:.3g} Gbit/s on average "
            f"({_shares([used / link for _, used, link in full])} of the link's rate)",
            f"raise {run.batch_key}, so that gradients are exchanged less often; let the script compress "
            "them (torch's bf16_compress_hook); or set network.interface to a faster one",
            f"less than {FULL_LINK:.0%}",
            everywhere=len(full) == len(run.nodes),
        )


def _link_rate(node: NodeUsage, fabric: bool) -> tuple[float, float] | None:
    """Return the mean of the busier direction and the link's rate, bytes per second; None if one is not known."""
    if fabric:
        both, link = (node.fabric_received_bytes_per_s, node.fabric_sent_bytes_per_s), node.fabric_bytes_per_s
    else:
        both, link = (node.network_received_bytes_per_s, node.network_sent_bytes_per_s), node.interface_bytes_per_s
    known = [rate for rate in both if rate is not None]
    return (max(known), link) if known and link else None


def _slow_nodes(run: RunUse) -> Iterator[Finding]:
    """Yield a finding for each node, or GPU, whose ranks the others wait for; agents on one machine are no nodes."""
    step = run.step
    if run.simulated or step is None or step.imbalance_kind != "persistent":
        return
    if step.imbalance_s < max(LONGER_WORK * step.step_s, LEAST_DIFFERENCE_S):
        return
    if is_beside_passes(step.imbalance_s, step.imbalance_data_s, step.imbalance_compute_s):
        return  # no fault of the node
    slow = [rank for rank in run.ranks if rank.rank in step.slow_ranks]
    for node in run.nodes:
        slow_here = [rank for rank in slow if rank.node_rank == node.node_rank]
        if slow_here and len(slow_here) == len(run.ranks_of(node)) and len(run.nodes) > 1:
            yield _slow(run, step, node, None, slow_here)
            continue
        for rank in slow_here:
            gpu = next((gpu for gpu in node.used_gpus if gpu.rank == rank.rank), None)
            if gpu is not None or len(run.nodes) > 1:  # ranks on the CPUs of one node share them in any way
                yield _slow(run, step, node, gpu, [rank])


def _slow(run: RunUse, step: StepParts, node: NodeUsage, gpu: GpuUsage | None, slow: Sequence[RankUse]) -> Finding:
    own_s = step.step_s - (step.exposed_comm_s or 0.0)
    own = (gpu,) if gpu is not None else node.used_gpus
    clock, peers = _sm_clock(own), _sm_clock(peer for _, peer in run.gpus if peer not in own)
    slower = f"; SM clock {clock:.0f} MHz, {peers:.0f} MHz elsewhere" if 0 < clock < SLOWER_CLOCK * peers else ""
    return _found(
        "slow node",
        f"GPU {gpu.index} of {node.node}" if gpu is not None else node.node,
        f"slower than its peers, which wait for it in each step: its work takes {1000 * own_s:.3g} ms, theirs "
        f"{1000 * (own_s - step.imbalance_s):.3g} ms ({rank_numbers([rank.rank for rank in slow])}){slower}",
        f"{leave_out(node.node)}, measure again, and report it to the site if that is faster; else look for what "
        "the script does on this rank alone"
        if len(run.nodes) > 1
        else "look for what the script does on this rank alone; if that is nothing, report this GPU to the site",
    )


def _sm_clock(gpus: Iterable[GpuUsage]) -> float:
    """Return the median in MHz; 0 if it is not known."""
    known = [gpu.sm_clock_mhz for gpu in gpus if gpu.sm_clock_mhz is not None]
    return statistics.median(known) if known else 0.0
