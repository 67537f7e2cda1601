"""Throughput read from a log."""

from __future__ import annotations

from pathlib import Path

import pytest
from ddp_ladder.common.files import Agent
from ddp_ladder.records.assemble import assemble
from ddp_ladder.records.timing import log_figures, measured_rates, printed_rates
from make_records import make_spec
from make_runs import edit, reassemble, write_run, write_steps

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


@pytest.mark.parametrize(
    ("count", "warmup", "left"), [(1, 10, 1), (2, 10, 1), (10, 3, 7), (10, 0, 10), (9, 100, 5), (0, 5, 0)]
)
def test_at_most_half_is_warm_up(count: int, warmup: int, left: int) -> None:
    rates = tuple(float(k) for k in range(count))
    assert measured_rates(rates, warmup) == rates[count - left :]


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
    assert record.failure
    assert (record.failure.verdict, record.failure.why) == (
        "the log is incomplete",
        "1,234,567 bytes of the output are not in the log",
    )
    assert "logs.max_mb_per_node" in record.failure.next


@pytest.mark.parametrize(
    ("printed", "said", "advice"),
    [
        ((5000, 5000, 1000, 1030, 1100), "", ""),  # the first ones are the warm-up's
        ((1280,), "the script prints 1,280 samples/s (median of 1 line after the warm-up), and 1,022 were counted",
         "several optimizer steps per iteration"),
        ((256,) * 9, "256 samples/s (median of 5 lines after the warm-up), and 1,022 were counted on 4 ranks",
         "the rate of one rank"),
        ((), "not compared with what was counted: workload.throughput_regex (throughput", "correct it"),
    ],
)  # fmt: skip
def test_the_scripts_own_word_is_compared_with_what_was_counted(
    tmp_path: Path, printed: tuple[float, ...], said: str, advice: str
) -> None:
    run = write_run(tmp_path, make_spec("1x4", throughput_regex=PATTERN), 1024.0)
    run.log.write_text("".join(f"throughput: {rate} samples/s\n" for rate in printed))
    record = reassemble(run)
    assert record.status == "ok"
    assert record.throughput is not None
    assert record.throughput.source == "counted"
    assert record.throughput.samples_per_s == pytest.approx(1024, rel=0.01)
    found = [remark for remark in record.remarks if remark.name == "printed throughput"]
    assert len(found) == bool(said)
    if said:
        assert said in found[0].what
        assert advice in found[0].next
