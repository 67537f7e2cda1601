from __future__ import annotations

from collections.abc import Sequence

import pytest
from ddp_ladder.common.formats import in_short, rank_numbers, shortened


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ([], ""),
        (["a", "b"], "a, b"),
        (["a", "b", "c", "d", "e"], "a, b, c and 2 more"),
        ([0, 1], "0, 1"),
        ([0, 1, 2, 3, 8], "0-3, 8"),
        ([3, 2, 1], "3, 2, 1"),
        ([0, 2, *range(4, 2000), 3000, *range(4000, 5000)], "0, 2, 4-1999 and 1,001 more"),
        (["1", "2", "3"], "1, 2, 3"),
    ],
)
def test_many_names_are_counted_and_numbers_in_a_row_are_a_range(names: Sequence[str | int], text: str) -> None:
    assert in_short(names, 3) == text


def test_ranks() -> None:
    assert rank_numbers([3]) == "rank 3"
    assert rank_numbers([*range(8), 11]) == "ranks 0-7, 11"


def test_a_long_text_is_cut() -> None:
    assert shortened("abcdef", 6) == "abcdef"
    assert shortened("abcdefg", 6) == "abc..."
