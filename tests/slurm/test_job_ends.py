"""Every way in which Slurm ends a job ends the workflow: soon, with the gate closed and the state named."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from climbs import Climb, climb
from cluster import Cluster
from cluster_config import Spec
from ddp_ladder.accounting.jobs import read_rows
from ddp_ladder.common.files import Agent, RunDirectory
from ddp_ladder.records.packed import RawContent
from machines import System
from project_copy import NO_TORCH, ONE_STAGE, Checkout, copy_project, last_box

pytestmark = pytest.mark.slurm

# Jobs of the partition `urgent` end those of `gpu`; who uses more memory than asked for is ended.
CONF = (
    "PreemptType=preempt/partition_prio",
    "PreemptMode=CANCEL",
    "PartitionName=urgent Nodes=ALL MaxTime=10 PriorityTier=100 State=UP",
    "JobAcctGatherParams=OverMemoryKill",
    "JobAcctGatherFrequency=task=1",
    # The controller forgets a job as soon as it has ended: only the accounting knows how.
    "MinJobAge=2",
)
SAMPLES = Path("runs/default/weak/1x1/r1/nodes/node0.csv")
HANG = "import signal; signal.pause()"
# Little more than it may have: srun does not wait long for a killed step, and giving memory back takes its time.
EAT_MB, HAS_MB = 1200, 900
EAT = f"data = bytearray(b'x') * {EAT_MB}_000_000; import signal; signal.pause()"
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


def new_checkout(cluster: Cluster, path: Path, script: str, *, repeats: int = 1, memory_mb: int = 2000) -> Checkout:
    checkout = copy_project(path, cluster)
    site = {
        "site": "test",
        "slurm": {"partition": "gpu", "account": "project"},
        "node": {"gpus": 1, "device": "cpu", "gres": "gpu", "cpus": 2, "memory_mb": memory_mb},
        "launcher": "srun",
    }
    measure = {"warmup_steps": 1, "min_steps": 5, "max_steps": 12, "plain_baseline": False}
    checkout.set_up(script, site, measure=measure, stages=ONE_STAGE, repeats=repeats)
    return checkout


@pytest.fixture(scope="module")
def small_nodes(module_cluster: Callable[[Spec], Cluster], system: System) -> Cluster:
    """A node for each of the jobs, and slurmdbd."""
    return module_cluster(Spec(nodes=9, gpus=1, cpus=2, accounting=True, conf=CONF, system=system))


def kill_processes(checkout: Checkout, program: str, number: signal.Signals = signal.SIGKILL) -> None:
    """Send a signal to all processes of a checkout whose command has this pattern, on whatever node."""
    for process in psutil.process_iter(["cmdline", "cwd"]):
        command = " ".join(process.info["cmdline"] or [])
        if re.search(program, command) and (process.info["cwd"] == str(checkout.path) or str(checkout.path) in command):
            with contextlib.suppress(psutil.NoSuchProcess):  # killing the srun ends the agent, too
                process.send_signal(number)


@pytest.fixture(scope="module")
def ended(small_nodes: Cluster, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Climb]:
    """A climb for each way to end, all of them side by side."""
    cluster = small_nodes
    states = ("CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "FAILED")
    climbs = {state: climb(new_checkout(cluster, tmp_path_factory.mktemp(state), HANG)) for state in states}
    hungry = new_checkout(cluster, tmp_path_factory.mktemp("out_of_memory"), EAT, memory_mb=HAS_MB)
    climbs["out of memory"] = climb(hungry)
    for what in (*ENDED_BY_THE_LADDER, "a stopped job"):
        climbs[what] = climb(new_checkout(cluster, tmp_path_factory.mktemp(what.replace(" ", "_")), HANG))
    jobs = {state: each.job() for state, each in climbs.items()}
    # An agent that is stopped before its first sign of life may take minutes to start.
    for what in climbs.keys() - {"out of memory"}:
        samples = climbs[what].checkout.results / SAMPLES
        cluster.await_true(
            lambda samples=samples: samples.exists() and samples.read_text().count("\n") > 1,
            f"slurmd.{jobs[what][1]}",
            f"a sample of the node of {what}",
            timeout_s=180,
        )
    cluster.run(["scancel", str(jobs["CANCELLED"][0])])
    # Slurm counts limits in minutes.
    cluster.run(["scontrol", "update", f"JobId={jobs['TIMEOUT'][0]}", "EndTime=now+2"])
    cluster.kill_node(jobs["NODE_FAIL"][1])
    cluster.sbatch("true", "--partition=urgent", "--gres=gpu:1", f"--nodelist={jobs['PREEMPTED'][1]}")
    kill_processes(climbs["FAILED"].checkout, "run_scale.py")
    kill_processes(climbs["a dead srun"].checkout, "srun --job-name=run-")
    kill_processes(climbs["a stopped agent"].checkout, r"^\S*python\S* \S*agent.py", signal.SIGSTOP)
    kill_processes(climbs["a stopped job"].checkout, "run_scale.py", signal.SIGSTOP)
    climbs["a stopped job"].await_line("has given no sign of life")
    cluster.run(["scancel", str(jobs["a stopped job"][0])])
    for each in climbs.values():
        each.end()
    cluster.start_node(jobs["NODE_FAIL"][1])
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
        assert row.preflight_s + row.startup_s + row.training_s == 0
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

    def test_of_a_job_whose_own_process_is_stopped_is_told_with_what_to_do(self, ended: dict[str, Climb]) -> None:
        said = ended["a stopped job"].text
        job, node = ended["a stopped job"].job()
        assert re.search(
            rf"job {job} runs, but .* no sign of life for \d+ s: its run_scale.py on {node} is stopped", said
        )
        assert said.count(f"`scancel {job}`") == 1


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
    on_slurm = ("--profile", "profiles/slurm")
    for start in (("--cores", "1"), (*on_slurm, "--config", "experiment=other.yaml")):
        other = (checkout.path / "config/config.yaml").read_text().replace("min_steps: 5", "min_steps: 6")
        (checkout.path / "other.yaml").write_text(other)
        done = checkout.snakemake("stage1", *start)
        assert done.returncode == 1
        assert f"found    job {job} of 1x1: RUNNING" in done.stdout
        assert f"scancel {job}" in done.stdout
        assert "submitted;" not in done.stdout
        assert ("was killed; this one goes on from what it has left" in done.stdout) == (start == ("--cores", "1"))

    second = climb(checkout, "stage1")
    second.await_line(f"stage1 1x1: job {job} of a killed start goes on")
    go.open("w").close()
    assert second.end() == 0, second.text
    assert checkout.record("default/weak/1x1/r1")["job"]["id"] == str(job)
    assert [row.job_id for row in read_rows(checkout.results)] == [str(job)]
