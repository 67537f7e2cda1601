"""Throughput and timing of a run, from its steps or its log; its start-up; and its steps against its whole loop."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from ddp_ladder.assembly.assemble import assemble
from ddp_ladder.common.files import Agent
from ddp_ladder.common.findings import Finding
from ddp_ladder.measuring.statistic import Warmup, median_interval
from ddp_ladder.measuring.timing import (
    block_edges,
    log_figures,
    measure,
    printed_rates,
    remark_on_loop,
    startup_of,
)
from ddp_ladder.records.raw_models import RankPhases
from ddp_ladder.records.record import Rank
from ddp_ladder.records.steps import Steps
from make_records import make_rank, make_spec
from make_runs import edit, write_run, write_steps

NO_WARMUP = Warmup(0, True)


def steps(times_s: list[float], samples: int = 8, padding: int = 0, wait_s: float = 0.0) -> Steps:
    count = len(times_s)
    return Steps(
        size=np.ones(count, int),
        samples=np.full(count, samples),
        padding_samples=np.full(count, padding),
        step_time_s=np.array(times_s),
        data_wait_s=np.full(count, wait_s),
    )


@pytest.mark.parametrize(
    ("count", "step_s", "blocks", "shortest", "longest"),
    [
        (30, 0.01, 10, 3, 3),  # too short for blocks of 1 s: ten of them
        (39, 0.01, 13, 3, 3),
        (40, 5.0, 40, 1, 1),  # a step is longer than a block
        (2000, 0.01, 20, 100, 100),  # blocks of 1 s
        (5, 0.01, 5, 1, 1),  # fewer steps than blocks
        (1, 0.01, 1, 1, 1),
        (10_000, 2.0, 200, 50, 50),  # no more than 200
        (399, 2.0, 199, 2, 3),
    ],
)
def test_block_edges(count: int, step_s: float, blocks: int, shortest: int, longest: int) -> None:
    edges = block_edges(np.full(count, step_s))
    assert len(edges) == blocks
    assert (min(map(len, edges)), max(map(len, edges))) == (shortest, longest)
    assert np.concatenate(edges).tolist() == list(range(count))


def test_by_hand() -> None:
    """Two ranks, one warm-up step, twenty steps in ten blocks of two; a slow one moves the total alone."""
    rank0 = steps([9.0, 0.25, 0.75, 0.5, 0.5, *[0.5] * 16], padding=3, wait_s=0.05)
    rank1 = steps([9.0, 0.50, 0.25, 1.0, 1.0, *[0.5] * 16], padding=3, wait_s=0.15)
    throughput, timing = measure([rank0, rank1], Warmup(1, True), [0.1, 0.3, 0.2], 4.5, 30.0)
    # First block: max(0.25 + 0.75, 0.5 + 0.25) = 1 s, not the sum of the slowest steps, 1.25 s.
    # Second: 2 s. Samples: 2 ranks x 2 steps x 8, padding not counted.
    assert throughput.blocks_samples_per_s == (32.0, 16.0, *[32.0] * 8)
    assert throughput.samples_per_s == 32.0
    assert throughput.samples_per_s_total == pytest.approx(320 / 11)
    assert timing.blocks_step_time_s == (0.5, 1.0, *[0.5] * 8)
    assert timing.step_time_s == 0.5
    assert (timing.warmup_steps, timing.measured_steps) == (1, 20)
    assert timing.data_wait_fraction == pytest.approx(20 * 0.2 / (10.0 + 10.75))
    assert timing.exposed_comm_fraction == pytest.approx(0.2 / 0.5)
    assert (timing.startup_s, timing.wall_s) == (4.5, 30.0)
    assert throughput.samples_per_s_end_to_end is None


@pytest.mark.parametrize(
    ("count", "outside"), [(1, 0), (2, 0), (5, 0), (6, 0), (8, 0), (9, 1), (12, 2), (20, 5), (50, 17)]
)
def test_the_intervals_ends_are_those_of_the_tables(count: int, outside: int) -> None:
    """Ranks as tabulated for the 95 % interval of a median, such as the 6th and 15th of 20 values."""
    values = np.random.default_rng(7).permutation(np.arange(1.0, count + 1))
    assert median_interval(values)[1:] == (1.0 + outside, count - outside)


@pytest.mark.parametrize(("growth", "count"), [(1.3, 600), (0.8, 600), (1.0, 600), (1.3, 30)])
def test_drift_is_the_last_third_against_the_first(growth: float, count: int) -> None:
    times_s = np.repeat([0.1, 0.1 * np.sqrt(growth), 0.1 * growth], count // 3).tolist()
    _, timing = measure([steps(times_s)], NO_WARMUP, [], None, 9.0)
    assert timing.drift_fraction == pytest.approx(growth - 1)


# Rates that a program prints


PATTERN = r"throughput: ([0-9.e+]+) samples/s"


def test_every_match_of_every_line_counts(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_bytes(
        b"starting\nthroughput: 10 samples/s\rthroughput: 2e1 samples/s\n"
        b"[rank0] throughput: 30.5 samples/s, throughput: 31 samples/s \xff\n"
        b"throughput: 1.2.3 samples/s\nthroughput: 0 samples/s\nthroughput: 1e999 samples/s\nthroughput: samples/s\n"
    )
    assert printed_rates(log, PATTERN) == (10, 20, 30.5, 31)
    assert printed_rates(tmp_path / "absent.log", PATTERN) == ()


def test_figures_are_medians_after_the_warm_up() -> None:
    throughput, timing = log_figures((1, 100, 200, 400), 1, 50, 9.0)
    assert (throughput.samples_per_s, throughput.source) == (200, "log")
    assert (throughput.samples_per_s_low, throughput.samples_per_s_high) == (100, 400)
    assert throughput.blocks_samples_per_s == (100, 200, 400)
    assert (timing.step_time_s, timing.warmup_steps, timing.measured_steps) == (0.25, 1, 3)
    assert timing.data_wait_fraction is None


@pytest.mark.parametrize("missing", ["left_out_bytes", "lost_bytes"])
def test_a_log_with_a_gap_gives_no_throughput(tmp_path: Path, missing: str) -> None:
    run = write_run(tmp_path, make_spec("1x1", throughput_regex=PATTERN))
    write_steps(run, 0, [])  # as of a program that cannot be instrumented
    run.log.write_text("throughput: 100 samples/s\n" * 50)
    for gap, status in ((0, "ok"), (1_234_567, "failed")):
        log = {"bytes": 9_000_000, "left_out_bytes": 0, "lost_bytes": 0, "error": None, missing: gap}
        edit(run.agent_end(Agent(0)), lambda end, log=log: end.update(log=log))
        record = assemble(run)
        assert record.status == status
    assert (record.failure.verdict, record.failure.why) == (
        "the log is incomplete",
        "1,234,567 bytes of the output are not in the log",
    )
    assert "logs.max_mb_per_node" in record.failure.next


# The start-up's parts, of one rank


def started(number: int, **startup_s: float | None) -> Rank:
    return make_rank(make_spec("1x4"), number, 0.1, ["node0"]).replace(startup_s=startup_s)


NAMES = ("spawn_s", "import_torch_s", "process_group_s", "script_s", "first_step_s", "s", "compile_s")


def startup_parts(*ranks: Rank) -> list[float | None]:
    found = startup_of(ranks)
    return [found[f"startup_{name}"] for name in NAMES]


def test_the_parts_are_those_of_the_rank_that_took_longest_and_add_up() -> None:
    early = started(0, spawn=1.0, import_torch=2.0, process_group=9.0, first_step=0.5, compile=0.25, total=14.0)
    late = started(1, spawn=4.0, import_torch=6.0, process_group=0.125, first_step=0.75, compile=0.5, total=14.25)
    assert startup_parts(early, late) == startup_parts(late, early) == [4.0, 6.0, 0.125, 3.375, 0.75, 14.25, 0.5]


def test_what_was_not_measured_is_the_scripts_and_never_negative() -> None:
    """Such as the process group of the plain baseline; the total, by another clock, may be shorter than the parts."""
    plain = started(0, spawn=1.0, import_torch=2.0, process_group=None, first_step=0.5, total=4.0)
    assert startup_parts(plain) == [1.0, 2.0, None, 0.5, 0.5, 4.0, None]
    assert startup_parts(started(0, spawn=1.0, import_torch=2.0, first_step=0.5, total=3.499))[3] == 0


# The figure of a run against its whole loop: 100 steps of 10 ms and 8 samples, on two ranks


STEPS, STEP_S, BATCH = 100, 0.01, 8
RATE = 2 * BATCH / STEP_S
EVERY_16TH = range(16, STEPS, 16)


def judged(
    gaps: Sequence[int],
    gap_s: float,
    validation: str = "",
    of_ranks: tuple[int, ...] = (0, 1),
    slow: bool = False,
    is_witnessed: bool = False,
) -> Finding | None:
    """Judge a run with a gap before each of some steps. slow: the gap is part of the step.

    validation: what the ranks ``of_ranks`` know of the gaps: ``over a loader``, ``in eval mode``, ``save``, ``rest``.
    """
    ranks = []
    for rank in (0, 1):
        extra_s = np.zeros(STEPS)
        extra_s[list(gaps)] = gap_s
        ended_s = 1e9 + np.cumsum(STEP_S + extra_s)
        spans = tuple((ended_s[k] - STEP_S - gap_s, ended_s[k] - STEP_S) for k in gaps if validation)
        spans = spans if rank in of_ranks else ()
        phases = RankPhases(
            epoch_steps=(),
            validations_s=() if validation in ("save", "rest") else spans,
            without_a_pass_s=spans if validation == "in eval mode" else (),
            saves_s=spans if validation == "save" else (),
            rests_s=spans if validation == "rest" else (),
        )
        samples = np.full(STEPS, BATCH)
        times_s = np.full(STEPS, STEP_S) + (extra_s if slow else 0.0)
        ranks.append((Steps(np.ones_like(samples), samples, 0 * samples, times_s, 0 * times_s, ended_s), phases))
    return next(remark_on_loop(RATE, ranks, 10, is_witnessed), None)


@pytest.mark.parametrize("validation", ["", "in eval mode"])
def test_time_in_no_step_that_recurs_is_remarked(validation: str) -> None:
    """A rollout every 16 steps: in eval mode, or between two passes over a loader of its own."""
    remark = judged(EVERY_16TH, 0.3, validation)
    assert "1,600 samples/s" in remark.measured
    assert "533 samples/s" in remark.measured  # 90 steps and all 6 rollouts, as the script's own clock would say
    assert "what the script does between its steps" in remark.next


@pytest.mark.parametrize("of_ranks", [(0, 1), (0,)])
@pytest.mark.parametrize("known", ["over a loader", "save"])
def test_known_validations_and_checkpoints_explain_themselves(known: str, of_ranks: tuple[int, ...]) -> None:
    assert judged(EVERY_16TH, 0.3, known, of_ranks) is None


@pytest.mark.parametrize(
    ("kind", "of_ranks", "is_witnessed", "is_remarked"),
    [
        ("rest", (0,), False, False),
        ("in eval mode", (1,), False, False),
        ("rest", (0, 1), False, True),
        ("rest", (0, 1), True, False),
        ("in eval mode", (0, 1), True, True),
    ],
)
def test_what_one_rank_does_alone_or_a_witness_excludes_is_no_training(
    kind: str, of_ranks: tuple[int, ...], is_witnessed: bool, is_remarked: bool
) -> None:
    remark = judged(EVERY_16TH, 0.3, kind, of_ranks, is_witnessed=is_witnessed)
    assert (remark is not None) == is_remarked


def test_the_whole_loop_has_the_longest_pause_and_no_rank_twice() -> None:
    """Ranks that rest in turn: the loop lasts as long as a rank's own clock says, not the sum of all their rests."""
    samples, times_s, ranks = np.full(STEPS, BATCH), np.full(STEPS, STEP_S), []
    for rank in (0, 1):
        extra_s = np.zeros(STEPS)
        extra_s[20 + rank :: 10] = 0.05
        extra_s[60] = 2.0
        ended_s = 1e9 + np.cumsum(STEP_S + extra_s)
        ranks.append((Steps(np.ones_like(samples), samples, 0 * samples, times_s, 0 * times_s, ended_s), None))
    remark = next(remark_on_loop(RATE, ranks, warmup_steps=10))
    whole_s = max(
        float(steps.ended_at_s[-1] - steps.ended_at_s[9]) for steps, _ in ranks if steps.ended_at_s is not None
    )
    assert f"{90 * 2 * BATCH / whole_s:.0f} samples/s, without" in remark.measured


@pytest.mark.parametrize(
    ("gaps", "gap_s", "slow"),
    [((), 0.0, False), ((50,), 5.0, False), (EVERY_16TH, 0.01, False), (EVERY_16TH, 0.3, True)],
    ids=["none", "one", "short ones", "slow steps"],
)
def test_what_needs_no_remark(gaps: Sequence[int], gap_s: float, slow: bool) -> None:
    assert judged(gaps, gap_s, slow=slow) is None
