"""A real Slurm whose commands answer badly: sbatch loses what it submitted, squeue hides jobs, banners are printed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from climbs import climb
from cluster import Cluster
from make_files import write_programs
from project_copy import NO_TORCH, ONE_STAGE, Checkout, copy_project
from scales import GPU_SITE, MEASURE

pytestmark = pytest.mark.slurm

# As long as nobody opens the other side, it waits.
WAITS = f"import os\nif os.path.exists('go'): open('go').close()\n{NO_TORCH}"
BANNER = "echo '*** Maintenance | on 12 May | at 9 | a.m. | ***'"
TIMED_OUT = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation"


class Commands:
    """Stand-ins for Slurm's commands, first on the PATH: shell in which ``$real`` is the real one."""

    def __init__(self, path: Path) -> None:
        self.path = path / "programs"
        self.path.mkdir()
        self.real = {name: str(shutil.which(name)) for name in ("sbatch", "squeue", "sacct", "scontrol", "scancel")}

    def does(self, name: str, script: str) -> None:
        write_programs(self.path, **{name: f"real={self.real[name]}\n{script}"})


@pytest.fixture
def commands(cluster_without_accounting: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commands:
    found = Commands(tmp_path)
    monkeypatch.setenv("PATH", str(found.path), prepend=os.pathsep)
    return found


@pytest.fixture
def checkout(cluster_without_accounting: Cluster, commands: Commands, tmp_path: Path) -> Checkout:
    """One run of one process."""
    checkout = copy_project(tmp_path / "checkout", cluster_without_accounting)
    site = {**GPU_SITE, "slurm": {"partition": "gpu"}, "launcher": "srun"}
    checkout.set_up(WAITS, site, measure=MEASURE, stages=ONE_STAGE)
    return checkout


def submitted(cluster: Cluster, commands: Commands, checkout: Checkout) -> list[str]:
    """Ids of all jobs that were ever submitted for a checkout."""
    printed = cluster.run([commands.real["squeue"], "--noheader", "--states=all", "--format=%i %Z"]).stdout
    return [line.split()[0] for line in printed.splitlines() if line.split()[1] == str(checkout.path)]


def test_a_job_that_sbatch_lost_is_followed_whatever_a_site_prints_around_the_answers(
    cluster_without_accounting: Cluster, commands: Commands, checkout: Checkout
) -> None:
    for name in ("squeue", "sacct", "scontrol", "scancel"):
        commands.does(name, f'{BANNER}; "$real" "$@"; code=$?; {BANNER}; exit $code')
    commands.does("sbatch", f'{BANNER}; "$real" "$@" >/dev/null; echo \'{TIMED_OUT}\' >&2; exit 1')
    each = climb(checkout, "stage1")
    assert each.end() == 0, each.text
    (job,) = submitted(cluster_without_accounting, commands, checkout)
    assert f"stage1 1x1: {TIMED_OUT}; looking whether it was submitted" in each.text
    assert f"stage1 1x1: job {job} is in the queue all the same" in each.text
    assert checkout.record("default/weak/1x1/r1")["job"]["id"] == job
    assert f"job {job} ended COMPLETED" in each.text
    assert "Traceback" not in each.text


def test_a_job_that_squeue_hides_goes_on_and_no_second_one_joins_it(
    cluster_without_accounting: Cluster, commands: Commands, checkout: Checkout
) -> None:
    """A start that follows it waits for it in the same way: tests/unit/climb/test_slurm_executor.py."""
    hidden = checkout.path / "hidden"
    commands.does("squeue", f'[ -e {hidden} ] && {{ "$real" "$@" | head -1; exit 0; }}; exec "$real" "$@"')
    os.mkfifo(checkout.path / "go")
    each = climb(checkout, "stage1")
    job, _ = each.job()
    each.await_line("r1: started")
    hidden.touch()
    each.process.kill()
    each.end()
    printed = checkout.snakemake("stage1", "--profile", "profiles/slurm").stdout
    assert f"found    job {job} of 1x1: unknown to squeue and sacct, but it holds its lock" in printed, printed

    hidden.unlink()
    (checkout.path / "go").open("w").close()
    assert cluster_without_accounting.await_state(job) == "COMPLETED"
    printed = checkout.snakemake("stage1", "--profile", "profiles/slurm").stdout
    assert "nothing to measure" in printed, printed
    assert submitted(cluster_without_accounting, commands, checkout) == [str(job)]
