"""An agent writes the sums of its ranks' heartbeats, and warns its ranks once the job asks for it."""

from __future__ import annotations

import json
from pathlib import Path
from queue import Queue
from typing import cast

from ddp_ladder.common.files import Agent, read_json
from ddp_ladder.records.raw_files import of_run
from ddp_ladder.records.raw_models import AgentTotals, read_run_file
from ddp_ladder.run.interruption import TimedWarning
from ddp_ladder.run.signs import TotalsWriter
from ddp_ladder_instrument.contract import HEADER_BYTES, TOTALS
from make_records import make_spec
from make_runs import edit, write_run


class Warned:
    """Stands in for the warning of an agent."""

    def __init__(self) -> None:
        self.calls = Queue[None]()

    def warn(self) -> None:
        self.calls.put(None)


def write_heartbeat(path: Path, totals: list[float | None] | None) -> None:
    beat = {
        "pid": 1,
        "signal": None,
        "phase": "training",
        "steps": 5,
        "step_s": 0.1,
        "moved_monotonic_s": 1.0,
        "written_monotonic_s": 1.0,
    }
    beat |= {"sequence": None, "handles": None, "totals": totals}
    path.write_text(json.dumps(beat).ljust(HEADER_BYTES - 1) + "\n")


def test_the_sums_of_ranks_that_train_are_written_and_the_job_can_ask_for_warnings(tmp_path: Path) -> None:
    directory = write_run(tmp_path, make_spec("1x2"))
    edit(directory.run, lambda run: run.update(totals_every_s=0.05))
    run, warning, agent = read_run_file(directory), Warned(), Agent(0)
    known: list[float | None] = [*map(float, range(len(TOTALS) - 1)), None]
    write_heartbeat(tmp_path / "rank0.heartbeat", known)
    write_heartbeat(tmp_path / "rank1.heartbeat", None)  # has made no two steps
    directory.warn_now.touch()
    writer = TotalsWriter.started(directory, tmp_path, run, agent, cast(TimedWarning, warning))
    assert writer is not None
    for _ in range(2):
        warning.calls.get(timeout=30)
        directory.warn_now.touch()
    warning.calls.get(timeout=30)
    write_heartbeat(tmp_path / "rank1.heartbeat", known)
    writer.end()
    assert warning.calls.empty()
    file = of_run(run, AgentTotals, directory.totals(agent))
    assert [(each.rank, each.totals) for each in file.ranks] == [(0, tuple(known)), (1, tuple(known))]
    assert read_json(directory.totals(agent))["job"]["run_id"] == run.job.run_id


def test_without_a_watch_nothing_is_written(tmp_path: Path) -> None:
    directory = write_run(tmp_path, make_spec("1x2"))
    warning = cast(TimedWarning, Warned())
    assert TotalsWriter.started(directory, tmp_path, read_run_file(directory), Agent(0), warning) is None
