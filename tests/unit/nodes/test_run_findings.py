"""Findings: each with a run that has it and with one that has not. Samples are text as the monitor writes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from ddp_ladder.nodes.critical_rank import Loaders, RankSteps, StepParts, step_parts
from ddp_ladder.nodes.findings import RunUse, findings
from ddp_ladder.nodes.usage import RankUse, UsageFinding, gpus_of_ranks, node_usage
from ddp_ladder.plan.asked import Asked
from make_usage import MIB, make_monitor_file, make_samples, make_timeline

CALM_RANK: Mapping[str, Any] = {
    "threads": 8,
    "workers": 6,
    "peak_gpu_memory_bytes": 55_000 * MIB,
}
CALM_STEP: Mapping[str, Any] = {"step_s": 0.5, "data_wait_s": 0.005, "compute_s": 0.45, "comm_s": 0.04}
OnNodes = Mapping[int, Mapping[str, Any]]
NONE: OnNodes = {}


def run_use(
    nodes: int = 2,
    gpus: int = 2,
    *,
    samples: OnNodes = NONE,
    ranks: OnNodes = NONE,
    steps: OnNodes | None = None,
    about: OnNodes = NONE,
    **changes: Any,
) -> RunUse:
    """Return a calm run. samples, about: changes by node. ranks: changes by rank; changes: fields of RunUse.

    steps: changes of a rank's steps, all of which are alike; None if the ranks did not time their steps.
    """
    on_gpus = gpus > 0
    per_node = max(1, gpus)
    every = tuple(
        RankUse(rank, rank % per_node, rank // per_node, **{**_rank(rank, per_node, on_gpus), **ranks.get(rank, {})})
        for rank in range(nodes * per_node)
    )
    read = [make_samples(make_monitor_file(k, gpus, **about.get(k, {})), **samples.get(k, {})) for k in range(nodes)]
    usual: dict[str, Any] = {
        "nodes": tuple(node_usage(each, make_timeline(), every) for each in read),
        "ranks": every,
        "simulated": False,
        "on_gpus": on_gpus,
        "batch_per_gpu": 64,
        "batch_is_share": False,
        "gpus_per_node": per_node,
        "threads_per_rank": 8,
        "data_wait_fraction": 0.01,
        "exposed_comm_fraction": 0.05,
        "step": None if steps is None else _step([{**CALM_STEP, **steps.get(rank.rank, {})} for rank in every], every),
    }
    return RunUse(**{**usual, **changes})


def _step(times: Sequence[Mapping[str, Any]], ranks: Sequence[RankUse]) -> StepParts:
    def column(key: str) -> Any:
        return None if times[0][key] is None else np.tile([[each[key]] for each in times], 8)

    columns = [column(key) for key in ("step_s", "data_wait_s", "compute_s", "comm_s")]
    overlap_s = None if columns[3] is None else 0 * columns[3]
    steps = RankSteps(*columns, overlap_s, on_gpus=False)
    nodes = [rank.node_rank for rank in ranks]
    return step_parts(steps, columns[0].max(axis=0), np.ones(8, bool), nodes, Loaders(False, ()))


def _rank(rank: int, per_node: int, on_gpus: bool) -> dict[str, Any]:
    gpu = f"{4 * (rank // per_node) + rank % per_node}" if on_gpus else None
    return {**CALM_RANK, "gpu": gpu}


def only(run: RunUse) -> UsageFinding:
    found = findings(run)
    assert len(found) == 1, [each.in_words for each in found]
    return found[0]


@pytest.mark.parametrize("shape", [(1, 1), (1, 4), (2, 2), (4, 1), (1, 0), (2, 0)])
def test_a_clean_run_has_no_finding(shape: tuple[int, int]) -> None:
    assert findings(run_use(*shape)) == ()


def test_idle_gpus_that_wait_for_data() -> None:
    found = only(run_use(samples={1: {"gpu0_busy_fraction": 0.52}}, data_wait_fraction=0.41))
    assert (found.kind, found.node, found.gpu) == ("GPU idle", "node1", 0)
    assert found.in_words == (
        "GPU 0 of node1: busy 52 % of the measured time; the ranks waited for data 41 % of the step time"
    )
    assert "workload.args" in found.next


def test_idle_gpus_that_wait_for_gradients_or_for_the_host() -> None:
    idle = {k: {"gpu0_busy_fraction": 0.5, "gpu1_busy_fraction": 0.4} for k in range(2)}
    found = only(run_use(samples=idle, exposed_comm_fraction=0.3))
    assert found.in_words.startswith("all 4 GPUs: busy 40 to 50 % of the measured time; communication")
    assert (found.node, found.gpu) == (None, None)
    assert "network.interface" in found.next
    assert "launches work too slowly" in only(run_use(samples=idle)).in_words


def test_what_all_have_is_told_from_what_some_have() -> None:
    alike = {k: {"gpu0_busy_fraction": 0.5, "network_sent_bytes_per_s": 11e9} for k in range(2)}
    assert [found.everywhere for found in findings(run_use(2, 1, samples=alike))] == [True, True]
    assert [found.everywhere for found in findings(run_use(2, 1, samples={0: alike[0]}))] == [False, False]
    hot = {"gpu0_throttle_reasons": "thermal"}
    assert not only(run_use(1, 1, samples={0: hot})).everywhere  # of that GPU alone, whatever the run has


def test_a_gpu_that_no_rank_uses_may_be_idle() -> None:
    run = run_use(1, 2, ranks={1: {"gpu": "0"}}, samples={0: {"gpu1_busy_fraction": 0.0, "gpu1_memory_used_bytes": 0}})
    assert findings(run) == ()


def test_a_throttled_gpu_of_genuine_values() -> None:
    """Names and clocks are those of NVML and of an A100; no GPU here throttles."""
    throttled = {
        "gpu1_throttle_reasons": ["thermal" if k % 2 else "none" for k in range(60)],
        "gpu1_temperature_c": [83 + k % 5 for k in range(60)],
        "gpu1_sm_clock_mhz": 1065,
    }
    found = only(run_use(samples={1: throttled}))
    assert (found.kind, found.node, found.gpu) == ("GPU throttled", "node1", 1)
    assert found.in_words == (
        "GPU 1 of node1: throttled in 50 % of the samples (thermal, up to 87 C); SM clock 1065 MHz, 1410 MHz on the "
        "other GPUs"
    )
    assert "slurm.exclude: node1" in found.next


def test_a_single_sample_of_throttling_is_chance() -> None:
    once = ["thermal" if k == 30 else "none" for k in range(60)]
    assert findings(run_use(samples={1: {"gpu1_throttle_reasons": once}})) == ()


def test_gpu_memory_that_is_nearly_full() -> None:
    full = {"gpu0_memory_used_bytes": 80_000 * MIB}
    allocated = {0: {"peak_gpu_memory_bytes": 78_000 * MIB}}
    found = only(run_use(1, 1, samples={0: full}, ranks=allocated))
    assert found.in_words == "GPU 0 of node0: memory nearly full, 78.1 of 80.0 GiB (98 %)"
    assert "workload.batch_per_gpu (now 64)" in found.next
    strong = only(run_use(1, 1, samples={0: full}, ranks=allocated, batch_is_share=True))
    assert "workload.batch_per_gpu (each GPU's share of it is 64)" in strong.next
    assert findings(run_use(1, 1, samples={0: full})) == ()  # most of it is torch's cache


def test_gpu_memory_that_is_mostly_empty() -> None:
    found = only(run_use(1, 1, samples={0: {"gpu0_memory_used_bytes": 16_384 * MIB}}))
    assert found.in_words == "the GPU uses 16.0 of its 80.0 GiB of memory (20 %): the batch could grow"
    assert "288 should fit" in found.next  # 64 x 0.9 / 0.2
    strong = run_use(1, 1, samples={0: {"gpu0_memory_used_bytes": 16_384 * MIB}}, batch_is_share=True)
    assert findings(strong) == ()  # the first scale has to fit the whole batch
    one_of_two = {"gpu0_memory_used_bytes": 16_384 * MIB}
    assert findings(run_use(1, 2, samples={0: one_of_two})) == ()


FULL_CPUS = {"cpu_fraction": 0.99, "training_cpu_cores": 15.8}


def test_cpus_that_loader_workers_fill() -> None:
    found = only(run_use(1, 1, samples={0: FULL_CPUS}, data_wait_fraction=0.25))
    assert found.kind == "CPUs full"
    assert found.in_words == (
        "node0: the 16 CPUs of the run were 99 % busy, with 6 loader workers per rank, and the ranks still waited for "
        "data 25 % of the step time"
    )
    assert found.next.startswith("raise node.cpus in cluster.yaml, or make a sample cheaper")
    assert "node.cpus" not in only(run_use(1, 1, samples={0: FULL_CPUS}, data_wait_fraction=0.25, asked=LOCAL)).next


OTHERS = {"cpu_fraction": 1.0, "training_cpu_cores": 3.0}


@pytest.mark.parametrize("changes", [{}, {"data_wait_fraction": 0.25}, {"ranks": {0: {"threads": 24}}}])
def test_cpus_that_other_processes_fill(changes: dict[str, Any]) -> None:
    found = only(run_use(1, 0, samples={0: OTHERS}, **changes))
    assert (found.kind, found.node) == ("other processes", "node0")
    assert found.in_words.startswith(
        "node0: other processes than the training used 13.0 of the 16 CPUs of the run, the training 3"
    )
    assert found.next.startswith("ask for whole nodes (slurm.extra: [--exclusive] in cluster.yaml)")
    local = only(run_use(1, 0, samples={0: OTHERS}, **changes, asked=LOCAL))
    assert local.next.startswith("end the other processes of this machine")


def test_a_busy_laptop_is_named_before_all_else() -> None:
    """Node CPU 100 %, the training 0.15 cores: it was told to compress its gradients."""
    busy = {"cpu_fraction": 1.0, "training_cpu_cores": 0.15}
    (first,) = findings(run_use(1, 0, samples={0: busy}, asked=LOCAL))
    assert (first.kind, first.everywhere) == ("other processes", True)
    assert "used 15.8 of the 16 CPUs of the run, the training 0.15" in first.in_words
    half_free = {"cpu_fraction": 0.6, "training_cpu_cores": 3.0}
    assert findings(run_use(1, 0, samples={0: half_free})) == ()
    assert findings(run_use(1, 1, samples={0: OTHERS})) == ()  # the GPU has all that it needs


@pytest.mark.parametrize(("cores", "found"), [(0.15, ["other processes"]), (7.5, [])])
def test_nodes_on_one_machine_are_not_the_other_processes_of_each_other(cores: float, found: list[str]) -> None:
    busy = {"cpu_fraction": 1.0, "training_cpu_cores": cores}
    used = findings(run_use(2, 0, samples={0: busy, 1: busy}, simulated=True))
    assert [each.kind for each in used] == found


LOCAL = Asked(slurm=False, cpus=16, memory_mb=8000, node_gpus=4)
SLURM = LOCAL.replace(slurm=True)


@pytest.mark.parametrize(
    "changes",
    [
        {"samples": {0: FULL_CPUS}},  # the ranks do not wait
        {"samples": {0: FULL_CPUS}, "data_wait_fraction": 0.25, "ranks": {0: {"workers": 0}}},  # no workers
        {"data_wait_fraction": 0.25},  # the cores are not full
        {"samples": {0: FULL_CPUS}, "data_wait_fraction": 0.25, "simulated": True},
    ],
)
def test_cpus_that_are_not_filled_by_loader_workers(changes: dict[str, Any]) -> None:
    assert findings(run_use(1, 1, **changes)) == ()


def test_more_threads_than_cores() -> None:
    busy = {"cpu_fraction": 0.97, "training_cpu_cores": 15.0}
    threads = {k: {"threads": 24, "workers": 0} for k in range(2)}
    found = only(run_use(2, 0, samples={1: busy}, ranks=threads))
    assert (found.kind, found.node) == ("too many threads", "node1")
    assert "24 threads that compute (1 x 24 threads of torch) on 16 CPUs, which were 97 % busy" in found.in_words
    assert findings(run_use(2, 0, ranks=threads)) == ()  # the cores are not busy
    assert findings(run_use(2, 1, samples={1: busy}, ranks=threads)) == ()  # on GPUs they sleep


BUSY = {"cpu_fraction": 0.97, "training_cpu_cores": 15.0}


def test_advice_on_too_many_threads_leads_to_fewer() -> None:
    """More node.cpus is more threads of torch: on CPUs it cannot help."""

    def advice(workers: int = 0, gpus: int = 0, **changes: Any) -> str:
        ranks = {0: {"threads": changes.pop("threads", 8), "workers": workers}}
        return only(run_use(1, gpus, samples={0: BUSY}, ranks=ranks, **changes)).next

    to_the_ladder = "leave OMP_NUM_THREADS and torch.set_num_threads to the ladder (threads per rank: 8)"
    assert advice(threads=24, asked=SLURM) == to_the_ladder
    fewer_workers = "give the script fewer loader workers (workload.args)"
    assert advice(14, asked=SLURM) == fewer_workers
    # The job has a fourth of the node: so much of node.cpus goes to 31 threads.
    more_cpus = "raise node.cpus in cluster.yaml to 124, if the nodes have as many"
    assert advice(30, 1, asked=SLURM) == f"{fewer_workers}; or {more_cpus}"
    assert advice(30, 1, asked=LOCAL) == fewer_workers  # the machine has no more CPUs


def test_fewer_cpus_than_were_asked_for() -> None:
    ranks = {0: {"threads": 24, "workers": 0}}
    asked = SLURM.replace(cpus=24)
    found = only(run_use(1, 0, samples={0: BUSY}, ranks=ranks, asked=asked))
    assert "24 threads that compute (1 x 24 threads of torch) on 16 CPUs (asked for: 24), which" in found.in_words
    assert found.next.startswith("find out why the run may use 16 CPUs only")
    local = only(run_use(1, 0, samples={0: BUSY}, ranks=ranks, asked=asked.replace(slurm=False)))
    assert local.next.startswith("lower node.cpus in cluster.yaml to the 16 that can be used here")


def test_gpus_whose_uuid_torch_does_not_tell_are_those_of_the_local_ranks() -> None:
    ranks = tuple(RankUse(k, k % 2, k // 2, gpu=f"node{k // 2}:0,1:{k % 2}") for k in range(4))
    assert {gpu: rank.rank for gpu, rank in gpus_of_ranks(make_monitor_file(1, 2), ranks).items()} == {0: 2, 1: 3}


SLOW = {"compute_s": 0.48, "comm_s": 0.01}
WAITING = {"compute_s": 0.3, "comm_s": 0.19}


def test_a_node_that_the_others_wait_for() -> None:
    steps = {0: WAITING, 1: WAITING, 2: SLOW, 3: {**SLOW, "comm_s": 0.011}}
    clocks = {"gpu0_sm_clock_mhz": 900, "gpu1_sm_clock_mhz": 900, "gpu0_busy_fraction": 0.99}
    found = only(run_use(steps=steps, samples={1: clocks}))
    assert (found.kind, found.node, found.gpu) == ("slow node", "node1", None)


def test_a_gpu_that_the_others_wait_for() -> None:
    found = only(run_use(1, 4, steps={0: WAITING, 1: WAITING, 2: SLOW, 3: WAITING}))
    assert (found.node, found.gpu) == ("node0", 2)


def test_another_load_explains_a_slow_node() -> None:
    found = only(run_use(3, 0, steps={0: WAITING, 1: SLOW, 2: WAITING}, samples={1: {"cpu_fraction": 0.7}}))
    assert found.in_words == (
        "node1: slower than its peers, which wait for it in each step: its work takes 490 ms, theirs 310 ms (rank 1); "
        "other processes used 6.2 of its 16 CPUs, 0.6 elsewhere; forward and backward pass 180 ms longer than elsewhere"
    )
    assert "slurm.exclude: node1" in found.next


def test_a_slow_node_whose_time_is_in_neither_part() -> None:
    same = {"compute_s": 0.3, "data_wait_s": 0.005}
    found = only(run_use(2, 0, steps={0: {**WAITING, **same}, 1: {**SLOW, **same}}))
    assert found.in_words.endswith("the script does something else")


def test_ranks_without_ddps_times_show_it_by_their_steps() -> None:
    unknown = {"compute_s": None, "comm_s": None}
    steps = {k: {**unknown, "step_s": 0.7 if k == 2 else 0.5} for k in range(3)}
    assert only(run_use(3, 0, steps=steps)).node == "node2"


@pytest.mark.parametrize(
    "changes",
    [
        {"steps": {0: WAITING, 1: SLOW}, "simulated": True},  # they share one machine
        {"steps": {0: {"comm_s": 0.1}, 1: {"comm_s": 0.06}}},  # no more than noise
        {"steps": {k: {**SLOW, "comm_s": 0.0005 * k, "step_s": 0.002} for k in range(2)}},  # half a ms
        {"steps": None},
        {"samples": {1: {"cpu_fraction": 0.9}}},  # a load that the ranks do not feel
    ],
    ids=["simulated", "noise", "short", "not timed", "not felt"],
)
def test_no_node_is_named_without_proof(changes: dict[str, Any]) -> None:
    assert findings(run_use(2, 0, **changes)) == ()


def test_ranks_on_the_cpus_of_one_node_are_no_peers() -> None:
    run = run_use(1, 0)
    ranks = (RankUse(0, 0, 0, **CALM_RANK), RankUse(1, 1, 0, **CALM_RANK))
    step = _step([{**CALM_STEP, **WAITING}, {**CALM_STEP, **SLOW}], ranks)
    assert step.imbalance_kind == "persistent"
    assert findings(replace(run, ranks=ranks, step=step)) == ()


def test_a_network_at_the_rate_of_its_link() -> None:
    found = only(run_use(samples={k: {"network_sent_bytes_per_s": 11e9} for k in range(2)}))
    assert found.kind == "network full"
    assert found.in_words == "both nodes: ib0 carried 88 of 100 Gbit/s on average (88 % of the link's rate)"
    assert "network.interface" in found.next
    unknown = {k: {"interface_bits_per_s": None} for k in range(2)}
    assert findings(run_use(samples={0: {"network_sent_bytes_per_s": 11e9}}, about=unknown)) == ()


def test_a_fabric_at_the_rate_of_its_ports() -> None:
    ports = {"fabrics": ({"name": "mlx5_0:1", "bits_per_s": 200_000_000_000},)}
    run = run_use(about={0: ports}, samples={0: {"fabric_received_bytes_per_s": 22e9}})
    assert "InfiniBand or Slingshot ports carried 176 of 200 Gbit/s" in only(run).in_words
