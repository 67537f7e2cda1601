"""Causes of lost time in real runs: each is named first, and what to do about it. benchmarks/ has all of them."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from ddp_ladder.gates.attribution import Attribution
from ddp_ladder.gates.points import ScalePoint
from injected_causes import Bench

Told = tuple[ScalePoint, Attribution]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Told]:
    """What is told of each cause at 2x1."""
    bench = Bench(tmp_path_factory.mktemp("causes"), steps=50)
    found = {cause: bench.told(cause, "2x1", 0, False) for cause in ("rank_forward", "buffers+all_reduce")}
    return {cause: (point, lost) for cause, (point, lost) in found.items() if lost}


def test_a_rank_that_is_always_late_is_persistent_imbalance_of_its_place(told: Mapping[str, Told]) -> None:
    point, found = told["rank_forward"]
    assert found.named[0].cause == "imbalance"
    assert point.step
    assert (point.step.imbalance_kind, point.step.slowest is None) == ("persistent", False)


def test_what_ddp_does_not_time_is_communication_of_its_kind(told: Mapping[str, Told]) -> None:
    point, found = told["buffers+all_reduce"]
    assert found.named[0].cause == "communication"
    assert point.step
    sent = {each.name: (each.calls, each.bytes) for each in point.step.others}
    assert sent == dict.fromkeys(("buffers", "all_reduce"), (pytest.approx(1), pytest.approx(40e6)))
    assert point["exposed_comm_s"]
    assert sum(each.seconds or 0.0 for each in point.step.others) > point["exposed_comm_s"] / 2
    advice = (
        "40 MB of buffers are sent before each forward pass: DistributedDataParallel(broadcast",
        "all_reduce is called in each step (1 call, 40 MB)",
    )
    assert any(change.what.startswith(advice) for change in found.changes)  # other tests beside this one slow more
    assert all(f"{name} " in found.named[0].evidence for name in sent)
