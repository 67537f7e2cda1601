"""--cores: which cores a rank uses."""

from __future__ import annotations

import os

import pytest
from rank_support import on_ranks

import common
from common import process_group


def alone(cpu: int) -> int:
    """Cores without hardware threads."""
    return cpu


def with_a_sibling(cpu: int) -> int:
    """Eight hardware threads on four cores: 0 and 4, 1 and 5, ..."""
    return cpu % 4


def shares(cpus: range, ranks: int, core: object = alone) -> list[list[int]]:
    return [common.share(cpus, place, ranks, core) for place in range(ranks)]  # type: ignore[arg-type]


def test_ranks_share_all_cores_of_their_node_and_no_two_have_the_same() -> None:
    assert shares(range(8, 16), 4) == [[8, 9], [10, 11], [12, 13], [14, 15]]
    assert shares(range(7), 2) == [[0, 1, 2], [3, 4, 5, 6]]
    assert shares(range(3), 1) == [[0, 1, 2]]


def test_both_hardware_threads_of_a_core_belong_to_one_rank() -> None:
    assert shares(range(8), 2, with_a_sibling) == [[0, 1, 4, 5], [2, 3, 6, 7]]
    assert shares(range(4), 4, with_a_sibling) == [[0], [1], [2], [3]]  # of each core, one thread is the job's


def test_a_rank_that_the_launcher_has_bound_already_is_refused() -> None:
    with pytest.raises(SystemExit, match=r"2 ranks on this node, but this process has 1 cores .* --cores launcher"):
        common.share([3], 1, 2, alone)


def used(choice: str) -> list[int]:
    with process_group("gloo", choice):
        return sorted(os.sched_getaffinity(0))


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_the_system_binds_the_ranks() -> None:
    mine = os.sched_getaffinity(0)
    own = [common.share(mine, place, 2, common.core_of) for place in range(2)]
    assert on_ranks(2, used, "launcher") == [sorted(mine)] * 2
    assert on_ranks(2, used, "own") == own
    assert on_ranks(2, used, "first") == [own[0]] * 2
