from __future__ import annotations

import pytest
from ddp_ladder.plan.plan import PreflightWanted
from ddp_ladder.preflight.bandwidth import bus_factor, fit, slow_node
from ddp_ladder.preflight.collective_findings import bandwidth
from ddp_ladder.preflight.result import PairRow, SizeRow
from make_records import make_spec


def size(count: int, time_s: float) -> SizeRow:
    rate = count / time_s / 1e9
    return SizeRow(bytes=count, iterations=3, time_s=time_s, algbw_gb_per_s=rate, busbw_gb_per_s=rate)


def ring(*busbw_gb_per_s: float) -> list[PairRow]:
    """Pairs of neighbours: node0 and node1, node1 and node2, ..., the last and node0."""
    names = [f"node{k}" for k in range(len(busbw_gb_per_s))]
    return [
        PairRow(nodes=(name, names[(k + 1) % len(names)]), bytes=4096, time_s=1.0, busbw_gb_per_s=rate)
        for k, (name, rate) in enumerate(zip(names, busbw_gb_per_s, strict=True))
    ]


@pytest.mark.parametrize(("ranks", "factor"), [(2, 1.0), (4, 1.5), (8, 1.75)])
def test_the_bus_bandwidth_of_nccl_tests(ranks: int, factor: float) -> None:
    assert bus_factor(ranks) == factor


def test_latency_and_bandwidth_are_fitted() -> None:
    rows = [size(4096 * 4**n, 20e-6 + 4096 * 4**n / 5e9) for n in range(9)]
    assert fit(rows) == pytest.approx((20e-6, 1 / 5e9))
    assert fit(rows[:1]) is None


def test_times_that_fall_with_the_size_give_a_latency_and_no_bandwidth() -> None:
    alpha, beta = fit([size(4096, 3e-3), size(16384, 2e-3), size(65536, 1e-3)]) or (0.0, -1.0)
    assert (alpha, beta) == (1e-3, 0.0)


def test_a_bandwidth_that_the_largest_size_contradicts_is_not_fitted() -> None:
    """Other load: the middle sizes reach 1.4 GB/s, the largest 1.0 GB/s, which is what a step's gradients would see."""
    rows = [size(4096 * 4**n, 20e-6 + 4096 * 4**n / (1.4e9 if n < 7 else 1e9)) for n in range(8)]
    _, beta = fit(rows) or (0.0, 0.0)
    assert 1 / beta / 1e9 == pytest.approx(rows[-1].algbw_gb_per_s, rel=0.01)


@pytest.mark.parametrize(
    ("pairs", "node"),
    [
        (ring(10, 1, 1, 10), "node2"),
        (ring(1, 1, 10), "node1"),
        (ring(10, 1, 10, 10), None),  # a link between two nodes
        (ring(10, 1, 1, 4), "node2"),  # the others are uneven
        (ring(10, 9, 8, 10), None),
        (ring(1, 1, 1, 1), None),
        ([], None),
    ],
)
def test_the_node_whose_pairs_are_slow(pairs: list[PairRow], node: str | None) -> None:
    assert slow_node(pairs) == node


SPEC = make_spec("4x1")
ROWS = [size(1024**2, 1e-3)]  # 1.05 GB/s


@pytest.mark.parametrize(
    ("least", "pairs", "level", "said"),
    [
        (None, [], None, ""),
        (1.0, [], None, ""),
        (2.0, [], "fail", "at most 1.05 GB/s"),
        (2.0, ring(10, 1, 1, 10), "fail", "node2 is slow: its pairs with other nodes reach 1.00, 1.00 GB/s"),
        (None, ring(10, 1, 1, 10), "warn", "node2 is slow"),
        (None, ring(10, 1, 10, 10), "warn", "slow pairs of nodes: node1 and node2 1.00 GB/s"),
    ],
)
def test_low_bandwidth(least: float | None, pairs: list[PairRow], level: str | None, said: str) -> None:
    found = list(bandwidth(SPEC, PreflightWanted(min_busbw_gb_per_s=least), ROWS, pairs))
    assert [finding.level for finding in found] == ([level] if level else [])
    assert all(said in finding.what for finding in found)


def test_a_minimum_that_is_not_reached_is_named_with_its_key() -> None:
    (found,) = bandwidth(SPEC, PreflightWanted(min_busbw_gb_per_s=1000), ROWS, [])
    assert found.wanted == "at least 1,000 GB/s (preflight.min_busbw_gb_per_s)"
    assert found.next.endswith("; or lower preflight.min_busbw_gb_per_s in config.yaml if this is good enough for you")


def test_a_minimum_is_for_scales_of_several_nodes() -> None:
    assert not list(bandwidth(make_spec("1x4"), PreflightWanted(min_busbw_gb_per_s=100), ROWS, []))
