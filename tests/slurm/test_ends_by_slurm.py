"""Every way in which Slurm ends a job ends the workflow: soon, with the gate closed and the state named."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from climbs import CONF, HANG, SAMPLES, Climb, await_samples, climb, kill_processes, new_checkout
from cluster import Cluster
from cluster_config import Spec
from ddp_ladder.common.files import Agent, RunDirectory
from ddp_ladder.ledger.jobs import read_rows
from ddp_ladder.records.packed import RawContent
from project_copy import last_box

pytestmark = pytest.mark.slurm

# Little more than it may have: srun does not wait long for a killed step, and giving memory back takes its time.
EAT_MB, HAS_MB = 1200, 900
EAT = f"data = bytearray(b'x') * {EAT_MB}_000_000; import signal; signal.pause()"


@pytest.fixture(scope="module")
def small_nodes(module_cluster: Callable[[Spec], Cluster]) -> Cluster:
    """A node for each of the jobs, and slurmdbd."""
    return module_cluster(Spec(nodes=6, gpus=1, cpus=2, accounting=True, conf=CONF))


@pytest.fixture(scope="module")
def ended(small_nodes: Cluster, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Climb]:
    """A climb for each way to end, all of them side by side."""
    cluster = small_nodes
    states = ("CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "FAILED")
    climbs = {state: climb(new_checkout(cluster, tmp_path_factory.mktemp(state), HANG)) for state in states}
    hungry = new_checkout(cluster, tmp_path_factory.mktemp("out_of_memory"), EAT, memory_mb=HAS_MB)
    climbs["out of memory"] = climb(hungry)
    for state in states:
        await_samples(climbs[state])
    jobs = {state: climbs[state].job() for state in states}
    cluster.run(["scancel", str(jobs["CANCELLED"][0])])
    # Slurm counts limits in minutes.
    cluster.run(["scontrol", "update", f"JobId={jobs['TIMEOUT'][0]}", "EndTime=now+2"])
    cluster.kill_node(jobs["NODE_FAIL"][1])
    cluster.sbatch("true", "--partition=urgent", "--gres=gpu:1", f"--nodelist={jobs['PREEMPTED'][1]}")
    kill_processes(climbs["FAILED"].checkout, "run_scale.py")
    for each in climbs.values():
        each.end()
    return climbs


class TestABadEnd:
    @pytest.mark.parametrize(
        ("state", "next_step"),
        [
            ("CANCELLED", "scancel"),
            ("TIMEOUT", "someone has shortened it"),
            ("NODE_FAIL", "slurm.exclude"),
            ("PREEMPTED", "higher priority"),
            ("FAILED", "it was killed"),
        ],
    )
    def test_closes_the_gate_and_has_its_row(self, ended: dict[str, Climb], state: str, next_step: str) -> None:
        climb = ended[state]
        assert climb.process.returncode == 1, climb.text
        gates = climb.checkout.results / "gates"
        assert not (gates / "stage1.json").exists()
        closed = json.loads((gates / "stage1.closed.json").read_text())
        assert f" ended {state} on node" in closed["why"], climb.text
        assert next_step in f"{closed['why']} {closed['next']}"
        box = last_box(climb.text)
        assert box["verdict"] == "the gate of stage1 is closed; nothing above it was started"
        assert state in box["measured"]
        assert "Error in rule" not in climb.text
        assert "Traceback" not in climb.text
        # Its row in the accounting: Slurm's controller has forgotten it after two seconds.
        row = read_rows(ended[state].checkout.results)[0]
        assert (row.state, row.source, row.runs_measured) == (state, "sacct", 0)
        assert row.job_id == str(ended[state].job()[0])
        # What its run began is start-up, whatever ended it; nothing was trained or tested.
        assert row.preflight_s + row.training_s == 0
        assert 0 <= row.startup_s <= row.elapsed_s
        assert row.gpu_hours_held == pytest.approx(row.elapsed_s / 3600)

    def test_of_too_much_memory_is_reported_in_slurms_words(self, ended: dict[str, Climb]) -> None:
        """Without control groups, Slurm ends the job step; its output in the log shows why."""
        results = ended["out of memory"].checkout.results
        text = (results / "gates/stage1.closed.json").read_text()
        closed = json.loads(text)
        assert "used more memory than" in closed["why"]
        assert "exceeded memory limit" in text
        assert "node.memory_mb" in closed["next"]

    def test_leaves_the_samples_of_the_nodes_no_process_and_nothing_in_the_queue(
        self, ended: dict[str, Climb], small_nodes: Cluster
    ) -> None:
        checkout = ended["CANCELLED"].checkout
        run = RunDirectory(checkout.results / SAMPLES.parents[1])
        header, *rows = RawContent(run).read(run.samples(0), Agent(0)).decode().splitlines()
        assert header.startswith("time_s,")
        assert rows
        assert checkout.processes() == []
        assert small_nodes.run(["squeue", "--noheader"]).stdout == ""
