"""Causes of lost time in real runs: each is named first, and what to do about it. benchmarks/ has all of them."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from injected_causes import CASES, Bench, Told


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Told]:
    bench = Bench(tmp_path_factory.mktemp("causes"))
    wanted = ("loaders 2x1", "alternating 2x1", "rank_forward 2x1")
    return {injected.name: bench.told(injected, beside_none=False) for injected in CASES if injected.name in wanted}


def test_loaders_that_are_slow_on_all_ranks_are_data_wait_and_no_node_is_left_out(told: Mapping[str, Told]) -> None:
    found = told["loaders 2x1"].found
    assert found
    assert found.named[0].cause == "data"  # other tests beside this one may slow the computation, too
    assert "no rank is the cause" in found.named[0].evidence
    assert any("loader workers per rank" in change.what for change in found.changes)
    assert not any("exclude" in change.what for change in found.changes)


def test_work_that_varies_is_imbalance_without_a_place(told: Mapping[str, Told]) -> None:
    varying = told["alternating 2x1"]
    assert varying.found
    assert varying.found.named[0].cause == "imbalance"
    assert varying.point.step
    assert (varying.point.step.imbalance_kind, varying.point.step.slowest) == ("varying", None)
    assert any("draw lengths or shapes together on all ranks" in change.what for change in varying.found.changes)
    assert not any("exclude" in change.what for change in varying.found.changes)


def test_a_rank_that_is_always_late_is_persistent_imbalance_of_its_place(told: Mapping[str, Told]) -> None:
    late = told["rank_forward 2x1"]
    assert late.found
    assert late.found.named[0].cause == "imbalance"
    assert late.point.step
    assert (late.point.step.imbalance_kind, late.point.step.slowest is None) == ("persistent", False)
