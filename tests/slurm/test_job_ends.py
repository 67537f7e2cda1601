"""Jobs whose own programs are ended or stopped, and starts that are: the end is told, and a later start goes on."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from climbs import CONF, HANG, Climb, await_samples, climb, kill_processes, new_checkout
from cluster import Cluster
from cluster_config import Spec
from ddp_ladder.ledger.jobs import read_rows
from project_copy import NO_TORCH

pytestmark = pytest.mark.slurm

# What was done to a run that then hangs, as it is told at once, and the verdict.
ENDED_BY_THE_LADDER = {
    "a dead srun": ("its srun was ended by SIGKILL; the run is being ended", "srun was killed"),
    "a stopped agent": ("it is stopped, or its node or its file system hangs", "an agent gave no sign of life"),
}
# The second run hangs for as long as the file is there. Each lasts long enough for Slurm, which looks every second, and
# for the monitor to see its memory.
HANG_IN_THE_SECOND = f"""
import os, signal, time
time.sleep(3)
if os.path.exists("hang") and "/r2/" in os.environ["DDP_LADDER_RUN"]:
    signal.pause()
{NO_TORCH}"""


@pytest.fixture(scope="module")
def small_nodes(module_cluster: Callable[[Spec], Cluster]) -> Cluster:
    """A node for each of the jobs, and slurmdbd."""
    return module_cluster(Spec(nodes=3, gpus=1, cpus=2, accounting=True, conf=CONF))


@pytest.fixture(scope="module")
def ended(small_nodes: Cluster, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Climb]:
    """A climb for each way to end, all of them side by side."""
    climbs = {
        what: climb(new_checkout(small_nodes, tmp_path_factory.mktemp(what.replace(" ", "_")), HANG))
        for what in ENDED_BY_THE_LADDER
    }
    for each in climbs.values():
        await_samples(each)
    kill_processes(climbs["a dead srun"].checkout, "srun --job-name=run-")
    kill_processes(climbs["a stopped agent"].checkout, r"^\S*python\S* \S*agent.py", signal.SIGSTOP)
    for each in climbs.values():
        each.end()
    return climbs


class TestABadEnd:
    @pytest.mark.parametrize("what", ENDED_BY_THE_LADDER)
    def test_of_an_agent_or_its_srun_is_told_before_it_is_ended_and_its_record_stands(
        self, ended: dict[str, Climb], small_nodes: Cluster, what: str
    ) -> None:
        """The batch script ends well, and Slurm says COMPLETED."""
        climb, (told, verdict) = ended[what], ENDED_BY_THE_LADDER[what]
        assert climb.process.returncode == 1, climb.text
        assert small_nodes.await_accounted(climb.job()[0])["State"] == "COMPLETED"
        assert told in climb.text, climb.text
        assert climb.text.index(told) < climb.text.index("FAILED")
        # If a process had written into the run after its record, the gate would name a record that does not match.
        why = json.loads((climb.checkout.results / "gates/stage1.closed.json").read_text())["why"]
        assert (verdict in why, "default/weak/1x1/r1" in why) == (True, True), why


def test_ctrl_c_cancels_the_job_and_a_later_start_goes_on(small_nodes: Cluster, tmp_path: Path) -> None:
    checkout = new_checkout(small_nodes, tmp_path, HANG_IN_THE_SECOND, repeats=2, memory_mb=15_000)
    (checkout.path / "hang").touch()
    first = climb(checkout)
    job, _ = first.job()
    first.await_line("default/weak/r2: started")
    first.process.send_signal(signal.SIGINT)
    first.process.send_signal(signal.SIGINT)  # the second one must not disturb the end
    assert first.end() == 1
    assert f"cancelled: {job}; finished runs are kept" in first.text
    assert "Slurm does not answer" not in first.text
    assert first.text.count("| verdict ") == 1, "one box, and no gate is judged"
    assert "CLOSED" not in first.text
    assert "Traceback" not in first.text
    assert small_nodes.await_accounted(job)["State"] == "CANCELLED by 0"
    kept = checkout.run_times()["default/weak/1x1/r1"]

    (checkout.path / "hang").unlink()
    second = climb(checkout, "stage1")
    assert second.end() == 0, second.text
    assert "default/weak/r1: finished earlier, kept" in second.text
    assert checkout.run_times()["default/weak/1x1/r1"] == kept
    assert [file.name for file in (checkout.results / "gates").iterdir()] == ["stage1.json"]
    assert not (checkout.results / "jobs/1x1.json").exists()

    # Each job accounts for the run that it made itself.
    rows = read_rows(checkout.results)
    assert [(row.state, row.runs_measured) for row in rows] == [("CANCELLED", 1), ("COMPLETED", 1)]


def test_a_killed_snakemake_leaves_a_job_that_only_a_start_of_the_same_plan_follows(
    small_nodes: Cluster, tmp_path: Path
) -> None:
    checkout = new_checkout(small_nodes, tmp_path, f"open('go').close()\n{NO_TORCH}")
    go = checkout.path / "go"
    os.mkfifo(go)  # to open it waits for the other side
    first = climb(checkout, "stage1")
    job, _ = first.job()
    first.await_line("r1: started")
    first.process.kill()
    first.end()
    other = (checkout.path / "config/config.yaml").read_text().replace("min_steps: 5", "min_steps: 6")
    (checkout.path / "other.yaml").write_text(other)
    done = checkout.snakemake("stage1", "--profile", "profiles/slurm", "--config", "experiment=other.yaml")
    assert done.returncode == 1
    assert f"found    job {job} of 1x1: RUNNING" in done.stdout
    assert f"scancel {job}" in done.stdout
    assert "submitted;" not in done.stdout
    assert "was killed; this one goes on from what it has left" in done.stdout

    second = climb(checkout, "stage1")
    second.await_line(f"stage1 1x1: job {job} of a killed start goes on")
    go.open("w").close()
    assert second.end() == 0, second.text
    assert checkout.record("default/weak/1x1/r1")["job"]["id"] == str(job)
    assert [row.job_id for row in read_rows(checkout.results)] == [str(job)]
