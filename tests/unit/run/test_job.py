from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from ddp_ladder.climb.snakemake import SIGNALS
from ddp_ladder.common.files import RunDirectory
from ddp_ladder.records.record import Record
from ddp_ladder.run import job
from ddp_ladder.run.interruption import Interrupted, raise_on_signals
from ddp_ladder.run.job import PLAIN_AT_LEAST_S, PLAIN_TIMES, plain_limit
from make_records import make_failed_record, make_record, make_spec

PLAIN = make_spec("1x1", variant="plain", launcher="python")
HOURS = 7200.0


def took(wall_s: float, mode: str = "weak", variant: str = "default") -> Record:
    record = make_record(make_spec("1x1", mode=mode, variant=variant))
    assert record.timing
    return record.replace(timing=record.timing.replace(wall_s=wall_s))


def test_a_plain_baseline_may_take_a_multiple_of_the_longest_run_under_the_launcher() -> None:
    records = [took(100.0), took(120.0), took(900.0, mode="strong"), took(900.0, variant="ring")]
    assert plain_limit(PLAIN, records, HOURS) == PLAIN_TIMES * 120.0
    assert plain_limit(PLAIN, [took(1.0)], HOURS) == PLAIN_AT_LEAST_S


@pytest.mark.parametrize("records", [[], [make_failed_record(make_spec("1x1"), "x", "y")], [took(5.0, mode="strong")]])
def test_where_nothing_is_known_it_has_the_rest_of_the_job(records: list[Record]) -> None:
    assert plain_limit(PLAIN, records, HOURS) is None


def test_what_is_left_of_the_job_is_the_limit_where_it_tells_that_the_script_hangs() -> None:
    assert plain_limit(PLAIN, [took(100.0)], 200.0) == 200.0
    assert plain_limit(PLAIN, [took(100.0)], 110.0) is None


def test_no_other_run_has_a_limit_of_its_own() -> None:
    assert plain_limit(make_spec("1x1", repeat=2), [took(100.0)], HOURS) is None


@pytest.fixture
def signals_as_before() -> Iterator[None]:
    before = {signum: signal.getsignal(signum) for signum in SIGNALS}
    yield
    for signum, handler in before.items():
        signal.signal(signum, handler)


@pytest.mark.usefixtures("signals_as_before")
def test_a_signal_while_agents_are_started_leaves_none(tmp_path: Path) -> None:
    started = []

    def start() -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen(["sleep", "100"]))
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGHUP)
        return started[0]

    raise_on_signals()
    nodes = SimpleNamespace(starters=lambda _directory, _spec: [start], agents_per_node=lambda _spec: 1)
    context = cast(job.Context, SimpleNamespace(nodes=nodes, end_s=20.0))
    with pytest.raises(Interrupted, match="SIGTERM"):
        job._supervise(context, RunDirectory(tmp_path), PLAIN, None, None)
    assert started[0].returncode == -signal.SIGTERM


@pytest.mark.usefixtures("signals_as_before")
def test_a_hang_up_that_was_ignored_from_the_start_stays_ignored() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    raise_on_signals()
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    with pytest.raises(Interrupted):
        os.kill(os.getpid(), signal.SIGTERM)


def test_a_process_whose_parent_died_before_it_could_ask_is_ended_too() -> None:
    code = "import signal; from ddp_ladder.common import process; process.die_with_parent(signal.SIGTERM, 1)"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run([sys.executable, "-c", code], env=env, check=False).returncode == -signal.SIGTERM
