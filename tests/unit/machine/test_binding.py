"""Mistakes in the CPUs of a node's ranks."""

from __future__ import annotations

import pytest
from ddp_ladder.machine.binding import BoundRank, binding_mistakes
from ddp_ladder.node.numa import parse_cpus


def mistakes(*cpus: str, available: str = "0-15", threads: int | None = None) -> list[str]:
    ranks = [BoundRank(rank, frozenset(parse_cpus(text)), threads) for rank, text in enumerate(cpus)]
    return [mistake.what for mistake in binding_mistakes(ranks, frozenset(parse_cpus(available)))]


@pytest.mark.parametrize(
    ("cpus", "available"),
    [
        (("0-15", "0-15", "0-15"), "0-15"),  # torchrun: the ranks share what the step has
        (("0-7", "8-15"), "0-15"),  # srun: each its own
        (("0", "0"), "0"),  # there is only one
        (("3", "4"), "0-15"),
    ],
)
def test_usual_bindings_are_no_mistake(cpus: tuple[str, ...], available: str) -> None:
    assert mistakes(*cpus, available=available) == []
    assert mistakes(*cpus, available=available, threads=1) == []


def test_ranks_on_one_core() -> None:
    assert mistakes("0", "0", "0", "0") == [
        "several ranks share one core: ranks 0, 1, 2, 3 on CPU 0, of 16 CPUs that the job step has"
    ]
    assert mistakes("0", "1", "0", "1") == [
        "several ranks share one core: ranks 0, 2 on CPU 0, ranks 1, 3 on CPU 1, of 16 CPUs that the job step has"
    ]


def test_masks_that_overlap_in_part() -> None:
    assert mistakes("0-5", "4-9", "10-15") == [
        "ranks are bound to CPUs that overlap in part: rank 0 to 0-5, rank 1 to 4-9"
    ]
    assert mistakes("0-15", "0-7", "8-15") == [
        "ranks are bound to CPUs that overlap in part: rank 0 to 0-15, rank 1 to 0-7, and 1 more pair"
    ]


def test_more_threads_than_cpus() -> None:
    assert mistakes("0-7", "8-15", threads=9) == ["ranks 0, 1: 9 threads of torch on 8 CPUs (0-7)"]
    assert mistakes("0-7", "8-15", threads=8) == []
