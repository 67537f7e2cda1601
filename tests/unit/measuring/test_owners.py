"""Every second of a run has one owner, and they add up to the wall time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from ddp_ladder.assembly.assemble import assemble
from ddp_ladder.common.files import RunDirectory
from ddp_ladder.measuring.owners import OWNERS, UNEXPLAINED
from ddp_ladder.records.record import Record
from make_records import make_spec
from make_runs import (
    LOOP_AT_S,
    STARTUP_S,
    add_ddp_times,
    edit_phases,
    end_run,
    read_steps,
    write_loop,
    write_run,
    write_steps,
)

STEPS, STEP_S, DATA_S = 100, 0.1, 0.02
LAUNCH_S = 0.1  # from the job's begin to the launcher's, in make_runs


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return write_run(tmp_path, make_spec("1x2"))


def wall_s(record: Record) -> float:
    return record.timing.wall_s


def owners(record: Record) -> dict[str, float]:
    assert [*record.owners_s] == [name for name in OWNERS if name in record.owners_s]
    assert sum(record.owners_s.values()) == pytest.approx(wall_s(record), rel=0.001)
    return {name: round(seconds, 2) for name, seconds in record.owners_s.items()}


def both(run: RunDirectory, after_s: float = 0.5, **loop: object) -> Record:
    """Write the same steps on both ranks, on hosts whose clocks are an hour apart."""
    ended_s = 0.0
    for rank, offset_s in ((0, 0.0), (1, 3600.0)):
        ended_s = write_loop(
            run,
            rank,
            **{"steps_s": [STEP_S] * STEPS, "data_wait_s": DATA_S, "offset_s": offset_s, **loop},  # type: ignore[arg-type]
        )
    end_run(run, ended_s, after_s)
    return assemble(run)


def test_each_kind_of_pause_has_its_owner(run: RunDirectory) -> None:
    pauses = {20: ("validation", 2.0), 40: ("save", 3.0), 60: ("epoch", 1.0), 80: ("eval mode", 0.25)}
    record = both(run, after_s=72.0, pauses=pauses, end_s=4.0)
    loop_s = (STEPS - 1) * STEP_S
    assert owners(record) == {
        "launcher": round(LAUNCH_S + 72, 2), "start-up": STARTUP_S, "waiting for data": round(0.2 * loop_s, 2),
        "computation and communication": round(0.8 * loop_s, 2), "validation": 2.0, "saving": 3.0,
        "between passes": 1.0, "beside steps": 0.25, "end": 4.0, "unexplained": 0.0,
    }  # fmt: skip
    assert record.remarks == ()


def test_the_steps_are_split_as_the_mean_step_is(run: RunDirectory) -> None:
    both(run)
    for rank in (0, 1):
        add_ddp_times(run, rank, 0.05, 0.03)
    found = owners(assemble(run))
    loop_s = (STEPS - 1) * STEP_S
    assert found["exposed communication"] == pytest.approx(0.3 * loop_s, abs=0.02)
    assert found["waiting for data"] == pytest.approx(0.2 * loop_s, abs=0.02)
    assert found["computation"] == pytest.approx(0.5 * loop_s, abs=0.03)


def test_a_save_inside_a_step_is_no_computation(run: RunDirectory) -> None:
    """On rank 0; rank 1 waits in its own step."""
    steps_s = [STEP_S + (k in (30, 60)) for k in range(1, STEPS + 1)]
    both(run, steps_s=steps_s)
    edit_phases(run, 0, saves_s=[(28 * STEP_S, 28 * STEP_S + 1), (58 * STEP_S + 1, 58 * STEP_S + 2)])
    found = owners(assemble(run))
    assert found["saving"] == 2.0
    assert found["waiting for data"] + found["computation and communication"] == pytest.approx(9.9, abs=0.02)


def test_a_step_that_compiles_has_the_usual_computation_too(run: RunDirectory) -> None:
    """On rank 0, in the middle of the run and in a validation; rank 1 waits."""
    steps_s = [STEP_S + (k == 30) for k in range(1, STEPS + 1)]
    both(run, steps_s=steps_s, pauses={60: ("validation", 2.0)})
    validated_s = 58 * STEP_S + 1
    compiles_s = [(28 * STEP_S, 28 * STEP_S + 1.02), (validated_s + 0.2, validated_s + 1)]
    edit_phases(run, 0, validations_s=[(validated_s, validated_s + 2)], compiles_s=compiles_s)
    found = owners(assemble(run))
    assert (found["compilation"], found["validation"]) == (1.0, 2.0)
    assert found["waiting for data"] + found["computation and communication"] == pytest.approx(9.9, abs=0.02)


def test_a_save_in_the_background_costs_nothing(run: RunDirectory) -> None:
    both(run)
    edit_phases(run, 0, saves_s=[(1, 4)])
    record = assemble(run)
    assert owners(record)["saving"] < 0.01
    assert record.remarks == ()  # nor does it hold up a rank


def test_a_validation_and_a_save_after_the_last_step(run: RunDirectory) -> None:
    both(run, end_s=5.0)
    last_s = (STEPS - 1) * STEP_S
    overlapping = [(last_s + 2.0, last_s + 3.5)]  # both at the same time: one owner
    edit_phases(run, 0, validations_s=[(last_s + 0.5, last_s + 2.5)], saves_s=overlapping)
    found = owners(assemble(run))
    assert (found["validation"], found["saving"], found["end"]) == (2.0, 1.0, 2.0)


def test_a_gpu_that_is_behind_its_host_still_computes(run: RunDirectory) -> None:
    """The host launches 100 steps of 100 ms within 1 s and waits: that time is no end, and no pause."""
    for rank in (0, 1):
        write_loop(run, rank, steps_s=[0.01] * STEPS, end_s=0.3 + 99 * 0.09)
        write_steps(run, rank, [[*row[:3], "0.1", *row[4:]] for row in read_steps(run, rank)])
    end_run(run, LOOP_AT_S + 9.9 + 0.3)
    found = owners(assemble(run))
    assert found["waiting for data"] + found["computation and communication"] == pytest.approx(9.9, abs=0.01)
    assert (found["end"], found["unexplained"]) == (0.3, 0.0)


@pytest.mark.parametrize(("pause_s", "remarks"), [(0.5, 0), (2.0, 1)])
def test_time_that_nothing_explains_makes_the_figure_doubtful(run: RunDirectory, pause_s: float, remarks: int) -> None:
    record = both(run, pauses={50: ("nothing", pause_s)})
    assert owners(record)[UNEXPLAINED] == pause_s
    assert [remark.kind for remark in record.remarks] == [UNEXPLAINED] * remarks
    if remarks:
        assert "2.00 s of 17.0 s are unexplained" in record.remarks[0].measured


@pytest.mark.parametrize("seed", range(40))
def test_the_owners_are_those_of_the_world(run: RunDirectory, seed: int) -> None:
    """Ranks pause together, or one of them alone while the other waits in its step; clocks and steps differ."""
    random = np.random.default_rng(seed)
    own_s, kinds = random.uniform(0.01, 0.2, STEPS), ("validation", "save", "epoch", "nothing")
    pauses = {int(k): (str(random.choice(kinds)), float(random.exponential(0.4))) for k in random.integers(2, 100, 9)}
    who = {
        k: [0, 1] if kind in ("epoch", "nothing") or random.random() < 0.5 else [int(random.integers(2))]
        for k, (kind, _) in pauses.items()
    }
    for rank in (0, 1):
        waits_s = [pauses[k][1] if rank not in who.get(k, [rank]) else 0.0 for k in range(1, STEPS + 1)]
        own = {k: pause for k, pause in pauses.items() if rank in who[k]}
        offset_s = float(random.uniform(-1e4, 1e4))
        ended_s = write_loop(run, rank, steps_s=(own_s + waits_s).tolist(), pauses=own, offset_s=offset_s, end_s=0.2)
    end_run(run, ended_s)
    found = owners(assemble(run))
    true = {kind: sum(seconds for name, seconds in pauses.values() if name == kind) for kind in kinds}
    assert found["validation"] == pytest.approx(true["validation"], abs=0.03)
    assert found["saving"] == pytest.approx(true["save"], abs=0.03)
    assert found["between passes"] == pytest.approx(true["epoch"], abs=0.03)
    assert found["unexplained"] == pytest.approx(true["nothing"], abs=0.03)
    assert found["computation and communication"] == pytest.approx(own_s[1:].sum(), abs=0.03)


def test_nothing_is_said_of_steps_without_their_ends(run: RunDirectory) -> None:
    assert assemble(run).owners_s == {}
