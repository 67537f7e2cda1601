"""The live view of a climb on a real Slurm, as another user: a job that waits, its run, and a controller that dies."""

from __future__ import annotations

import os
import re
import shutil
import signal
from collections.abc import Callable
from contextlib import ExitStack, closing
from itertools import pairwise
from pathlib import Path

import pytest
from climbs import climb
from cluster import Cluster
from cluster_config import Spec
from ddp_ladder.live.screen import ASK_EVERY_S
from make_files import write_programs
from project_copy import ONE_STAGE, copy_project, loop_with
from watch_screen import ANYONE, WATCH, Screen

pytestmark = pytest.mark.slurm


def counting_squeue(directory: Path, counted: Path) -> Path:
    """Write a squeue that notes the time of each call and does what the real one does; return its directory."""
    counted.touch()
    counted.chmod(0o666)
    directory.mkdir()
    return write_programs(directory, squeue=f'date +%s.%N >>{counted}\nexec {shutil.which("squeue")} "$@"')


def test_someone_elses_climb(make_cluster: Callable[[Spec], Cluster], tmp_path: Path) -> None:
    cluster = make_cluster(Spec(nodes=1, gpus=1))
    checkout = copy_project(tmp_path / "project", cluster)
    node = {"gpus": 1, "device": "cpu", "gres": "gpu", "cpus": 2}
    site = {"site": "test", "slurm": {"partition": "gpu"}, "node": node, "launcher": "srun"}
    checkout.set_up(loop_with("time.sleep(1)"), site, stages=ONE_STAGE)
    blocker = cluster.sbatch("sleep 600", "--exclusive", "--partition=gpu")
    cluster.await_state(blocker, "RUNNING")
    questions = tmp_path / "questions"
    path = f"{counting_squeue(tmp_path / 'bin', questions)}:{os.environ['PATH']}"
    with ExitStack() as stack:
        climbing = climb(checkout)
        stack.callback(climbing.process.kill)
        job = climbing.await_line(r"job (\d+) submitted")[1]
        command = cluster.command([*ANYONE.split(), *WATCH])
        env = {"PATH": path, "SLURM_CONF": str(cluster.slurm_conf)}
        screen = stack.enter_context(closing(Screen(checkout.results, command=command, **env)))
        screen.await_text(f"job {job} waits: ")
        assert re.search(r"waits: (Resources: it is next|Priority: jobs)", "\n".join(screen.rows)), screen.rows
        cluster.run(["scancel", str(blocker)])
        screen.await_text(f"job {job} runs ")
        screen.await_text(" at most 5 min")
        screen.await_text("  step ")
        screen.await_text("  node1 ")
        asked_s = [float(line) for line in questions.read_text().splitlines()]
        assert len(asked_s) >= 2
        assert min(later - earlier for earlier, later in pairwise(asked_s)) > ASK_EVERY_S / 2, asked_s
        cluster.kill_daemon("slurmctld")
        screen.await_text("! Slurm does not answer (")
        before = step_of(screen)
        screen.await_true(lambda: step_of(screen) > before, "a further step")
        screen.press(b"\x03")
        assert screen.end() == 0
        assert f"job {job} runs " in screen.last_words
        # The climb waits for it, too: with 5 attempts the plugin itself would forget its jobs for ever.
        climbing.await_line("Slurm does not answer")
        cluster.start_controller()
        climbing.await_line("Slurm answers again")
        climbing.process.send_signal(signal.SIGINT)
        climbing.end()


def step_of(screen: Screen) -> int:
    """The step of the last picture; 0 if it shows none."""
    found = re.search(r"^  step (\d+)", "\n".join(screen.rows), re.MULTILINE)
    return int(found[1]) if found else 0
