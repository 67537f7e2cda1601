"""The time of a rehearsal's starts is theirs: the preflight comes before them, once."""

from __future__ import annotations

import math
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from ddp_ladder.assembly.assemble import not_run
from ddp_ladder.plan.plan import make_plan
from ddp_ladder.records.record import Failure, Record
from ddp_ladder.run import job as jobs
from ddp_ladder.run.job import Context, run_link
from ddp_ladder.run.nodes import ThisMachine
from ddp_ladder.run.progress import RunConsole
from ddp_ladder.settings.keys import Preflight
from ddp_ladder.settings.load import load_settings
from ddp_ladder.settings.terms import PRODUCTION, REHEARSAL
from ddp_ladder.slurm.jobs import Advice

SHIPPED = Path(__file__).parents[3] / "config"


@pytest.mark.parametrize("cut", [True, False])
def test_the_preflight_comes_once_before_both_starts(
    cut: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_plan(load_settings(SHIPPED / "config.yaml", SHIPPED / "cluster.yaml")).jobs[1]
    called = []

    def preflight(context: Context) -> Advice | None:
        called.append("preflight")
        return Advice("no network", "") if cut else None

    def run_link(context: Context, warn_before_s: float) -> Record:
        called.append(f"start, preflight {context.job.preflight.enabled}")
        return not_run(job.runs[0], "no time", "not here", "")

    monkeypatch.setattr(jobs, "failed_preflight", preflight)
    monkeypatch.setattr(jobs, "run_link", run_link)
    context = Context(job, tmp_path, ThisMachine("1"), math.inf, RunConsole(1, sys.stderr))
    ended = jobs.run_twice(context, 1.0, 1.0)
    assert isinstance(ended, Failure)
    assert called == (["preflight"] if cut else ["preflight", "start, preflight False"])
    assert ("no network" in ended.why) == cut


@pytest.mark.parametrize(("stage", "key"), [(PRODUCTION, "production.runtime"), (REHEARSAL, "production.rehearse_s")])
def test_a_link_whose_time_was_up_before_its_script_names_the_key_of_its_time(
    stage: str, key: str, tmp_path: Path
) -> None:
    job = make_plan(load_settings(SHIPPED / "config.yaml", SHIPPED / "cluster.yaml")).jobs[1]
    spec = job.runs[0].replace(stage=stage)
    job = replace(job, runs=(spec,), preflight=Preflight(enabled=False))
    context = Context(job, tmp_path, ThisMachine("1"), time.monotonic(), RunConsole(1, sys.stderr))
    failure = run_link(context, 60.0).failure
    assert failure is not None
    assert "0 s left, and the signal comes 1 min 00 s before its end" in failure.why
    assert failure.next == f"raise {key}, or lower production.warn_before_s"
