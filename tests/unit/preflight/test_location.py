"""Worlds with broken nodes, links or software: what a preflight sees there, and that it names the same again."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from ddp_ladder.common.findings import Finding
from ddp_ladder.common.formats import hostlist
from ddp_ladder.diagnosis.signatures import Words
from ddp_ladder.plan.plan import RunSpec, ScaleJob
from ddp_ladder.preflight.collectives import (
    ProbePair,
    ProbeRank,
    bandwidth_findings,
    identity_findings,
    pair_rows,
    size_rows,
)
from ddp_ladder.preflight.directory import unfinished
from ddp_ladder.preflight.nodes import node_findings
from ddp_ladder.preflight.result import is_of_hardware, most_at_once
from ddp_ladder.settings.keys import Slurm
from ddp_ladder.settings.terms import Scale
from ddp_ladder_probe.pairs import checks, neighbours
from hypothesis import given, settings
from hypothesis import strategies as st
from make_preflight import JOB, agent_end, node_facts, probe_rank, run_file
from make_records import make_spec

A_NODE = 4  # ranks
NODES = st.one_of(st.integers(4, 40), st.integers(41, 1024), st.just(1024))
Found = set[tuple[str | None, str]]


def names(nodes: int) -> list[str]:
    return [f"jwb{k:04}" for k in range(nodes)]


def places(findings: Iterable[Finding]) -> Found:
    found = [*findings]
    assert len(found) == len({finding.kind for finding in found})  # one finding for each cause
    assert all(len(finding.line) < 1500 for finding in found)
    return {(finding.kind, finding.place) for finding in found}


def place(numbers: Iterable[int]) -> str:
    return hostlist(f"jwb{k:04}" for k in sorted(numbers))


# --- Pairs of nodes: slow nodes, slow links, and a slow network between two groups.


@st.composite
def worlds(draw: st.DrawFn) -> tuple[int, frozenset[int], frozenset[tuple[int, int]], frozenset[int], list[float]]:
    """Return the number of nodes, slow ones, slow links, a group that is cut off, and speeds."""
    nodes = draw(NODES)
    most = max(1, nodes // 12)  # a world in which most is broken has several explanations
    cut: range = range(0)
    if draw(st.booleans()):
        first = draw(st.integers(0, nodes - 1))
        cut = range(first, first + draw(st.integers(2, nodes - 2)))
    borders = {k % nodes for end in (cut.start, cut.stop) for k in range(end - 2, end + 2)} if cut else set()
    free = [k for k in range(nodes) if k not in borders]
    slow = frozenset(draw(st.sets(st.sampled_from(free), max_size=1 if cut else min(8, most)))) if free else frozenset()
    ring = [pair for pair in neighbours(nodes) if not {*pair} & (slow | borders)]
    links = draw(st.sets(st.sampled_from(ring), max_size=min(6, most - len(slow)))) if ring and not cut else set()
    speeds = draw(st.lists(st.floats(0.1, 1.0), min_size=8, max_size=8))
    return nodes, slow, frozenset(links), frozenset(k % nodes for k in cut), speeds


def measured(nodes: int, slow: Any, links: Any, cut: Any, speeds: Sequence[float]) -> list[ProbePair]:
    """Return what the probe measures: neighbours, then its checks. Healthy pairs differ by up to 30 %."""

    def time_s(pair: tuple[int, int]) -> float:
        speed = speeds[sum(pair) % len(speeds)]
        is_slow = {*pair} & slow or pair in links or len({*pair} & cut) == 1
        return 1.0 / (0.3 * speed if is_slow else 0.7 + 0.3 * speed)

    ring = neighbours(nodes)
    pairs = [*ring, *checks(nodes, [time_s(pair) for pair in ring])]
    return [ProbePair(nodes=pair, bytes=10**9, time_s=time_s(pair), alone=False) for pair in pairs]


def slow_places(nodes: int, pairs: Sequence[ProbePair]) -> list[Finding]:
    rank: Any = functools.partial(ProbeRank.model_construct, sizes=())
    rows = pair_rows([rank(pairs=pairs), rank(pairs=pairs)], names(nodes))
    return [*bandwidth_findings(make_spec(f"{nodes}x1"), None, size_rows([]), rows, names(nodes))]


@given(world=worlds())
@settings(max_examples=100, deadline=None)
def test_what_is_slow_is_named_and_nothing_else(world: Any) -> None:
    nodes, slow, links, cut, _ = world
    found = slow_places(nodes, measured(*world))
    wanted = {("node", place(slow))} if slow else set()
    wanted |= {("link", place({node for link in links for node in link}))} if links else set()
    wanted |= {("network", "")} if cut else set()
    assert places(found) == wanted
    if cut:
        between = next(finding.evidence for finding in found if finding.kind == "network")
        off = cut - slow
        on = {*range(nodes)} - cut - slow
        assert all(hostlist(f"jwb{k:04}" for k in sorted(group)) in between for group in (off, on))


# --- Nodes that do not reach the head.


@given(nodes=NODES, data=st.data())
@settings(max_examples=60, deadline=None)
def test_nodes_that_are_cut_off_are_named_and_of_many_the_network(nodes: int, data: st.DataObject) -> None:
    off = data.draw(st.sets(st.integers(1, nodes - 1), min_size=1, max_size=data.draw(st.sampled_from([3, nodes]))))
    found = node_judged(nodes, {k: {"link_error": "No route to host"} for k in off})
    if len(off) == nodes - 1:
        assert places(found) == {("network", "jwb0000")}
    elif len(off) <= most_at_once(nodes):
        assert places(found) == {("node", place(off))}
        assert f"slurm.exclude: {place(off)} " in found[0].next
    else:
        assert places(found) == {("network", "")}
        assert found[0].evidence == (place({*range(nodes)} - off), place(off))


def node_judged(nodes: int, changes: dict[int, dict[str, Any]]) -> tuple[Finding, ...]:
    healthy = node_facts()
    facts = {
        name: healthy.model_copy(update={"node": name, "node_rank": k, **changes.get(k, {})})
        for k, name in enumerate(names(nodes))
    }
    job = ScaleJob("stage3", Scale(nodes, 2), 20, (), cpus=4, slurm=Slurm())
    return node_findings(make_spec(f"{nodes}x2", device="cuda"), job, facts)


# --- Ranks: silent nodes, other versions.


def ranks(spec: RunSpec, silent: Iterable[int] = (), **of_node: Any) -> dict[int, ProbeRank]:
    template = ProbeRank.from_json(probe_rank(spec, 0, JOB.model_dump()))
    return {
        k: template.model_copy(
            update={"rank": k, "node_rank": k // A_NODE, "host": f"jwb{k // A_NODE:04}"}
            | {name: change(k // A_NODE) for name, change in of_node.items()}
        )
        for k in range(spec.world_size)
        if k // A_NODE not in silent
    }


FEW = st.tuples(NODES, st.sets(st.integers(0, 10**6), min_size=1, max_size=4), st.booleans())


@given(world=FEW)
@settings(max_examples=40, deadline=None)
def test_nodes_whose_ranks_never_report_are_named(world: Any) -> None:
    nodes, some, others_start = world
    some_fell_silent = len(some) == 1
    spec, silent = make_spec(f"{nodes}x{A_NODE}"), {k % nodes for k in some}
    # With torchrun the ranks of the other nodes wait for those of the silent ones, and do not start either.
    known = ranks(spec, silent, doing=lambda _: "joining") if others_start else {}
    run = run_file(spec, Path("/results/preflight/x"))
    if some_fell_silent:
        known |= {
            k: rank.model_copy(update={"doing": "joining"}) for k, rank in ranks(spec).items() if k // A_NODE in silent
        }
    template = agent_end(run, exit_code=1)
    ends = [template.model_copy(update={"node_rank": k}) for k in range(nodes) if k not in silent]
    said = [Words("torchrun", None, "jwb0000", ("torch....RendezvousTimeoutError",))]
    (found,) = unfinished(run, names(nodes), known, ends, said)
    if len(silent) <= most_at_once(nodes):
        assert (found.kind, found.place) == ("node", place(silent))
        assert f" on {place(silent)}"[:80] in found.measured
        assert f"slurm.exclude: {place(silent)} " in found.next
    else:
        assert found.kind != "node"


@given(world=FEW)
@settings(max_examples=40, deadline=None)
def test_another_software_is_no_broken_node(world: Any) -> None:
    nodes, some, has_other_nccl = world
    spec, odd = make_spec(f"{nodes}x{A_NODE}"), {k % nodes for k in some}
    if 2 * len(odd) >= nodes:
        return
    usual = {"torch": "2.8.0", "cuda": "12.8", "nccl": "2.27"}
    other = {**usual, "torch": "2.7.1", **({"nccl": "2.26"} if has_other_nccl else {})}
    known = ranks(spec, versions=lambda node: other if node in odd else usual)
    for k, rank in known.items():
        known[k] = rank.model_copy(update={"device": rank.device and rank.device.replace(id=f"cpu:{k}")})
    (found,) = identity_findings(spec, known, names(nodes))
    assert (found.kind, found.place) == ("software", place(odd))
    assert not is_of_hardware(found)


@pytest.mark.parametrize(
    ("error", "kind"), [("software.python: /opt/x/python: No such file or directory", "software"), (None, "node")]
)
def test_a_python_that_is_missing_on_two_nodes_is_software(error: str | None, kind: str) -> None:
    spec = make_spec(f"64x{A_NODE}")
    run = run_file(spec, Path("/results/preflight/x"))
    ends = [agent_end(run, k, exit_code=1, error=error if k in (7, 60) else None) for k in range(64)]
    ends = ends if error else [end for end in ends if end.node_rank not in (7, 60)]
    (found,) = unfinished(run, names(64), ranks(spec, {7, 60}), ends, [])
    assert (found.kind, found.place) == (kind, "jwb[0007,0060]")
