"""The program that examines a node for the preflight, and its end."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ddp_ladder.common.files import SCRIPTS
from ddp_ladder.plan.plan import ScaleJob
from ddp_ladder.records.raw_models import Job, read_run_file
from ddp_ladder.run.nodes import ThisMachine
from ddp_ladder.run.preflight import PreflightOf
from ddp_ladder.settings.keys import Preflight, Slurm
from ddp_ladder.settings.terms import Scale
from make_files import write_programs
from make_preflight import has_ended
from make_records import make_spec


def start(
    directory: Path, monkeypatch: pytest.MonkeyPatch, nvidia_smi: str
) -> tuple[PreflightOf, subprocess.Popen[bytes]]:
    """Start it on a node whose nvidia-smi is this shell script."""
    monkeypatch.chdir(directory)
    write_programs(directory, nvidia_smi=nvidia_smi)
    spec = make_spec("1x2", device="cuda", wrapper_template=("env", "A=1"))
    job = ScaleJob("stage2", Scale(1, 2), 20, (spec,), cpus=1, slurm=Slurm())
    preflight = PreflightOf(job, directory / "results", ThisMachine("local-7"), end_s=5.0)
    identity = Job(id="local-7", attempt=1, run_id="7")
    preflight.prepare(identity)
    preflight.write_run_file(identity, "nodes")
    node = [sys.executable, SCRIPTS / "preflight_node.py", "--run", preflight.directory.path, "--node-rank", "0"]
    return preflight, subprocess.Popen(node, env={**os.environ, "PATH": f"{directory}:{os.environ['PATH']}"})


@pytest.mark.parametrize(
    ("scale", "timeout_s", "left_s", "limit_s", "longest_s"),
    [
        ("2x4", None, 1e6, 60, 180),
        ("1024x4", None, 1e6, 316, 1204),
        ("1024x4", 90.0, 1e6, 90, 752),  # a set limit does not grow, but the start before it is awaited
        ("1024x4", None, 100.0, 100, 772),  # the job's time is nearly up
    ],
)
def test_the_limit_grows_with_the_nodes(
    scale: str, timeout_s: float | None, left_s: float, limit_s: float, longest_s: float, tmp_path: Path
) -> None:
    spec = make_spec(scale)
    wanted = Preflight(timeout_s=timeout_s)
    job = ScaleJob("stage3", spec.scale, 20, (spec,), cpus=4, slurm=Slurm(), preflight=wanted)
    preflight = PreflightOf(job, tmp_path, ThisMachine("local-7"), end_s=5.0, left_s=left_s)
    identity = Job(id="local-7", attempt=1, run_id="7")
    preflight.prepare(identity)
    preflight.write_run_file(identity, None)
    limits = read_run_file(preflight.directory).preflight
    assert limits is not None
    assert (limits.timeout_s, preflight.longest_s) == (limit_s, longest_s)


def test_a_signal_ends_it_with_all_that_it_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    child = tmp_path / "child"
    hangs = f"sleep 600 & echo $! > {child}.part; mv {child}.part {child}; wait"
    preflight, process = start(tmp_path, monkeypatch, hangs)
    until_s = time.monotonic() + 60
    while not child.exists() and time.monotonic() < until_s:
        time.sleep(0.01)
    process.terminate()
    assert process.wait(60) == 128 + 15
    pid = int(child.read_text())
    while not has_ended(pid) and time.monotonic() < until_s:  # the kernel may be busy
        time.sleep(0.01)
    assert has_ended(pid)
    assert not preflight.directory.node_facts(0).exists()
