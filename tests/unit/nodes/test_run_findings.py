"""Findings: each with a run that has it and with one that has not. Samples are text as the monitor writes it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from ddp_ladder.common.findings import Finding
from ddp_ladder.nodes.critical_rank import LoaderSpeeds, RankSteps, StepParts, step_parts
from ddp_ladder.nodes.findings import RunUse, findings
from ddp_ladder.nodes.usage import RankUse, gpus_of_ranks, node_usage
from make_usage import make_monitor_file, make_samples, make_timeline

CALM_RANK: Mapping[str, Any] = {"workers": 6}
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
    return step_parts(steps, columns[0].max(axis=0), np.ones(8, bool), nodes, LoaderSpeeds(False, ()))


def _rank(rank: int, per_node: int, on_gpus: bool) -> dict[str, Any]:
    gpu = f"{4 * (rank // per_node) + rank % per_node}" if on_gpus else None
    return {**CALM_RANK, "gpu": gpu}


def only(run: RunUse) -> Finding:
    found = findings(run)
    assert len(found) == 1, [each.in_words for each in found]
    return found[0]


FULL_CPUS = {"cpu_fraction": 0.99, "training_cpu_cores": 15.8}
OTHERS = {"cpu_fraction": 1.0, "training_cpu_cores": 3.0}
IDLE = {k: {"gpu0_busy_fraction": 0.5, "gpu1_busy_fraction": 0.4} for k in range(2)}
# Names and clocks are those of NVML and of an A100; no GPU here throttles.
THROTTLED = {
    "gpu1_throttle_reasons": ["thermal" if k % 2 else "none" for k in range(60)],
    "gpu1_temperature_c": [83 + k % 5 for k in range(60)],
    "gpu1_sm_clock_mhz": 1065,
}
FULL_LINK = {"network_sent_bytes_per_s": 11e9}
SLOW = {"compute_s": 0.48, "comm_s": 0.01}
WAITING = {"compute_s": 0.3, "comm_s": 0.19}
UNTIMED = {"compute_s": None, "comm_s": None}

# Nodes and GPUs per node, what is changed, the finding's kind and place, and parts of its words and its advice.
FOUND: dict[str, tuple[tuple[int, int], dict[str, Any], tuple[str, str], str, str]] = {
    "idle for data": (
        (2, 2), {"samples": {1: {"gpu0_busy_fraction": 0.52}}, "data_wait_fraction": 0.41},
        ("GPU idle", "GPU 0 of node1"),
        "GPU 0 of node1: busy 52 % of the measured time; the ranks waited for data 41 % of the step", "workload.args",
    ),
    "idle for gradients": (
        (2, 2), {"samples": IDLE, "exposed_comm_fraction": 0.3}, ("GPU idle", ""),
        "all 4 GPUs: busy 40 to 50 % of the measured time; communication", "network.interface",
    ),
    "idle for the host": (
        (2, 2), {"samples": IDLE}, ("GPU idle", ""), "launches work too slowly", "torch.compile",
    ),
    "throttled": (
        (2, 2), {"samples": {1: THROTTLED}}, ("GPU throttled", "GPU 1 of node1"),
        "GPU 1 of node1: throttled in 50 % of the samples (thermal, up to 87 C)",
        "slurm.exclude: node1",
    ),
    "CPUs full": (
        (1, 1), {"samples": {0: FULL_CPUS}, "data_wait_fraction": 0.25}, ("CPUs full", ""),
        "node0: the 16 CPUs of the run were 99 % busy, with 6 loader workers per rank, and the ranks still waited for "
        "data 25 % of the step time", "make a sample cheaper",
    ),
    "other processes": (
        (1, 0), {"samples": {0: OTHERS}}, ("other processes", ""),
        "node0: other processes than the training used 13.0 of the 16 CPUs of the run, the training 3",
        "ask for whole nodes (slurm.extra: [--exclusive] in cluster.yaml)",
    ),
    "more threads than CPUs": (
        (1, 0), {"ranks": {0: {"threads": 64}}}, ("too many threads", ""),
        "node0: 1 rank and 64 threads of torch together on 16 CPUs", "use 16 threads per rank: remove",
    ),
    "threads of simulated nodes": (
        (2, 0), {"ranks": {k: {"threads": 12} for k in (0, 1)}, "simulated": True}, ("too many threads", ""),
        "2 ranks and 24 threads of torch together on 16 CPUs", "8 threads per rank",
    ),
    "a full link": (
        (2, 2), {"samples": {0: FULL_LINK, 1: FULL_LINK}}, ("network full", ""),
        "all 2 nodes: ib0 carried 88 of 100 Gbit/s on average (88 % of the link's rate)", "network.interface",
    ),
    "a full fabric": (
        (2, 2),
        {
            "about": {0: {"fabrics": ({"name": "mlx5_0:1", "bits_per_s": 200_000_000_000},)}},
            "samples": {0: {"fabric_received_bytes_per_s": 22e9}},
        },
        ("network full", "node0"), "InfiniBand or Slingshot ports carried 176 of 200 Gbit/s", "",
    ),
    "a slow node": (
        (2, 2),
        {
            "steps": {0: WAITING, 1: WAITING, 2: SLOW, 3: {**SLOW, "comm_s": 0.011}},
            "samples": {1: {"gpu0_sm_clock_mhz": 900, "gpu1_sm_clock_mhz": 900, "gpu0_busy_fraction": 0.99}},
        },
        ("slow node", "node1"), "SM clock 900 MHz, 1410 MHz elsewhere", "slurm.exclude: node1",
    ),
    "a slow GPU": (
        (1, 4), {"steps": {0: WAITING, 1: WAITING, 2: SLOW, 3: WAITING}}, ("slow node", "GPU 2 of node0"), "GPU 2 of",
        "look for what the script does on this rank alone; if that is nothing, report this GPU to the site",
    ),
}  # fmt: skip

NOT_FOUND: dict[str, tuple[tuple[int, int], dict[str, Any]]] = {
    **{f"a clean run on {nodes}x{gpus}": ((nodes, gpus), {}) for nodes, gpus in ((1, 1), (1, 4), (2, 2), (2, 0))},
    "a GPU that no rank uses": (
        (1, 2),
        {"ranks": {1: {"gpu": "0"}}, "samples": {0: {"gpu1_busy_fraction": 0.0, "gpu1_memory_used_bytes": 0}}},
    ),
    "a single throttled sample": (
        (2, 2), {"samples": {1: {"gpu1_throttle_reasons": ["thermal" if k == 30 else "none" for k in range(60)]}}},
    ),
    "CPUs full, no wait": ((1, 1), {"samples": {0: FULL_CPUS}}),
    "CPUs full, no workers": (
        (1, 1), {"samples": {0: FULL_CPUS}, "data_wait_fraction": 0.25, "ranks": {0: {"workers": 0}}},
    ),
    "CPUs full, simulated": ((1, 1), {"samples": {0: FULL_CPUS}, "data_wait_fraction": 0.25, "simulated": True}),
    "others beside a GPU that has all it needs": ((1, 1), {"samples": {0: OTHERS}}),
    "simulated nodes are not each other's others": (
        (2, 0),
        {"samples": {k: {"cpu_fraction": 1.0, "training_cpu_cores": 7.5} for k in (0, 1)}, "simulated": True},
    ),
    "threads that wait for a GPU": ((1, 1), {"ranks": {0: {"threads": 64}}}),
    "threads that nobody counted": ((2, 0), {"ranks": {0: {"threads": 64}}, "simulated": True}),
    "a link of unknown rate": ((2, 2), {"samples": {0: FULL_LINK}, "about": {0: {"interface_bits_per_s": None}}}),
    "simulated nodes are none": ((2, 0), {"steps": {0: WAITING, 1: SLOW}, "simulated": True}),
    "what one rank does outside of its passes": ((2, 0), {"steps": {0: {**WAITING, "comm_s": 0.01}, 1: WAITING}}),
    "steps that differ by noise": ((2, 0), {"steps": {0: {"comm_s": 0.1}, 1: {"comm_s": 0.06}}}),
    "steps that differ by half a ms": (
        (2, 0), {"steps": {k: {**SLOW, "comm_s": 0.0005 * k, "step_s": 0.002} for k in range(2)}},
    ),
    "a load that the ranks do not feel": ((2, 0), {"samples": {1: {"cpu_fraction": 0.9}}}),
}  # fmt: skip


def test_gpus_that_wait_for_a_slow_rank_are_not_idle_for_the_host() -> None:
    steps = {0: {"compute_s": 0.3, "comm_s": 0.19}, 1: {"compute_s": 0.45, "comm_s": 0.04}}
    slow, idle = findings(run_use(1, 2, samples=IDLE, steps=steps))
    assert (slow.place, idle.kind) == ("GPU 1 of node0", "GPU idle")
    assert "most ranks waited for slower ones 30 % of the step time" in idle.measured
    assert idle.next.startswith("even out the ranks' work")


@pytest.mark.parametrize("name", FOUND)
def test_what_is_found(name: str) -> None:
    shape, changes, place, words, advice = FOUND[name]
    found = only(run_use(*shape, **changes))
    assert (found.kind, found.place) == place
    assert words in found.in_words
    assert advice in found.next
    assert found.severity == "warning"


@pytest.mark.parametrize("name", NOT_FOUND)
def test_what_is_no_finding(name: str) -> None:
    shape, changes = NOT_FOUND[name]
    assert findings(run_use(*shape, **changes)) == ()


@pytest.mark.parametrize("name", ["idle for gradients", "idle for the host", "a full link", "a full fabric"])
def test_advice_on_the_batch_holds_with_accumulation_too(name: str) -> None:
    """With a global batch, a larger batch per GPU makes batches fewer, and exchanges of gradients no rarer."""
    shape, changes, *_ = FOUND[name]
    assert only(run_use(*shape, **changes)).next.startswith("raise workload.batch_per_gpu")
    advice = only(run_use(*shape, **changes, accumulates=True)).next
    fewer = "raise workload.batch_per_gpu (fewer batches are then accumulated); "
    assert advice.startswith(fewer if name == "idle for the host" else "raise workload.global_batch, so that ")


def test_gpus_whose_uuid_torch_does_not_tell_are_those_of_the_local_ranks() -> None:
    ranks = tuple(RankUse(k, k % 2, k // 2, gpu=f"node{k // 2}:0,1:{k % 2}") for k in range(4))
    assert {gpu: rank.rank for gpu, rank in gpus_of_ranks(make_monitor_file(1, 2), ranks).items()} == {0: 2, 1: 3}


class Ranks(tuple[RankUse, ...]):
    """Ranks that count how often someone goes through all of them."""

    passes = 0

    def __iter__(self) -> Iterator[RankUse]:
        Ranks.passes += 1
        return super().__iter__()


def test_the_ranks_of_a_node_are_found_without_a_look_at_all_ranks() -> None:
    nodes = 40
    run = run_use(nodes, 2, samples={k: {"cpu_fraction": 0.99} for k in range(nodes)}, on_gpus=False)
    many = replace(run, ranks=Ranks(run.ranks), alone_cores=1.0)
    assert [each.kind for each in findings(many)] == [each.kind for each in findings(replace(run, alone_cores=1.0))]
    assert 0 < Ranks.passes < 10
