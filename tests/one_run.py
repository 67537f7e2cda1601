"""Run a script in the job of a scale, on this machine and without a ladder."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ddp_ladder.common.files import RunDirectory
from ddp_ladder.plan.plan import make_plan
from ddp_ladder.records.record import Record, read_record
from ddp_ladder.run.job import Context, run_scale
from ddp_ladder.run.nodes import Nodes, ThisMachine
from ddp_ladder.run.progress import RunConsole
from ddp_ladder.settings.keys import Hang, Preflight
from ddp_ladder.settings.load import load_settings
from project_copy import ROOT

JOB = f"local-{os.getpid()}"  # of each pytest worker its own: runs of one job and name look for the same port first


def run_script(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scale: str, nodes: Nodes | None = None, **changes: Any
) -> Record:
    """Make one run in the job of this scale, with all its agents on this machine; return its record."""
    return run_scripts(text, tmp_path, monkeypatch, scale, [changes], nodes)[0]


def run_scripts(
    text: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    scale: str,
    runs: Sequence[Mapping[str, Any]],
    nodes: Nodes | None = None,
    hang: Hang | None = None,
    time_s: float = 300.0,
) -> list[Record]:
    """Make several runs in one job without a preflight, each with these changes of the spec; return their records.

    time_s: of the job.
    """
    monkeypatch.chdir(ROOT)
    script = tmp_path / "train.py"
    script.write_text(text)
    plan = make_plan(load_settings(Path("config/config.yaml"), Path("config/cluster.yaml")))
    shipped = next(job for job in plan.jobs if str(job.scale) == scale)
    specs = tuple(shipped.runs[0].replace(script=str(script), **changes) for changes in runs)
    job = replace(shipped, runs=specs, hang=hang or shipped.hang, preflight=Preflight(enabled=False))
    console = RunConsole(len(specs), sys.stderr)
    context = Context(job, tmp_path, nodes or ThisMachine(JOB), time.monotonic() + time_s, console)
    run_scale(context, replace(plan, jobs=(job,)), {})
    return [read_record(directory(tmp_path, spec.name).record) for spec in specs]


def directory(results: Path, name: str) -> RunDirectory:
    return RunDirectory(results / "runs" / name)
