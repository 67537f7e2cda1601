"""The pairs of neighbouring nodes: which are measured at the same time, and real ranks that measure them."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ddp_ladder_probe import collectives
from ddp_ladder_probe.pairs import checks, neighbours, rounds
from rank_support import on_ranks


@pytest.mark.parametrize(("nodes", "number"), [(1, 0), (2, 0), (3, 3), (4, 2), (5, 3), (24, 2), (96, 2), (1023, 3)])
def test_every_pair_is_in_one_round_and_no_node_twice_in_a_round(nodes: int, number: int) -> None:
    schedule = rounds(nodes)
    assert len(schedule) == number
    assert sorted(pair for pairs in schedule for pair in pairs) == sorted(neighbours(nodes))
    for pairs in schedule:
        several = [node for pair in pairs for node in pair]
        assert len(several) == len({*several})


def _measure(nodes: int, left_s: float) -> tuple[list[Any], list[Any], list[list[int]]]:
    """Return what a rank yields in the rounds and alone, and the groups of ranks that it makes."""
    dist.init_process_group("gloo")
    made: list[list[int]] = []
    new_group: Any = dist.new_group

    def counting(ranks: list[int], **options: Any) -> Any:
        made.append(ranks)
        return new_group(ranks, **options)

    dist.new_group = counting
    collectives.SLOWEST = 2
    group = collectives.Group(torch.device("cpu"), time.monotonic() + left_s)
    pairs = collectives.Pairs(group, nodes, 4096, timedelta(seconds=60))
    return [*pairs.in_rounds()], [*pairs.alone()], made


def _check(nodes: int, slow: list[int]) -> list[Any]:
    """Return what a rank yields if these nodes were slow."""
    dist.init_process_group("gloo")
    group = collectives.Group(torch.device("cpu"), time.monotonic() + 200.0)
    pairs = collectives.Pairs(group, nodes, 4096, timedelta(seconds=60))
    if dist.get_rank() == 0:  # it decides
        pairs._times_s = torch.tensor([1.0 if {*pair} & {*slow} else 0.1 for pair in neighbours(nodes)])
    return [*pairs.checked()]


def _times_s(answers: list[Any], pair: tuple[int, int]) -> list[float]:
    """Return what the ranks of a pair measured in its round."""
    entries = [entry for in_rounds, _, _ in answers for entry in in_rounds if entry]
    return [entry["time_s"] for entry in entries if tuple(entry["nodes"]) == pair]


@pytest.mark.parametrize(("nodes", "ranks"), [(5, 5), (4, 8)])
def test_all_pairs_are_measured_with_a_group_of_a_rank_in_each_round(nodes: int, ranks: int) -> None:
    answers = on_ranks(ranks, _measure, nodes, 200.0)
    per_node = ranks // nodes
    for rank, (in_rounds, _, made) in enumerate(answers):
        pairs = [next((pair for pair in several if rank // per_node in pair), None) for several in rounds(nodes)]
        assert [entry and tuple(entry["nodes"]) for entry in in_rounds] == pairs
        assert all(entry["time_s"] > 0 and not entry["alone"] for entry in in_rounds if entry)
        assert [len(group) for group in made] == [per_node * (2 if pair else 1) for pair in pairs]
    again = [tuple(entry["nodes"]) for _, alone, _ in answers for entry in alone if entry["alone"]]
    assert len(again) == 2 * 2 * per_node
    times_s = {pair: max(_times_s(answers, pair)) for pair in neighbours(nodes)}
    others = max(time_s for pair, time_s in times_s.items() if pair not in again)
    assert min(times_s[pair] for pair in again) >= others * (1 - 1e-6)  # the ranks compare them as float32


def test_without_time_every_pair_says_that_it_was_not_measured() -> None:
    for in_rounds, alone, made in on_ranks(4, _measure, 4, -1.0):
        assert [entry["time_s"] for entry in in_rounds] == [None, None]
        assert (alone, made) == ([], [])


def test_the_nodes_of_slow_pairs_are_measured_with_others() -> None:
    answers = on_ranks(8, _check, 8, [1])
    assert checks(8, [1.0, 1.0, *[0.1] * 6]) == [(0, 4), (1, 5), (2, 6)]
    for rank, entries in enumerate(answers):
        pairs = [entry and tuple(entry["nodes"]) for entry in entries]
        assert pairs == [next((pair for pair in [(0, 4), (1, 5), (2, 6)] if rank in pair), None)]
        assert all(entry is None or entry["time_s"] > 0 for entry in entries)
    assert on_ranks(4, _check, 4, []) == [[]] * 4
