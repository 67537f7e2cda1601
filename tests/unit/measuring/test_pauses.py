"""What one rank makes the others wait for is in no step, and its rank is named; uneven inputs end at the shortest."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from ddp_ladder.assembly.assemble import assemble, record_of
from ddp_ladder.common.files import RunDirectory
from ddp_ladder.measuring.owners import without_waits
from ddp_ladder.records.raw_files import read_raw_run
from ddp_ladder.records.record import Record
from make_records import make_spec
from make_runs import add_ddp_times, edit_phases, end_run, write_loop, write_run

STEPS, STEP_S, PAUSE_S = 100, 0.08, 1.0
EVERY_25TH = (26, 51, 76)
GLOBAL_BATCH = 128


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return write_run(tmp_path, make_spec("1x2"))


def alone(run: RunDirectory, kind: str, inside: bool = False, offset_s: float = 0.0, first: int = 0) -> None:
    """Let rank ``first`` validate or save while the other rank waits in its step. inside: also in the first's step."""
    calm, long = [STEP_S] * STEPS, [STEP_S + PAUSE_S * (k in EVERY_25TH) for k in range(1, STEPS + 1)]
    pauses = {} if inside else dict.fromkeys(EVERY_25TH, (kind, PAUSE_S))
    ended_s = write_loop(run, first, steps_s=long if inside else calm, pauses=pauses)
    write_loop(run, 1 - first, steps_s=long, offset_s=offset_s)
    end_run(run, ended_s)


def rate(record: Record) -> float:
    return record.throughput.samples_per_s


@pytest.mark.parametrize(
    ("kind", "does", "cure"),
    [("validation", "validates", "let every rank validate"), ("save", "saves", "save less often")],
)
@pytest.mark.parametrize(("first", "offset_s"), [(0, 3600.0), (1, -0.7)])
def test_the_rank_that_the_others_wait_for_is_named(
    run: RunDirectory, kind: str, does: str, cure: str, offset_s: float, first: int
) -> None:
    """The clocks of two hosts may differ by any time."""
    alone(run, kind, offset_s=offset_s, first=first)
    record = assemble(run)
    assert rate(record) == pytest.approx(GLOBAL_BATCH / STEP_S, rel=0.01)
    assert record.throughput.samples_per_s_total == pytest.approx(GLOBAL_BATCH / STEP_S, rel=0.01)
    assert record.step.imbalance_s < 0.01 * STEP_S
    (remark,) = record.remarks
    share = 100 * 3 * PAUSE_S / ((STEPS - 1) * STEP_S + 3 * PAUSE_S)
    assert remark.kind == "one rank alone"
    assert f"rank {first} {does} {share:.1f} s of each 100 s while the others wait" in remark.measured
    assert cure in remark.next


@pytest.mark.parametrize(("saving", "share"), [((0,), "27.5"), ((0, 1), None)])
def test_a_save_in_a_step_of_every_rank_stays_there(run: RunDirectory, saving: tuple[int, ...], share: str) -> None:
    """On one GPU it is in the step, too. The rank that saves alone is named."""
    alone(run, "", inside=True)
    begins_s = [(k - 2) * STEP_S + n for n, k in enumerate(EVERY_25TH)]
    for rank in saving:
        edit_phases(run, rank, saves_s=[(begin_s, begin_s + 1) for begin_s in begins_s])
    record = assemble(run)
    assert rate(record) == pytest.approx(GLOBAL_BATCH / (STEP_S + 0.03 * PAUSE_S), rel=0.1)
    remarks = [remark.measured for remark in record.remarks]
    said = f"rank 0 saves {share} s of each 100 s while the others wait; this is in the steps of all ranks"
    assert remarks == ([said] if share else [])


def test_a_rank_that_is_slow_remains_the_one_to_look_at(run: RunDirectory) -> None:
    """Rank 1 is slower in each step; rank 0 waits for it in its steps, and validates alone."""
    pauses = dict.fromkeys(EVERY_25TH, ("validation", PAUSE_S))
    write_loop(run, 0, steps_s=[STEP_S] * STEPS, pauses=pauses)
    end_run(run, write_loop(run, 1, steps_s=[STEP_S + PAUSE_S * (k in EVERY_25TH) for k in range(1, STEPS + 1)]))
    for rank, compute_s, exposed_s in ((0, 0.03, 0.03), (1, 0.058, 0.002)):
        add_ddp_times(run, rank, compute_s, exposed_s)
    record = assemble(run)
    assert (record.step.imbalance_kind, record.step.slow_ranks) == ("persistent", (1,))
    assert record.step.step_s == pytest.approx(STEP_S, rel=0.01)


def test_the_wait_is_taken_off_ddps_exchange(run: RunDirectory) -> None:
    """Without a barrier the other rank waits in the exchange of gradients, which DDP times."""
    alone(run, "validation")
    add_ddp_times(run, 0, 0.05, 0.01)
    add_ddp_times(run, 1, 0.05, 0.01)
    raw = read_raw_run(run)
    raw.ranks[1].steps.ddp.times_s[[k - 1 for k in EVERY_25TH], 2] += PAUSE_S
    corrected, _ = without_waits(raw)
    for files in corrected.ranks.values():
        forward_s, backward_s, comm_s, overlap_s = files.steps.ddp_s.T
        assert (forward_s + backward_s + comm_s - overlap_s <= files.steps.step_time_s + 1e-9).all()
        assert comm_s.min() >= 0.01 - 1e-9


def test_the_wait_is_taken_off_the_barrier(run: RunDirectory) -> None:
    """It is one of the collectives that DDP does not time; what the rank's own collectives take remains."""
    alone(run, "validation")
    for rank in (0, 1):
        add_ddp_times(run, rank, 0.05, 0.01, collectives_s=0.004)
    before = assemble(run).step
    raw = read_raw_run(run)
    files = raw.ranks[1]
    collectives_s = np.where([k in EVERY_25TH for k in range(1, STEPS + 1)], 0.004 + PAUSE_S, 0.004)
    longer = replace(files, steps=replace(files.steps, collectives_s=collectives_s))
    raw = replace(raw, ranks={**raw.ranks, 1: longer})
    corrected, _ = without_waits(raw)
    for files in corrected.ranks.values():
        assert files.steps.collectives_s == pytest.approx(np.full(STEPS, 0.004), abs=0.002)
        assert files.steps.ddp_s[:, 2] == pytest.approx(np.full(STEPS, 0.01), abs=1e-6)
    step = record_of(raw).step
    assert step.exposed_comm_s == pytest.approx(before.exposed_comm_s, abs=1e-4)
    assert step.step_s == pytest.approx(STEP_S, rel=0.01)


@pytest.mark.parametrize("kind", ["eval mode", "epoch"])
def test_ranks_that_wait_in_no_step_are_held_up_too(run: RunDirectory, kind: str) -> None:
    """All ranks call eval(), or are between two passes; rank 0 alone passes over the validation data."""
    for rank, of_rank in ((0, "validation"), (1, kind)):
        pauses = dict.fromkeys(EVERY_25TH, (of_rank, PAUSE_S))
        end_run(run, write_loop(run, rank, steps_s=[STEP_S] * STEPS, pauses=pauses))
    record = assemble(run)
    assert rate(record) == pytest.approx(GLOBAL_BATCH / STEP_S, rel=0.01)
    assert [remark.kind for remark in record.remarks] == ["one rank alone"]
    assert "rank 0 validates 27.5 s of each 100 s while the others wait" in record.remarks[0].measured


# Uneven inputs


def uneven(run: RunDirectory, joins: bool) -> Record:
    write_loop(run, 0, steps_s=[STEP_S] * STEPS, joins_uneven=joins)
    end_run(run, write_loop(run, 1, steps_s=[STEP_S] * (STEPS + 20), joins_uneven=joins))
    return assemble(run)


def test_uneven_inputs_in_ddps_join_are_measured_to_the_shortest_rank(run: RunDirectory) -> None:
    record = uneven(run, joins=True)
    assert (record.status, record.failure) == ("ok", None)
    assert [rank.steps for rank in record.ranks] == [STEPS, STEPS]
    assert rate(record) == pytest.approx(GLOBAL_BATCH / STEP_S)
    assert record.throughput.samples_per_s_end_to_end == pytest.approx(GLOBAL_BATCH / STEP_S, rel=0.05)
    (remark,) = record.remarks
    assert remark.kind == "uneven inputs"
    assert f"of the first {STEPS} steps of every rank" in remark.measured
    assert "(20 of rank 1) with 9.1 % of the samples" in remark.measured
    check = next(check for check in record.checks if check.kind == "equal steps")
    assert (check.ok, check.measured) == (True, "rank 0 made 100 steps, rank 1 made 120, in DDP's join()")


def test_unequal_steps_without_join_close_the_gate(run: RunDirectory) -> None:
    record = uneven(run, joins=False)
    assert record.failure.verdict == "the ranks made different numbers of steps"
    assert "join()" in record.failure.next
