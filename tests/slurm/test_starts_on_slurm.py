"""Which jobs a start submits: for every way a run can end on Slurm, and every kind of change, at the first start.

tests/unit/climb/test_to_do.py has the whole table, on files. Here Slurm itself ends three of the jobs, and what is
submitted is counted; the cluster is busy then, so that no job runs.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from climbs import Climb, climb
from cluster import Cluster
from ddp_ladder.common.files import RunDirectory
from ddp_ladder.plan.plan import Plan, RunSpec, make_plan
from ddp_ladder.records.assemble import not_run
from ddp_ladder.records.record import write_record
from ddp_ladder.settings.load import load_settings
from make_runs import edit, reassemble, write_run
from project_copy import Checkout, copy_project

pytestmark = pytest.mark.slurm

BY_SLURM = {"2x1": "CANCELLED", "2x2": "TIMEOUT", "2x3": "NODE_FAIL"}
HANG = "import signal; signal.pause()"


def failed(run: RunDirectory, spec: RunSpec) -> None:
    edit(run.ranks / "rank1.json", lambda end: end.update(exit_code=1, exception="ValueError: no"))
    reassemble(run)


def time_limit(run: RunDirectory, spec: RunSpec) -> None:
    edit(run.ended, lambda ended: ended.update(outcome="time limit"))
    reassemble(run)


def left_out(run: RunDirectory, spec: RunSpec) -> None:
    shutil.rmtree(run.path)
    write_record(run.record, not_run(spec, "the job's time was up before it could start", "raise it"))


def killed(run: RunDirectory, spec: RunSpec) -> None:
    for file in (run.ended, run.record):
        file.unlink()
    shutil.rmtree(run.ranks)


def interrupted(run: RunDirectory, spec: RunSpec) -> None:
    for file in (run.ended, run.record, run.ranks / "rank1.json"):
        file.unlink()


def damaged(run: RunDirectory, spec: RunSpec) -> None:
    for file in (run.ranks / "rank1.csv", run.record):
        file.write_text(file.read_text()[:50])


BY_HAND = {"2x4": failed, "3x1": time_limit, "3x2": left_out, "3x3": killed, "3x4": interrupted, "4x1": damaged}
GOOD = ("1x1", "4x2")
BAD = {*BY_SLURM, *BY_HAND}
SCALES = {"stage1": ["1x1"], "stage3": [*BY_SLURM, *BY_HAND, "4x2"]}


@dataclass(frozen=True)
class Ladder:
    """A ladder of which some runs are good, and every other one ended in another way."""

    cluster: Cluster
    checkout: Checkout

    def configure(self, args: tuple[str, ...] = (), runtime: int = 5, gate: dict[str, float] | None = None) -> None:
        self.checkout.configure(
            workload={"script": "loop.py", "args": ["{batch_per_gpu}", *args], "batch_per_gpu": 16, "lr": None},
            stages={
                name: {"scales": scales, "runtime": runtime, "gate": gate if gate and name == "stage3" else {}}
                for name, scales in SCALES.items()
            },
        )
        (self.checkout.path / "loop.py").write_text(HANG)

    def run(self, scale: str) -> RunDirectory:
        return RunDirectory(self.checkout.results / f"runs/default/weak/{scale}/r1")

    def plan(self) -> Plan:
        here = Path.cwd()
        os.chdir(self.checkout.path)
        try:
            return make_plan(load_settings(Path("config/config.yaml"), Path("config/cluster.yaml")))
        finally:
            os.chdir(here)

    def submitted(self, expected: set[str], *arguments: str) -> set[str]:
        """Scales whose jobs a start submits, until all of these have been and wait; it is interrupted then."""
        started = climb(self.checkout, "--jobs", "20", *arguments)
        for scale in expected:
            started.await_line(rf"{scale}: job \d+ waits")
        started.process.send_signal(signal.SIGINT)
        started.end()
        return {found[1] for found in re.finditer(r"(\dx\d): job \d+ submitted", started.text)}


@pytest.fixture(scope="module")
def ended(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ladder]:
    """Each scale in another state; the whole cluster is taken from then on."""
    ladder = Ladder(cluster, copy_project(tmp_path_factory.mktemp("project"), cluster))
    site = {
        "site": "test",
        "slurm": {"partition": "gpu"},
        "node": {"gpus": 4, "device": "cpu", "gres": "gpu", "cpus": 8, "memory_mb": 8000},
        "launcher": "srun",
    }
    (ladder.checkout.path / "config/cluster.yaml").write_text(yaml.safe_dump(site))
    ladder.configure()
    specs = {str(spec.scale): spec for spec in ladder.plan().runs}
    for scale in specs.keys() - BY_SLURM.keys():
        write_run(ladder.checkout.results, specs[scale], 1000.0 * specs[scale].world_size)
    end_by_slurm(ladder)
    for scale, spoil in BY_HAND.items():
        spoil(ladder.run(scale), specs[scale])
    busy = cluster.sbatch("sleep 1000", "--nodes=6", "--exclusive")
    cluster.await_state(busy, "RUNNING")
    yield ladder
    cluster.run(["scancel", str(busy)])
    cluster.await_idle()


def end_by_slurm(ladder: Ladder) -> Climb:
    """The first start: only what has no record is submitted, and Slurm ends it."""
    first = climb(ladder.checkout)
    jobs = {scale: first.await_line(rf"{scale}: job (\d+) runs on (\S+)") for scale in BY_SLURM}
    for scale in BY_SLURM:
        first.await_line(rf"stage3 {scale} \[1/1\] default/weak/r1: started")
    node = ladder.cluster.run(["scontrol", "show", "hostnames", jobs["2x3"][2]]).stdout.split()[-1]
    ladder.cluster.run(["scancel", jobs["2x1"][1]])
    ladder.cluster.await_state(int(jobs["2x1"][1]), "CANCELLED")
    ladder.cluster.kill_node(node)
    # Slurm would notice it by itself, but the job might end before.
    ladder.cluster.run(["scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=died"])
    ladder.cluster.run(["scontrol", "update", f"JobId={jobs['2x2'][1]}", "EndTime=now+2"])
    assert first.end() == 1, first.text
    ladder.cluster.start_node(node)
    ladder.cluster.await_idle()
    ends = dict(re.findall(r"stage3 (\dx\d): job \d+ ended (\w+)", first.text))
    assert ends == BY_SLURM, first.text
    assert {found[1] for found in re.finditer(r"(\dx\d): job \d+ submitted", first.text)} == set(BY_SLURM)
    return first


@pytest.fixture
def ladder(ended: Ladder, tmp_path: Path) -> Ladder:
    """The same at another path: so every test is one of a checkout that was moved, too."""
    shutil.copytree(ended.checkout.path, tmp_path / "moved", symlinks=True)
    return Ladder(ended.cluster, Checkout(tmp_path / "moved", ended.cluster))


def all_that_is_no_change_of_a_run(ladder: Ladder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make all changes at once: the unit table shows which one counts. Also delete one good run."""
    ladder.configure(runtime=9, gate={"min_efficiency": 0.99})
    (ladder.checkout.path / "loop.py").write_text(f"{HANG} # edited")
    ladder.run("1x1").record.unlink()
    shutil.rmtree(ladder.run("4x2").path)
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    shutil.rmtree(ladder.checkout.path / ".snakemake")


Change = Callable[[Ladder, pytest.MonkeyPatch], Any]
CHANGES: dict[str, tuple[Change, tuple[str, ...], set[str]]] = {
    "none": (lambda ladder, patch: None, (), BAD),
    "runtime, threshold, script, a record, the shell": (all_that_is_no_change_of_a_run, (), {*BAD, "4x2"}),
    # All are to do; the others wait for the gate of stage 1.
    "an argument": (lambda ladder, patch: ladder.configure(args=("--x",)), (), {"1x1"}),
    "--config": (
        lambda ladder, patch: None,
        ("--config", "measure={warmup_steps: 6, min_steps: 10, plain_baseline: false}"),
        {"1x1"},
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_start_submits_exactly_what_is_to_do(ladder: Ladder, change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    alter, arguments, expected = CHANGES[change]
    alter(ladder, monkeypatch)
    assert ladder.submitted(expected, *arguments) == expected


def test_a_moved_checkout_with_good_records_submits_nothing(ladder: Ladder) -> None:
    for index, spec in enumerate(ladder.plan().runs):
        shutil.rmtree(ladder.run(str(spec.scale)).path)
        write_run(ladder.checkout.results, spec, (1000.0 - index) * spec.world_size)  # equal times would be copies
    done = ladder.checkout.snakemake("--profile", "profiles/slurm")
    assert done.returncode == 0, done.stdout
    assert "nothing to measure" in done.stdout
    assert "submitted" not in done.stdout
