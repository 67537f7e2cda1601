from __future__ import annotations

import io
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest
from ddp_ladder.assembly.assemble import Assembler
from ddp_ladder.climb.snakemake import SIGNALS
from ddp_ladder.common.files import Agent, RunDirectory
from ddp_ladder.common.process import Interrupted
from ddp_ladder.plan.plan import RunSpec
from ddp_ladder.records.raw_models import RunFile
from ddp_ladder.records.record import Record, read_record
from ddp_ladder.run import job
from ddp_ladder.run.interruption import AgentProcess, raise_on_signals
from ddp_ladder.run.progress import RunConsole
from ddp_ladder.settings.keys import Hang
from make_records import make_record, make_spec, make_specs
from make_runs import write_run


@pytest.fixture
def signals_as_before() -> Iterator[None]:
    before = {signum: signal.getsignal(signum) for signum in SIGNALS}
    yield
    for signum, handler in before.items():
        signal.signal(signum, handler)


@pytest.mark.usefixtures("signals_as_before")
def test_a_signal_while_agents_are_started_leaves_none(tmp_path: Path) -> None:
    started = []

    def start() -> AgentProcess:
        started.append(AgentProcess(["sleep", "100"]))
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGHUP)
        return started[0]

    raise_on_signals()
    nodes = SimpleNamespace(starters=lambda _directory, _spec: [start])
    context = cast(job.Context, SimpleNamespace(nodes=nodes, end_s=20.0, deadline_s=1e18, watch=None))
    run = cast(RunFile, SimpleNamespace(all_agents=(Agent(0),), hang=None))
    with pytest.raises(Interrupted, match="SIGTERM"):
        job._supervise(context, RunDirectory(tmp_path), make_spec("1x1"), run, None)
    assert started[0].returncode == -signal.SIGTERM


def children() -> set[int]:
    """Return the processes that this one has started and that have not ended."""
    return {child.pid for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE}


def so_far(*records: Record) -> job.RunsSoFar:
    named = {f"{k} {record.spec.name}": record for k, record in enumerate(records)}
    return job.RunsSoFar(RunConsole(1, io.StringIO()), named, {})


def test_a_plain_baseline_has_a_multiple_of_the_longest_run_under_the_launcher_to_make_its_first_step() -> None:
    def took(wall_s: float, **spec: Any) -> Record:
        record = make_record(make_spec("1x1", **spec))
        assert record.timing
        return record.replace(timing=record.timing.replace(wall_s=wall_s))

    plain = make_spec("1x1", variant="plain", launcher="python")

    def first_step_s(*records: Record, spec: RunSpec = plain) -> float | None:
        bounds = job.hang_bounds(Hang(), spec, so_far(*records))
        assert bounds
        return bounds.first_step_s

    assert first_step_s(took(100.0), took(120.0), took(900.0, mode="strong"), took(900.0, variant="ring")) == 360.0
    assert first_step_s(took(1.0)) == job.PLAIN_AT_LEAST_S
    assert first_step_s() == first_step_s(took(1000.0)) == first_step_s(took(1.0), spec=make_spec("1x1")) == 1800.0
    assert job.hang_bounds(None, plain, so_far(took(1.0))) is None


@pytest.fixture
def assembler() -> Iterator[Assembler]:
    made = Assembler()
    yield made
    made.close()


def test_one_process_assembles_the_records_of_a_job_and_is_replaced_if_it_dies(
    tmp_path: Path, assembler: Assembler
) -> None:
    specs = make_specs(["1x1"], repeats=3)
    runs = [(write_run(tmp_path, spec), spec) for spec in specs]
    before = children()
    made = [assembler.begin(directory, spec, 50.0) for directory, spec in runs]
    (process,) = children() - before
    assert [each.record for each in made] == [read_record(directory.assembled) for directory, _ in runs]
    assert all(each.is_done for each in made)
    runs[0][0].ended.unlink()
    assert assembler.begin(*runs[0], 50.0).record.failure
    assert children() - before == {process}
    os.kill(process, signal.SIGKILL)
    lost = assembler.begin(*runs[1], 50.0)
    assert lost.record == made[1].record
    again = assembler.begin(*runs[2], 50.0)
    assert again.record == made[2].record
    assert again.is_done
    (other,) = children() - before
    assert other != process
    assembler.close()
    assert children() == before


def test_a_run_counts_for_the_time_of_the_next_ones_while_its_record_is_assembled(
    tmp_path: Path, assembler: Assembler
) -> None:
    spec, console = make_spec("1x1"), RunConsole(1, io.StringIO())
    runs = job.RunsSoFar(console, {}, {})
    directory = write_run(tmp_path, spec)
    console.started(spec)
    assert job.needed_for(spec, runs) == 0.0
    runs.add(assembly := assembler.begin(directory, spec, 50.0))
    assert job.needed_for(spec, runs) == job.LONGER * 50.0
    runs.settle()
    assert assembly.record == read_record(directory.assembled) == runs.records[spec.name]
    timing = assembly.record.timing
    assert timing
    assert job.needed_for(spec, runs) == job.LONGER * (timing.wall_s + assembly.took_s)
