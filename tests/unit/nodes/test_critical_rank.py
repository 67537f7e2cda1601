"""The split of steps along their critical ranks, of tables of steps whose causes are known."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pytest
from ddp_ladder.nodes.critical_rank import (
    MOST_STEPS,
    Exchange,
    HeldUp,
    LoaderSpeeds,
    RankSteps,
    StepParts,
    held_up,
    step_parts,
)
from hypothesis import given, settings
from hypothesis import strategies as st

STEPS = 160
COMPUTE_S, REST_S, LINK_S, SLOW_S = 0.03, 0.005, 0.004, 0.02
NO_WORKERS = LoaderSpeeds(prefetch=False, batch_s=())

Array = npt.NDArray[np.float64]


def split(
    compute_s: Array,
    data_wait_s: Array | float = 0.0,
    rest_s: Array | float = REST_S,
    *,
    nodes: Sequence[int] | None = None,
    loaders: LoaderSpeeds = NO_WORKERS,
    timed: npt.NDArray[np.bool_] | None = None,
    on_gpus: bool = False,
) -> StepParts:
    """Return the parts of steps of ranks that wait for each other. Arrays: ranks x steps; the work of each in s."""
    own_s = compute_s + data_wait_s + rest_s
    step_s = np.broadcast_to(own_s.max(axis=0) + LINK_S, own_s.shape)
    timed = np.ones(own_s.shape[1], bool) if timed is None else timed
    waits_s = np.broadcast_to(data_wait_s, own_s.shape)
    overlap_s = np.full(own_s.shape, 0.001)
    columns = (step_s, waits_s, compute_s, step_s - own_s + overlap_s, overlap_s)
    steps = RankSteps(*(column[:, timed] for column in columns), on_gpus=on_gpus)
    found = step_parts(steps, step_s.max(axis=0), timed, nodes or [*range(len(own_s))], loaders)
    parts = (found.compute_s, found.exposed_comm_s, found.data_wait_s, found.imbalance_s)
    assert sum(part or 0.0 for part in parts) <= found.step_s + 1e-12
    assert found.step_s == pytest.approx(step_s.mean(), rel=0.02)
    assert found.exposed_comm_s == pytest.approx(LINK_S, rel=1e-6)
    return found


def constant(ranks: int, steps: int = STEPS) -> Array:
    """Return the compute of equal ranks, with noise of 0.1 ms."""
    noise: Array = np.random.default_rng(ranks).normal(0, 1e-4, (ranks, steps))
    return COMPUTE_S + noise


def slow_on(where: Callable[[Array, Array], npt.NDArray[np.bool_]], ranks: int) -> Array:
    """Return compute that is longer where ``where(rank, step)`` is true."""
    rank, step = np.meshgrid(np.arange(ranks), np.arange(STEPS), indexing="ij")
    slow: Array = constant(ranks) + SLOW_S * where(rank, step)
    return slow


def is_split(found: StepParts, kind: str | None, imbalance_s: float, compute_s: float = COMPUTE_S) -> None:
    assert found.imbalance_s == pytest.approx(imbalance_s, rel=0.05, abs=2e-4)
    assert found.compute_s == pytest.approx(compute_s, rel=0.05)
    if imbalance_s > 0.001:
        assert found.imbalance_kind == kind


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_one_rank_is_slow_in_every_step(ranks: int) -> None:
    found = split(slow_on(lambda rank, step: rank == 1, ranks))
    is_split(found, "persistent", SLOW_S)
    assert found.slow_ranks == (1,)
    assert found.imbalance_compute_s == pytest.approx(SLOW_S, rel=0.05)


def test_one_rank_is_slow_from_half_of_the_run_on_while_all_become_slower() -> None:
    growth_s = np.linspace(0, 0.03, STEPS)
    found = split(slow_on(lambda rank, step: (rank == 1) & (step >= STEPS // 2), 2) + growth_s)
    is_split(found, "persistent", SLOW_S / 2, COMPUTE_S + 0.015)


@pytest.mark.parametrize(("ranks", "most"), [(2, 1.5), (4, 25 / 12), (8, 761 / 280)])
def test_random_work_of_each_rank_and_step_is_imbalance_beyond_its_mean(ranks: int, most: float) -> None:
    """Of n exponential times, the longest is 1 + 1/2 + ... + 1/n of their mean."""
    random_s = np.random.default_rng(0).exponential(SLOW_S, (ranks, STEPS))
    found = split(constant(ranks) + random_s)
    assert found.imbalance_s == pytest.approx((random_s.max(axis=0) - random_s.mean(axis=0)).mean(), rel=0.02)
    assert found.imbalance_s == pytest.approx((most - 1) * SLOW_S, rel=0.15)
    is_split(found, "varying", found.imbalance_s, COMPUTE_S + random_s.mean())


def test_a_checkpoint_of_one_rank_is_occasional() -> None:
    """To leave out its node would not help: another rank would write it."""
    rank, step = np.meshgrid(np.arange(2), np.arange(STEPS), indexing="ij")
    found = split(constant(2), rest_s=REST_S + 10 * SLOW_S * ((rank == 0) & (step % 10 == 5)))
    is_split(found, "occasional", SLOW_S)
    assert found.slow_ranks == (0,)
    assert found.imbalance_compute_s == pytest.approx(0, abs=2e-4)


def test_a_node_is_the_place_whether_its_ranks_take_turns_or_one_is_always_the_last() -> None:
    turns = slow_on(lambda rank, step: (rank >= 2) & ((rank + step) % 2 == 0), 4)
    last = slow_on(lambda rank, step: rank >= 2, 4)
    last[3] += 0.001
    for compute_s in (turns, last):
        found = split(compute_s, nodes=[0, 0, 1, 1])
        assert (found.imbalance_kind, found.slow_ranks) == ("persistent", (2, 3))


@pytest.mark.parametrize(
    ("batch_s", "data_s", "imbalance_s", "kind"),
    [
        ([0.08, 0.08, 0.08, 0.08], 0.045, 0.0, None),  # 80 ms for a batch, 35 for the rest of the step
        ([0.01, 0.01, 0.08, 0.01], 0.0, 0.045, "persistent"),
        ([0.05, 0.05, 0.08, 0.05], 0.015, 0.03, "persistent"),
        ([None, None, None, None], 0.045, 0.0, None),  # no rank is blamed
    ],
    ids=["all are slow", "one is slow", "one is slower", "not known"],
)
def test_a_wait_that_collects_on_one_loader(
    batch_s: list[float | None], data_s: float, imbalance_s: float, kind: str | None
) -> None:
    """While the others wait for rank 2, their workers catch up, so it alone waits for data, whoever is slow."""
    waits_s = np.zeros((4, STEPS))
    waits_s[2] = 0.045
    found = split(constant(4), waits_s, loaders=LoaderSpeeds(prefetch=True, batch_s=batch_s))
    assert found.data_wait_s == pytest.approx(data_s, abs=3e-4)
    assert found.imbalance_data_s == pytest.approx(imbalance_s, abs=3e-4)
    is_split(found, kind, imbalance_s)


def test_on_a_gpu_only_the_wait_that_the_gpu_does_not_work_through_counts() -> None:
    found = split(constant(2), 0.0, REST_S, on_gpus=True)
    assert found.data_wait_s == 0.0
    waits_s = np.full((2, STEPS), 0.02)
    on_gpu = step_parts(
        RankSteps(np.full((2, STEPS), 0.036), waits_s, constant(2), waits_s * 0, waits_s * 0, on_gpus=True),
        np.full(STEPS, 0.036), np.ones(STEPS, bool), [0, 1], NO_WORKERS,
    )  # fmt: skip
    assert on_gpu.data_wait_s == pytest.approx(0.006, rel=0.05)


def test_without_ddps_times_only_what_the_ranks_steps_differ_by_is_told() -> None:
    step_s = np.array([[0.05], [0.07], [0.05]]) + np.zeros((3, STEPS))
    found = step_parts(
        RankSteps(step_s, step_s / 10, None, None, None, on_gpus=False),
        step_s.max(axis=0), np.ones(STEPS, bool), [0, 1, 2], NO_WORKERS,
    )  # fmt: skip
    assert (found.timed_steps, found.compute_s, found.exposed_comm_s) == (0, None, None)
    assert (found.imbalance_kind, found.slow_ranks) == ("persistent", (1,))
    assert found.imbalance_s == pytest.approx(0.02)
    assert found.data_wait_s == pytest.approx(0.005)


def with_collectives(collectives_s: Array | None, of_each: list[list[Exchange]], ddp: bool) -> StepParts:
    """Return the parts of steps of 100 ms on two ranks, of which DDP times 60 ms, with 5 ms exposed."""
    full = np.full((2, STEPS), 1.0)
    times = (0.06 * full, 0.005 * full, 0 * full) if ddp else (None, None, None)
    return step_parts(
        RankSteps(0.1 * full, 0 * full, *times, False, collectives_s, of_each),
        np.full(STEPS, 0.1), np.ones(STEPS, bool), [0, 1], NO_WORKERS,
    )  # fmt: skip


def test_buffers_are_communication_and_no_compute_although_ddp_times_them_as_its_forward_pass() -> None:
    buffers = Exchange(name="buffers", calls=1.0, bytes=6e7, seconds=0.04)
    found = with_collectives(np.full((2, STEPS), 0.04), [[buffers], [buffers]], ddp=True)
    assert found.exposed_comm_s == pytest.approx(0.045)
    assert found.compute_s == pytest.approx(0.02)
    (sent,) = found.exchanges
    assert (sent.name, sent.calls, sent.bytes) == ("buffers", pytest.approx(1.0), pytest.approx(6e7))
    assert sent.seconds == pytest.approx(0.04)
    unknown = with_collectives(None, [[buffers], [buffers]], ddp=True)
    assert (unknown.exposed_comm_s, unknown.compute_s) == (pytest.approx(0.005), pytest.approx(0.06))
    assert (unknown.exchanges[0].bytes, unknown.exchanges[0].seconds) == (pytest.approx(6e7), None)


@pytest.mark.parametrize("ddp", [True, False])
def test_a_rank_that_waits_at_a_barrier_is_not_slow(ddp: bool) -> None:
    waits_s = np.array([[0.03], [0.0]]) + np.zeros((2, STEPS))
    of_each = [[Exchange(name="barrier", calls=1.0, bytes=0.0, seconds=float(s.mean()))] for s in waits_s]
    found = with_collectives(waits_s, of_each, ddp)
    assert (found.imbalance_kind, found.slow_ranks) == ("persistent", (1,))
    assert found.imbalance_s == pytest.approx(0.03)
    assert found.exposed_comm_s == pytest.approx(0.005 if ddp else 0.0)
    assert (found.compute_s is None, found.timed_steps) == ((False, STEPS) if ddp else (True, 0))
    assert found.exchanges[0].seconds == pytest.approx(0.0)


def held_up_by_definition(own_s: Array, imbalance_s: float, weights: Array, nodes: Sequence[int]) -> HeldUp:
    """Return the same as held_up, from what each place alone makes each step longer."""
    by_rank = [np.arange(len(nodes)) == rank for rank in range(len(nodes))]
    by_node = [np.array(nodes) == node for node in sorted({*nodes})]
    for places in (by_rank, by_node):
        if len(places) > 1:
            saved_s = np.array([own_s.max(axis=0) - own_s[~place].max(axis=0) for place in places])
            means_s = saved_s @ weights
            worst = int(means_s.argmax())
            share = means_s[worst] / (means_s.sum() or 1.0)
            if share >= (1 + 1 / len(places)) / 2 and means_s[worst] >= imbalance_s / 2:
                steps = (saved_s[worst] > means_s[worst] / 2) @ weights
                return "persistent" if steps >= MOST_STEPS else "occasional", tuple(np.flatnonzero(places[worst]))
    return "varying", ()


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_who_holds_up_the_others_is_who_makes_the_steps_longer(data: st.DataObject) -> None:
    """Times with ties, unknown ones, several ranks on a node, in any order of the nodes."""
    nodes = data.draw(st.lists(st.integers(0, 3), min_size=2, max_size=7))
    steps = data.draw(st.sampled_from((1, 8, 16)))  # weights without rounding
    times_s = st.lists(st.integers(0, 6), min_size=steps, max_size=steps)
    own_s = np.array([data.draw(times_s) for _ in nodes], float)
    slow, often = np.array(nodes) == data.draw(st.sampled_from(nodes)), data.draw(st.integers(1, steps))
    own_s[slow, :often] += data.draw(st.sampled_from((0, 4, 20)))
    if data.draw(st.sampled_from((False, False, False, True))):
        own_s[data.draw(st.integers(0, len(nodes) - 1)), 0] = np.nan
    imbalance_s, weights = data.draw(st.sampled_from((0.5, 2.0, 6.0))), np.full(steps, 1 / steps)
    assert held_up(own_s, imbalance_s, weights, nodes) == held_up_by_definition(own_s, imbalance_s, weights, nodes)
