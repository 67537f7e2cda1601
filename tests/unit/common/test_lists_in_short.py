from __future__ import annotations

from collections.abc import Sequence

import pytest
from ddp_ladder.common.formats import hostlist, in_short, rank_numbers, short_list, shortened
from ddp_ladder.slurm.query import host_names
from hypothesis import given
from hypothesis import strategies as st


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


@given(st.lists(st.from_regex(r"[a-z]{1,2}-?(0{0,2}[0-9]{0,4})", fullmatch=True)))
def test_slurms_short_form_has_all_names_once(names: list[str]) -> None:
    assert sorted(host_names(hostlist(names))) == sorted({*names})


def test_names_in_slurms_short_form() -> None:
    assert hostlist(["n09", "n10", "n11", "n7", "login", "n09"]) == "n[09-11,7],login"
    assert hostlist(["n9", "n10", "n010"]) == "n[9-10,010]"
    assert short_list("n[1,3,5,7,9]", 8) == "n[1,3,5,...]"
    assert short_list("a,b,c,d,e,f", 8) == "a,b,c,d,..."
