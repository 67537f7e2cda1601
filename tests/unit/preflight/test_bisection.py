"""The search for the node, or the link, that makes collectives fail."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest
from ddp_ladder.preflight.bisection import culprits, in_words, parts
from ddp_ladder.preflight.result import PartRow


def searched(nodes: int, works: Callable[[set[int]], bool]) -> list[PartRow]:
    """Return the parts that were launched on."""
    rows, search = [], parts(range(nodes))
    with suppress(StopIteration):
        part = next(search)
        while True:
            rows.append(PartRow(nodes=tuple(f"n{rank}" for rank in part), ok=works(set(part))))
            part = search.send(rows[-1].ok)
    return rows


def found(nodes: int, works: Callable[[set[int]], bool]) -> tuple[str, ...]:
    return culprits([f"n{rank}" for rank in range(nodes)], searched(nodes, works))


@pytest.mark.parametrize("nodes", range(3, 18))
def test_a_broken_node_is_found_with_few_launches(nodes: int) -> None:
    for broken in range(nodes):
        assert found(nodes, lambda part, broken=broken: broken not in part) == (f"n{broken}",)  # type: ignore[misc]
        assert len(searched(nodes, lambda part, broken=broken: broken not in part)) <= 2 * nodes.bit_length()  # type: ignore[misc]


def test_a_broken_link_is_one_of_its_ends_or_both() -> None:
    def works(part: set[int]) -> bool:
        return not {1, 5} <= part

    assert set(found(8, works)) == {"n1", "n5"}
    assert set(found(4, lambda part: not {0, 1} <= part)) == {"n0", "n1"}


def test_nothing_is_named_if_all_parts_work() -> None:
    rows = searched(6, lambda part: True)
    assert culprits([f"n{rank}" for rank in range(6)], rows) == ()
    assert in_words(rows).endswith("work without the others")
    assert culprits(["a", "b"], ()) == ()


def test_in_words() -> None:
    rows = [PartRow(nodes=("n0", "n1"), ok=True), PartRow(nodes=("n2", "n3"), ok=False)]
    assert in_words(rows) == "n0, n1 work without the others; n2, n3 do not"
