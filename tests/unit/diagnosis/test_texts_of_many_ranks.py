"""No text of a file of results grows with the ranks: made-up runs of 1,024 ranks in which all of them are wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from ddp_ladder.assembly.assemble import not_run, record_of
from ddp_ladder.common.findings import Finding
from ddp_ladder.common.formats import LONGEST_TEXT
from ddp_ladder.nodes.findings import RunUse, findings
from ddp_ladder.nodes.usage import RankUse, node_usage
from ddp_ladder.plan.plan import ScaleJob
from ddp_ladder.preflight.collectives import ProbeRank, bandwidth_findings, identity_findings
from ddp_ladder.preflight.directory import unfinished
from ddp_ladder.preflight.nodes import node_findings
from ddp_ladder.preflight.result import PREFLIGHT_FAILED, PairRow
from ddp_ladder.records.raw_files import RankFiles, RawRun, read_raw_run
from ddp_ladder.records.raw_models import FailedRank, SilentAgent, Unreached
from ddp_ladder.settings.keys import Monitor, Slurm
from ddp_ladder.settings.terms import Scale
from make_preflight import GPU, gpus_facts, node_facts, probe_rank, run_file
from make_records import make_spec
from make_runs import STARTED_AT_S, write_run
from make_stalls import agent_stall, rank_stall
from make_usage import make_monitor_file, make_samples, make_timeline

NODES, GPUS = 256, 4
RANKS = NODES * GPUS
LONG = "a message of the script that says what was found, and where, at some length " * 4
SLEEPS = 'Current thread 0x01 (most recent call first):\n  File "/home/ada/train.py", line {line} in train'


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> RawRun:
    """Return the files of a run whose first nodes are genuine, in memory."""
    small = read_raw_run(write_run(tmp_path_factory.mktemp("run"), make_spec(f"1x{GPUS}", device="cuda")))
    spec = make_spec(f"{NODES}x{GPUS}", device="cuda")
    nodes = tuple(f"node{k}" for k in range(NODES))
    (agent, of_agent), first = next(iter(small.agents.items())), small.ranks[0]
    agents = {
        replace(agent, node_rank=k): of_agent.model_copy(update={"node_rank": k, "node": name, "host": name})
        for k, name in enumerate(nodes)
    }
    ranks = {}
    for rank, (node, local) in enumerate(product(range(NODES), range(GPUS))):
        place = {"rank": rank, "local_rank": local, "node_rank": node, "host": nodes[node], "world_size": RANKS}
        device = first.end.device.model_copy(update={"id": f"GPU-{rank}", "index": local})
        own = {"device": device, "first_samples": (f"{rank:016x}",)}
        ranks[rank] = RankFiles(first.end.model_copy(update={**place, **own}), first.steps)
    run = small.run.model_copy(update={"spec": spec, "spec_hash": spec.hash, "nodes": nodes})
    return replace(small, run=run, agents=agents, ranks=ranks)


def on_ranks(raw: RawRun, change: Callable[[int], Mapping[str, Any]]) -> RawRun:
    """Return the run with other fields in the end record of each rank."""
    files = raw.ranks.items()
    return replace(raw, ranks={k: RankFiles(each.end.model_copy(update=change(k)), each.steps) for k, each in files})


def on_agents(raw: RawRun, change: Callable[[int], Mapping[str, Any]]) -> RawRun:
    ends = raw.agents.items()
    return replace(raw, agents={k: end.model_copy(update=change(k.node_rank)) for k, end in ends})


def ended_by(raw: RawRun, **changes: Any) -> RawRun:
    assert raw.ended
    return replace(raw, ended=raw.ended.model_copy(update=changes))


def all_raise(raw: RawRun) -> RawRun:
    return on_agents(on_ranks(raw, lambda k: {"exit_code": 1, "exception": f"ValueError: {k}: {LONG}"}), all_failed)


def all_failed(node: int) -> dict[str, Any]:
    fields = {"pid": 1, "exit_code": 1, "ended_at_s": STARTED_AT_S, "signal": None}
    ranks = (FailedRank(rank=GPUS * node + local, local_rank=local, **fields) for local in range(GPUS))
    return {"exit_code": node % 99 + 1, "failed_ranks": tuple(ranks)}


def all_are_killed(raw: RawRun) -> RawRun:
    def killed(node: int) -> dict[str, Any]:
        failed = all_failed(node)
        killed = tuple(each.replace(signal="SIGKILL", exit_code=-9) for each in failed["failed_ranks"])
        return {**failed, "failed_ranks": killed}

    return replace(on_agents(raw, killed), ranks={})


def all_files_are_missing(raw: RawRun) -> RawRun:
    names = [f"ranks/rank{k}.{kind}" for k in range(RANKS) for kind in ("json", "steps")]
    return replace(raw, ranks={}, problems=tuple(f"{name} is missing" for name in names))


def steps(raw: RawRun, count: int) -> Any:
    return raw.ranks[0].end.steps.model_copy(update={"count": count})


def all_differ(raw: RawRun) -> RawRun:
    def own(k: int) -> dict[str, Any]:
        end = raw.ranks[k].end
        seen = {"script_sha256": f"{k:064x}", "args": (LONG, str(k)), "batch_per_gpu": k + 1, "unread": ("sources",)}
        return {
            "fingerprint": end.fingerprint.model_copy(update=seen),
            "world_size": k + 1,
            "backend": None if k % 2 else "gloo",
            "host": f"node{(k + GPUS) // GPUS}",
            "device": end.device.model_copy(update={"id": f"GPU-{k // 2 * 2}"}),
            "parameters": end.parameters and end.parameters.model_copy(update={"checksum": f"sha256:{k}"}),
            "not_measured": (f"hook loader: {LONG}",),
            "steps": steps(raw, k),
        }

    empty = replace(raw.ranks[0].steps, samples=0 * raw.ranks[0].steps.samples)
    files = {k: replace(each, steps=empty) for k, each in on_ranks(raw, own).ranks.items()}
    return replace(raw, ranks=files, run=raw.run.model_copy(update={"monitor": Monitor()}))


def hangs(raw: RawRun, stuck: Callable[[int], Mapping[str, Any]]) -> RawRun:
    ranks = [rank_stall(k, **stuck(k)) for k in range(RANKS)]
    reports = (agent_stall(node, *ranks[GPUS * node : GPUS * node + GPUS]) for node in range(NODES))
    return replace(ended_by(raw, outcome="hang"), stalls=tuple(reports))


def all_are_elsewhere(raw: RawRun) -> RawRun:
    return hangs(raw, lambda k: {"stack": SLEEPS.format(line=k), "handles": LONG if k % 2 else None})


def no_node_reaches_another(raw: RawRun) -> RawRun:
    cut_off = hangs(raw, lambda k: {"stack": None})
    missed = [Unreached(node_rank=(k + 2) % NODES, why=f"10.0.0.{k}: no route to host") for k in range(NODES)]
    tested = [{"tested": ((k + 1) % NODES, (k + 2) % NODES), "unreached": (missed[k],)} for k in range(NODES)]
    stalls = zip(cut_off.stalls, tested, strict=True)
    return replace(cut_off, stalls=tuple(stall.model_copy(update=seen) for stall, seen in stalls))


def all_agents_are_silent(raw: RawRun) -> RawRun:
    silent = (SilentAgent(node_rank=k, local_rank=None, silent_s=60.0, has_begun=k > 0) for k in range(NODES))
    return replace(ended_by(raw, outcome="silent agent", found_at_s=STARTED_AT_S, silent=tuple(silent)), agents={})


WORLDS: Mapping[str, tuple[Callable[[RawRun], RawRun], str]] = {
    "all raise": (all_raise, "the script raised an exception"),
    "all are killed": (all_are_killed, "a rank was killed"),
    "all files are missing": (all_files_are_missing, "complete"),
    "all differ": (all_differ, "no process group was formed"),
    "all are elsewhere": (all_are_elsewhere, "the training hung"),
    "no node reaches another": (no_node_reaches_another, "nodes are cut off from each other"),
    "all agents are silent": (all_agents_are_silent, "no agent gave a sign of life"),
}


def texts_of(data: Any) -> Iterator[str]:
    if isinstance(data, str):
        yield data
    elif isinstance(data, Mapping):
        for value in data.values():
            yield from texts_of(value)
    elif isinstance(data, list | tuple):
        for value in data:
            yield from texts_of(value)


def longest(data: Any) -> str:
    return max(texts_of(data), key=len)


@pytest.mark.parametrize("name", WORLDS)
def test_no_text_of_a_record_grows_with_the_ranks(good: RawRun, name: str) -> None:
    change, verdict = WORLDS[name]
    record = record_of(change(good))
    assert record.failure
    assert record.failure.verdict == verdict
    assert len(longest(record.model_dump())) < 0.9 * LONGEST_TEXT, longest(record.model_dump())  # none is cut


def of_preflight() -> Iterator[Finding]:
    """Yield what a preflight says of nodes that are all bad."""
    spec = make_spec(f"{NODES}x{GPUS}", device="cuda")
    run = run_file(spec, Path("/preflight"))
    job = ScaleJob("stage3", Scale(NODES, GPUS), 20, (), cpus=4, slurm=Slurm())
    gpus = (GPU.replace(index=k, uuid=f"GPU-{k}", memory_used_mib=9000.0 + k) for k in range(GPUS))
    full = gpus_facts(*gpus)
    facts = {name: node_facts(k, gpus=full, cpus=1 + k % 3) if k % 5 else None for k, name in enumerate(run.nodes)}
    yield from node_findings(spec, job, facts)
    files = [probe_rank(spec, k, run.job.model_dump(), device=DEVICE, host="node1") for k in range(RANKS)]
    ranks = {k: ProbeRank.from_json(file) for k, file in enumerate(files)}
    yield from identity_findings(spec, ranks, run.nodes)
    yield from unfinished(run, run.nodes, {}, (), ())
    rates = [(1.0 if k % 2 else 9.0) for k in range(NODES - 1)]
    pairs = [
        PairRow(nodes=(run.nodes[k], run.nodes[k + 1]), bytes=4096, time_s=1.0, busbw_gb_per_s=rate)
        for k, rate in enumerate(rates)
    ]
    yield from bandwidth_findings(spec, None, (), pairs, run.nodes)


DEVICE = {"kind": "cuda", "index": 0, "name": "NVIDIA A100", "id": "GPU-0"}


def test_no_finding_of_a_preflight_grows_with_the_ranks_nor_the_record_of_a_run_that_it_leaves_out() -> None:
    found = [*of_preflight()]
    assert [each.measured.partition(" ")[0] for each in found if "share one device" in each.measured] == ["ranks"]
    assert any(each.measured.startswith("no report came from ranks 0-") for each in found)
    for each in found:
        why = f"{PREFLIGHT_FAILED}: {each.in_words}"
        record = not_run(make_spec("2x4"), "preflight failed", why, each.next)
        assert len(longest(record.model_dump())) < LONGEST_TEXT / 2, longest(record.model_dump())


def test_no_finding_on_what_was_used_grows_with_the_nodes() -> None:
    hot = {f"gpu{k}_throttle_reasons": "thermal" for k in range(GPUS)}
    about = make_monitor_file(0, GPUS)
    ranks = tuple(RankUse(k, k % GPUS, k // GPUS, gpu=str(k)) for k in range(RANKS))
    one = node_usage(make_samples(about, **hot), make_timeline(), ranks[:GPUS])
    nodes = tuple(one.model_copy(update={"node_rank": k, "node": f"node{k}"}) for k in range(NODES))
    cool = node_usage(make_samples(about), make_timeline(), ranks[:GPUS])
    found = findings(RunUse((cool, *nodes[1:]), ranks, simulated=False, on_gpus=True))
    assert [(each.kind, each.place) for each in found] == [
        ("GPU throttled", f"GPUs 0-{GPUS - 1} of node[1-{NODES - 1}]")
    ]
    assert len(longest(found[0].model_dump())) < LONGEST_TEXT / 2
