"""The values of the preflight's all-reduces, without ranks: sums are exact, and every wrong element is found."""

from __future__ import annotations

import pytest
import torch
from ddp_ladder_probe.collectives import CHUNK, KINDS, WEIGHTS, fill, first_difference, neighbours, pair_size


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ranks", [2, 7, 700])
def test_the_sum_is_exact_and_each_rank_adds_its_own(kind: torch.dtype, ranks: int) -> None:
    total, values = torch.zeros(2000, dtype=kind), torch.zeros(2000, dtype=kind)
    weights = [rank % WEIGHTS[kind] + 1 for rank in range(ranks)]
    for weight in weights:
        fill(values, weight, 2)
        total += values
    assert first_difference(total, sum(weights), 2) is None
    assert first_difference(total, sum(weights) + 1, 2) is not None  # a rank counted twice
    assert first_difference(total, sum(weights), 1) is not None  # the result of another round


def test_one_wrong_element_is_found_in_any_chunk() -> None:
    values = torch.zeros(CHUNK + 10, dtype=torch.int64)
    fill(values, 3, 0)
    right = int(values[CHUNK + 4].item())
    values[CHUNK + 4] += 1
    said = f"1 of {CHUNK + 10} elements are wrong, element {CHUNK + 4} is {right + 1} in place of {right}"
    assert first_difference(values, 3, 0) == said


def test_pairs_are_neighbours() -> None:
    assert neighbours(2) == []
    assert neighbours(4) == [(0, 1), (1, 2), (2, 3), (0, 3)]


def test_a_pair_exchanges_what_all_ranks_exchange_quickly() -> None:
    assert (
        pair_size([{"bytes": 4096, "time_s": 0.001}, {"bytes": 16384, "time_s": 0.2}, {"bytes": 65536, "time_s": 1.0}])
        == 16384
    )
    assert pair_size([]) == 4096
