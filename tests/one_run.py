"""Run a script in the job of a scale, on this machine and without a ladder: the fixture ``here``."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from ddp_ladder.common.files import RunDirectory
from ddp_ladder.common.findings import Finding
from ddp_ladder.plan.plan import Plan, RunSpec, ScaleJob, WitnessLimits, make_plan
from ddp_ladder.production.rehearsal import judge_rehearsal
from ddp_ladder.records.record import Failure, Record, read_record
from ddp_ladder.run.job import Context, run_scale, run_twice
from ddp_ladder.run.nodes import Nodes, ThisMachine
from ddp_ladder.run.progress import RunConsole
from ddp_ladder.run.short_runs import make_witnesses
from ddp_ladder.settings.keys import Hang, Preflight
from ddp_ladder.settings.load import load_settings
from ddp_ladder.settings.terms import REHEARSAL
from project_copy import ROOT

LONG_S = 200.0  # nothing waits for it
LAUNCHER = "srun"  # where a test names no other one: torchrun imports torch, too
JOB = f"local-{os.getpid()}"  # of each pytest worker its own: runs of one job and name look for the same port first


def make_runs(plan: Plan, job: ScaleJob, results: Path, nodes: Nodes, time_s: float) -> list[Record]:
    """Make the runs of a job below this directory; return their records."""
    context = Context(job, results, nodes, time.monotonic() + time_s, RunConsole(len(job.runs), sys.stderr))
    with closing(context.assembler):
        run_scale(context, replace(plan, jobs=(job,)), {}, make_witnesses)
    return [read_record(RunDirectory(results / "runs" / spec.name).record) for spec in job.runs]


@dataclass(frozen=True)
class Here:
    """Where scripts are run: below a directory, with all agents of a job on this machine."""

    path: Path

    def run(self, text: str, scale: str, nodes: Nodes | None = None, **changes: Any) -> Record:
        """Make one run in the job of this scale; return its record. changes: of its spec."""
        return self.runs(text, scale, [changes], nodes)[0]

    def runs(
        self,
        text: str,
        scale: str,
        runs: Sequence[Mapping[str, Any]],
        nodes: Nodes | None = None,
        hang: Hang | None = None,
        time_s: float = 300.0,
        witness: WitnessLimits | None = None,
    ) -> list[Record]:
        """Make several runs in one job without a preflight, each with these changes of the spec; return their records.

        time_s: of the job. witness: of a run before them that follows its batches; None: there is none.
        """
        script = self.path / "train.py"
        script.write_text(text)
        plan = make_plan(load_settings(Path("config/config.yaml"), Path("config/cluster.yaml")))
        shipped = next(job for job in plan.jobs if str(job.scale) == scale)
        usual = {"script": str(script), "launcher": LAUNCHER}
        specs = tuple(shipped.runs[0].replace(**{**usual, **changes}) for changes in runs)
        limits = {"hang": hang or shipped.hang, "preflight": Preflight(enabled=False), "witness": witness}
        job = replace(shipped, runs=specs, **limits)
        return make_runs(plan, job, self.path, nodes or ThisMachine(JOB), time_s)

    def rehearsed(
        self, text: str, *args: str, each_s: float = LONG_S, warn_before_s: float = LONG_S, launcher: str = LAUNCHER
    ) -> tuple[Finding, ...]:
        """Start a script twice, on two ranks; return what that shows. Without times, it sends itself the signal."""
        script = self.path / "train.py"
        script.write_text(text)
        plan = make_plan(load_settings(Path("config/config.yaml"), Path("config/cluster.yaml")))
        shipped = next(job for job in plan.jobs if str(job.scale) == "1x2")
        changes = {"script": str(script), "args": args, "stage": REHEARSAL, "max_steps": None, "launcher": launcher}
        job = replace(shipped, runs=(shipped.runs[0].replace(**changes),), preflight=Preflight(enabled=False))
        deadline_s = time.monotonic() + 2 * (each_s + warn_before_s)
        context = Context(job, self.path, ThisMachine(JOB), deadline_s, RunConsole(1, sys.stderr))
        with closing(context.assembler):
            starts = run_twice(context, each_s, warn_before_s)
        assert not isinstance(starts, Failure), starts
        return judge_rehearsal(*starts)

    def directory(self, spec: RunSpec) -> RunDirectory:
        return RunDirectory(self.path / "runs" / spec.name)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Here:
    monkeypatch.chdir(ROOT)
    return Here(tmp_path)


def failure_of(record: Record) -> Failure:
    assert record.failure is not None
    return record.failure
